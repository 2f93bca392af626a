"""What `longspan.write_report` returns: `RunReport` of a run, and `ComparisonReport`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from longspan.results import Evaluation, TrainingResult
from longspan.results.outputs import write_text

#: The file of a run's or a comparison's folder.
NAME = "report.html"


@dataclass(frozen=True)
class Word:
    """A word or phrase that speaks for a class.

    Attributes:
        text: What it is.
        score: How much log-odds of the class it adds to a document that has it, on average.
        documents: How many documents of the sample have it.
        before, after: What stands around it in one of them.
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
class RunReport:
    """What a report of a run shows.

    Attributes:
        name: The recipe's name.
        description: What the recipe says of itself.
        result: What `metrics.json` of the run holds.
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
    figures: Mapping[str, str]
    evaluation: Evaluation | None = None
    commands: Mapping[str, str] = field(default_factory=dict)
    words: Words | None = None
    baselines: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all of it but for figures, as JSON."""
        return {
            "name": self.name,
            "description": self.description,
            "result": self.result.to_dict(),
            "recipe": self.recipe,
            "evaluation": None if self.evaluation is None else self.evaluation.to_dict(),
            "commands": dict(self.commands),
            "words": None if self.words is None else asdict(self.words),
            "baselines": list(self.baselines),
            "notes": list(self.notes),
        }

    def page(self) -> str:
        """Return a page of HTML that needs no other file and asks nobody for anything."""
        from longspan.results.report_page import run_page

        return run_page(self)

    def save(self, path: Path) -> None:
        """Write the page."""
        write_text(path, self.page())


@dataclass(frozen=True)
class ComparisonReport:
    """What a report of a comparison shows.

    Attributes:
        values: What `comparison.json` holds.
        figures: PNG figures as `data:` addresses, by title.
        links: The reports of runs, relative to the comparison's folder, by the name of the run's folder.
    """

    values: Mapping[str, Any]
    figures: Mapping[str, str]
    links: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it but for figures, as JSON."""
        return {**self.values, "reports": dict(self.links)}

    def page(self) -> str:
        """Return a page of HTML that needs no other file, but links to the reports of runs."""
        from longspan.results.report_page import comparison_page

        return comparison_page(self)

    def save(self, path: Path) -> None:
        """Write the page."""
        write_text(path, self.page())
