"""Results of `longspan.write_report`, as a page and as text for a terminal: `RunReport` and `ComparisonReport`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan.report import count, number, table
from longspan.report.templating import cell, is_number, template
from longspan.results import Evaluation, TrainingResult
from longspan.results.base import HIDDEN, Result, merged
from longspan.results.mistakes import Mistakes, excerpt
from longspan.results.outputs import write_text
from longspan.results.parts import NAMES
from longspan.results.scores import Scores

#: The file of a run's or a comparison's folder.
NAME = "report.html"


@dataclass(frozen=True)
class Word:
    """A word or phrase that speaks for a class.

    Attributes:
        text: The word or phrase.
        score: How much log-odds of the class it adds to a document that has it, on average.
        documents: Number of documents of the sample with it.
        before, after: Text around it in one of them.
        where: The place of that one.
    """

    text: str
    score: float
    documents: int
    before: str
    after: str
    where: str


@dataclass(frozen=True)
class Words:
    """Words and phrases that speak for each class.

    Attributes:
        source: Where scores come from, in one sentence.
        by_class: Those of each class, the strongest first.
    """

    source: str
    by_class: Mapping[str, Sequence[Word]]


@dataclass(frozen=True)
class RunReport(Result):
    """Content of a report of a run.

    Attributes:
        name: The recipe's name.
        description: The recipe's description.
        result: Values of the run's `metrics.json`.
        recipe: The resolved recipe as TOML.
        figures: PNG figures as `data:` addresses, by title.
        evaluation: Scores and mistakes on one split; None if there is none.
        commands: The command that explains each example with a mistake, by its place.
        words: Words that speak for each class; None if there are none to show.
        baselines: Rows of baselines on the same splits, from a comparison.
        notes: Why parts are missing, in sentences.
    """

    name: str
    description: str
    result: TrainingResult
    recipe: str
    figures: Mapping[str, str] = field(metadata=HIDDEN)
    evaluation: Evaluation | None = None
    commands: Mapping[str, str] = field(default_factory=dict)
    words: Words | None = None
    baselines: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()

    def page(self) -> str:
        """Return a page of HTML that needs no other file and asks nobody for anything."""
        return template("report.html").render(
            title=f"Report: {self.name}",
            report=self,
            tables=_run_tables(self),
            figures=self.figures,
            evaluated=self.evaluation,
            classes=_by_class(self.evaluation),
            listed=_listed(self.evaluation),
        )

    def save(self, path: Path) -> None:
        """Write the page."""
        write_text(path, self.page())


@dataclass(frozen=True)
class ComparisonReport(Result):
    """Content of a report of a comparison.

    Attributes:
        values: Values of `comparison.json`.
        figures: PNG figures as `data:` addresses, by title.
        links: The reports of runs, relative to the comparison's folder, by the name of the run's folder.
    """

    values: Mapping[str, Any] = field(metadata=merged())
    figures: Mapping[str, str] = field(metadata=HIDDEN)
    links: Mapping[str, str] = field(metadata=merged(lambda _, links: {"reports": links}))

    def page(self) -> str:
        """Return a page of HTML that needs no other file, but links to the reports of runs."""
        values, overrides = self.values, self.values.get("overrides")
        tables = [
            _records("Mixers, means over seeds", values.get("summary")),
            _records("Baselines", values.get("baselines")),
            _records("Runs", values.get("runs")),
        ]
        errors = [
            f"{row.get('mixer') or row.get('baseline')}: {row['error']}"
            for name in ("runs", "baselines")
            for row in _rows(values.get(name))
            if row.get("error")
        ]
        return template("comparison.html").render(
            title=f"Comparison: {values.get('recipe', '')}",
            task=values.get("task", ""),
            overrides=[str(one) for one in overrides] if isinstance(overrides, list) else [],
            conclusion=values.get("conclusion", ""),
            tables=[one for one in tables if one.rows],
            errors=errors,
            report=self,
            figures=self.figures,
        )

    def save(self, path: Path) -> None:
        """Write the page."""
        write_text(path, self.page())


#: Columns of a comparison that are not shown, and scores of single classes by their names in results.
_HIDDEN = ("folder", "does", "chosen", "parts", "error")
_BY_CLASS = ("per_class", "per_label", "per_type")


@dataclass(frozen=True)
class Table:
    """A table: cells that are numbers are on the right."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Any]]


def _run_tables(report: RunReport) -> list[Table]:
    result = report.result
    scores, found = {**result.scores}, report.evaluation
    if found is not None and found.split not in scores:
        scores[found.split] = found.scores
    elif found is not None and not _close(scores[found.split], found.scores):
        scores[f"{found.split} of {found.data}"] = found.scores
    words = {name: told for found in scores.values() for name, told in found.shown().items()}
    own = [[split, *map(found.numbers().get, words)] for split, found in scores.items()]
    found_costs = {told: (getattr(result, name), unit) for name, (told, unit) in _COSTS.items()}
    cost = {told: value / unit for told, (value, unit) in found_costs.items() if is_number(value) and value}
    read = result.data if isinstance(result.data, Mapping) else {}
    data = [{"split": name, **row} for name, row in read.items() if isinstance(row, Mapping) and name in _SPLITS]
    tables = [
        Table("Scores of the model that was kept", ["split", *words.values()], own),
        _parts(report),
        _records("Baselines on the same splits", report.baselines),
        _records("Data", data),
        Table("Costs of training", list(cost), [list(cost.values())]),
    ]  # fmt: skip
    return [one for one in tables if one.rows and one.headers]


def _close(one: Scores, other: Scores) -> bool:
    """Return whether scores are the same but for rounding."""
    first, second = one.numbers(), other.numbers()
    return first.keys() == second.keys() and all(
        math.isclose(first[name], second[name], rel_tol=1e-3) for name in first
    )


#: Costs by field of `TrainingResult`: what the table calls each, and by what it is divided.
_COSTS = {
    "parameters": ("parameters", 1),
    "steps": ("steps", 1),
    "epochs": ("epochs", 1),
    "tokens_per_second": ("tokens per second", 1),
    "peak_memory_bytes": ("peak memory (MiB)", 2**20),
    "seconds": ("seconds", 1),
}
_SPLITS = ("train", "validation", "test")


def _parts(report: RunReport) -> Table:
    """Scores of counts and network, where a model has both."""
    rows = []
    for split, kept in (("validation", "parts"), ("test", "test_parts")):
        details = report.result.details.get(kept)
        values = details.get("values") if isinstance(details, Mapping) else None
        if isinstance(values, Mapping):
            rows.append([split, *(values.get(name) if is_number(values.get(name)) else None for name in NAMES)])
    rows = [row for row in rows if any(cell is not None for cell in row[1:])]
    return Table("Parts of the model", ["split", *NAMES], rows)


def _by_class(found: Evaluation | None) -> Table | None:
    """Return the scores of each class, or of the first of very many."""
    if found is None:
        return None
    scores = found.scores.to_dict()
    for name in _BY_CLASS:
        if isinstance(scores.get(name), Mapping):
            rows = [{"class": label, **row} for label, row in scores[name].items() if isinstance(row, Mapping)]
            return _records("", rows)
    return None


def _listed(found: Evaluation | None) -> list[tuple[str, str, Mistakes]]:
    """Return lists of mistakes, each with its title and what it is."""
    if found is None or found.mistakes.reason:
        return []
    lists = [("Worst mistakes", _MISTAKES, found.mistakes)]
    if found.label_issues is not None:
        lists.append(("Labels that are likely wrong", _ISSUES, found.label_issues))
    return lists


_MISTAKES = "Examples that the model gets wrong, the worst first."
_ISSUES = (
    "Examples whose label the model finds unlikely, though another class is about as likely as it usually is for its "
    "own examples. This is confident learning (Northcutt et al. 2021, arXiv:1911.00068): look at the labels first."
)


def _records(caption: str, found: Any) -> Table:
    """Return a table with a row for each mapping; columns without a value that can be shown are left out."""
    rows = [{name: _shown(value) for name, value in row.items() if name not in _HIDDEN} for row in _rows(found)]
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))
    return Table(
        caption, [str(name).replace("_", " ") for name in names], [[row.get(name) for name in names] for row in rows]
    )


def _rows(found: Any) -> Iterable[Mapping[str, Any]]:
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, Sequence) else []


def _shown(value: Any) -> Any:
    """Return a value as a cell: a mean with its spread as text, and nothing for lists and longer mappings."""
    if isinstance(value, Mapping) and is_number(value.get("mean")):
        spread = value.get("spread")
        return f"{cell(value['mean'])} ± {cell(spread)}" if is_number(spread) else value["mean"]
    return value if isinstance(value, str) or is_number(value) else None


#: Words of each class that are printed.
_PRINTED_WORDS = 8


def report_summary(found: RunReport | ComparisonReport) -> str:
    """List of missing parts, the words that speak for each class and the worst mistakes, with a line after each."""
    if isinstance(found, ComparisonReport):
        return ""
    parts = list(found.notes)
    if found.words is not None:
        rows = (
            [label, ", ".join(word.text for word in words[:_PRINTED_WORDS])]
            for label, words in found.words.by_class.items()
        )
        parts.append(table(["class", "words that speak for it"], rows))
    if found.evaluation is not None:
        parts += mistakes_summary(found.evaluation)
    return "".join(f"{part}\n\n" for part in parts)


#: Mistakes that are printed, and characters of each cell.
_PRINTED, _CELL = 8, 40


def mistakes_summary(evaluation: Evaluation) -> list[str]:
    """Lines of `longspan evaluate` on the worst mistakes, and on labels that are likely wrong."""
    found = evaluation.mistakes
    if found.reason:
        return [found.reason]
    parts = [_mistakes_table("Worst mistakes", found, "expected", "answer")] if found.worst else []
    issues = evaluation.label_issues
    if issues is not None and issues.worst:
        parts.append(_mistakes_table("Labels that are likely wrong", issues, "label", "more likely"))
    return parts


def _mistakes_table(title: str, found: Mistakes, expected: str, said: str) -> str:
    shown = found.worst[:_PRINTED]
    rows = (
        [excerpt(one.where, 2 * _CELL), excerpt(one.expected, _CELL), excerpt(one.said, _CELL), number(one.score)]
        for one in shown
    )
    lead = f"{title} ({count(len(shown))} of {count(found.count)}):"
    return f"{lead}\n\n{table(['where', expected, said, found.measure], rows)}"
