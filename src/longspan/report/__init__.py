"""Results for people: tables and cells that all tasks share. Nothing here computes a score or names a task."""

import inspect
import itertools
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from longspan.machine.printing import markdown_cell, printable
from longspan.mixers import Description
from longspan.report.wrapping import WIDTH, fitted
from longspan.results import ComparedBaseline, Comparison, Spread, TrainingResult
from longspan.results.scores import Scores

SPLITS = ("validation", "test")
"""The splits that are scored, in the order of tables."""


# Tables


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], style: str = "simple") -> str:
    """Return a table of cells that are already text, names left and numbers right; `style` is one of tabulate's.

    In style "simple", lines have at most 100 characters (`longspan.report.wrapping`).
    """
    body = [list(row) for row in rows]
    if not body:
        return "(nothing)"
    escape = markdown_cell if style == "github" else printable
    body = [[escape(cell) for cell in row] for row in body]
    if style == "simple":
        parts = fitted(headers, body)
    else:
        parts = [(list(headers), body, ["left", *["right"] * (len(headers) - 1)])]
    return "\n\n".join(
        tabulate(cells, names, tablefmt=style, disable_numparse=True, colalign=aligned)
        for names, cells, aligned in parts
    )


def mixer_table(descriptions: Sequence[Description], width: int = WIDTH) -> str:
    """Return what `longspan list` prints: for each mixer what it can do, what it is, and its cost."""
    longest = max((len(entry.name) for entry in descriptions), default=0) + 2

    def line(name: str, text: str) -> str:
        indent = " " * longest
        return textwrap.fill(
            text,
            width,
            initial_indent=name.ljust(longest),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )

    listed = [
        "\n".join([line(entry.name, _abilities(entry)), line("", entry.summary), line("", f"Cost: {entry.cost}")])
        for entry in descriptions
    ]
    others = [f"{alias} ({entry.name})" for entry in descriptions for alias in entry.aliases]
    told = [textwrap.fill(f"Other names: {', '.join(sorted(others))}", width)] if others else []
    return "\n\n".join([*listed, *told])


def _abilities(description: Description) -> str:
    can = [name for name in ("causal", "streaming", "context", "packing") if getattr(description, name)]
    return ", ".join(can) or "plain"


def mixer_page(description: Description) -> str:
    """Return what `longspan show MIXER` prints."""
    known_as = "" if description.alias_of is None else f", another name for {description.alias_of}"
    options = [
        [name, "(required)" if value is inspect.Parameter.empty else repr(value)]
        for name, value in description.options.items()
    ]
    return "\n\n".join(
        [
            f"{description.name}{known_as}: {_abilities(description)}",
            description.docstring,
            tabulate(options, ["option", "default"], tablefmt="simple", disable_numparse=True),
        ]
    )


def training_summary(
    result: TrainingResult, data_table: str, example: str | None = None, flags: Sequence[str] = ()
) -> str:
    """Return what `longspan train` prints at the end.

    Args:
        result: The result.
        data_table: The task's table of the data.
        example: A path to predict for in the next command; None prints FILE.
        flags: Arguments that the next commands need.
    """
    cost = (
        f"{count(result.parameters)} parameters, {count(result.tokens_per_second)} tokens/s, "
        f"{size(result.peak_memory_bytes)} peak memory, {duration(result.seconds)}"
    )
    ended = [f"training {told}"] if (told := stopped(result)) else []
    given = shlex.join([result.folder, "FILE" if example is None else example, *flags])
    following = f"next:\n  longspan evaluate {shlex.join([result.folder, *flags])}\n  longspan predict {given}"
    parts = [data_table, scores_table(result.scores), *ended, cost, f"run folder: {result.folder}", following]
    return "\n\n".join(parts)


def stopped(result: TrainingResult) -> str:
    """Say where and why training, of which this is said, ended before its last planned step; "" if it did not."""
    if result.stopped is None:
        return ""
    place = f"epoch {result.epochs:.4g} (step {count(result.steps)} of {count(result.planned_steps)})"
    kept = "" if result.kept_epoch is None else f"; the model kept is that after epoch {result.kept_epoch:.4g}"
    if result.stopped == "early":
        return f"stopped early after {place}, as validation scores no longer improved{kept}"
    return f"was interrupted after {place} and finished with its last checkpoint{kept}"


def scores_table(splits: Mapping[str, Scores], style: str = "simple") -> str:
    """Return one row per split of the scores that tables show."""
    kind = type(next(iter(splits.values())))
    rows = ([name, *map(number, scores.numbers().values())] for name, scores in splits.items())
    return table(["split", *kind.shown().values()], rows, style)


def comparison_summary(result: Comparison, style: str = "simple") -> str:
    """Return the table of `longspan compare`, what its baselines are, and whether one of them wins."""
    counted = [row for row in result.baselines if row.error is None]
    scored = {split for row in result.summary for split in row.scores} | {
        split for row in counted for split in row.scores
    }
    keys = [
        (split, name, f"{split} {word}")
        for split, (name, word) in itertools.product(SPLITS, result.kind.shown().items())
        if split in scored
    ]
    rows = [
        [
            row.mixer,
            *(spread(row.scores.get(split, {}).get(name)) for split, name, _ in keys),
            count(row.steps.mean),
            duration(row.seconds.mean),
            count(row.tokens_per_second.mean),
            size(row.peak_memory_bytes),
            count(row.parameters),
            str(row.seeds),
        ]
        for row in result.summary
    ]
    rows += [
        [
            f"{row.baseline} (baseline)",
            *(number(row.scores[split].numbers()[name] if split in row.scores else None) for split, name, _ in keys),
            count(None),
            duration(row.seconds),
            count(None),
            size(row.peak_memory_bytes),
            count(row.parameters),
            "1",
        ]
        for row in counted
    ]
    done = {row.mixer for row in result.summary}
    lost = [run.mixer for run in result.runs if run.mixer not in done]
    lost += [f"{row.baseline} (baseline)" for row in result.baselines if row.error is not None]
    rows += [[f"{name}: failed", *[count(None)] * (len(keys) + 5), "0"] for name in dict.fromkeys(lost)]
    headers = [
        "mixer",
        *(words for *_, words in keys),
        "steps",
        "time",
        "tokens/s",
        "peak memory",
        "parameters",
        "seeds",
    ]
    told = [_baseline(row) for row in counted] + _verdicts(result)
    failed = [f"{run.mixer}, seed {run.seed}, failed: {run.error}" for run in result.runs if run.error is not None]
    failed += [f"{row.baseline} (baseline) failed: {row.error}" for row in result.baselines if row.error is not None]
    listed = table(headers, rows, style)
    if "\n\n" in listed:
        # Too wide for one table: the scores of each split, then what the runs cost.
        splits = [split for split, *_ in keys]
        groups = [[place for place, name in enumerate(splits, 1) if name == split] for split in dict.fromkeys(splits)]
        groups.append([*range(len(keys) + 1, len(headers))])
        listed = "\n\n".join(
            table([headers[place] for place in (0, *group)], [[row[place] for place in (0, *group)] for row in rows])
            for group in groups
        )
    return "\n\n".join([listed, *told, *failed])


def _baseline(row: ComparedBaseline) -> str:
    """Say what a baseline does."""
    chosen = ", ".join(f"{name} {value}" for name, value in row.chosen.items())
    return f"{row.baseline}: {row.does}" + (f" Chosen on the validation split: {chosen}." if chosen else "")


def _verdicts(result: Comparison) -> list[str]:
    """Say for each split whether the best baseline has a better headline score than the best mixer."""
    name = result.kind.headline()
    word = result.kind.shown()[name]
    best = max if result.kind.higher_is_better() else min
    told = []
    for split in SPLITS:
        mixers = {row.mixer: row.scores[split][name].mean for row in result.summary if split in row.scores}
        others = {row.baseline: row.scores[split].numbers()[name] for row in result.baselines if split in row.scores}
        if not mixers or not others:
            continue
        mixer, other = (best(found, key=lambda key: found[key]) for found in (mixers, others))
        ours, theirs = mixers[mixer], others[other]
        if number(ours) == number(theirs):
            told.append(
                f"On the {split} split the baseline {other} is as good as the best mixer, {mixer}: {word} "
                f"{number(theirs)}."
            )
        elif best(ours, theirs) == theirs:
            told.append(
                f"On the {split} split the baseline {other} wins: {word} {number(theirs)}, against {number(ours)} of "
                f"the best mixer, {mixer}."
            )
        else:
            told.append(
                f"On the {split} split no baseline wins: {word} {number(ours)} of the best mixer, {mixer}, against "
                f"{number(theirs)} of the best baseline, {other}."
            )
    return told


def generation_summary(statistics: Mapping[str, Any]) -> str:
    """Return what `longspan generate --stats` prints, from ``Statistics.summary``."""
    early, late = statistics["early_milliseconds"], statistics["late_milliseconds"]
    parts = [
        f"{count(statistics['prompt_tokens'])} tokens of prompt read in {duration(statistics['prompt_seconds'])}",
        f"{count(statistics['new_tokens'])} made in {duration(statistics['seconds'])}"
        + (", then the document ended" if statistics["ended"] else ""),
    ]
    if early is not None:
        parts += [
            f"{statistics['tokens_per_second']:,.1f} tokens/s",
            f"{early:.2f} ms per token at first and {late:.2f} at last",
        ]
    return "; ".join([*parts, f"state of {count(statistics['state_bytes'])} bytes"])


# Cells


def share(value: float) -> str:
    """A fraction with three decimals."""
    return f"{value:.3f}"


def number(value: float | None) -> str:
    """A number of any size, three decimals or three digits of it, whichever says more; "-" for None."""
    if value is None:
        return "-"
    if abs(value) >= 1e9 or 0 < abs(value) < 0.01:
        return f"{value:.3g}"
    return f"{value:,.3f}" if abs(value) < 1e4 else f"{value:,.0f}"


def count(value: float | None) -> str:
    """An integer with thousands separated; "-" for None."""
    return "-" if value is None else f"{value:,.0f}"


def spread(value: Spread | None) -> str:
    """A mean with its standard deviation over seeds, where there is one; "-" for None."""
    if value is None:
        return "-"
    return number(value.mean) if value.spread is None else f"{number(value.mean)} ± {number(value.spread)}"


def size(value: float | None) -> str:
    """Bytes in MiB or GiB."""
    if value is None:
        return "-"
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def duration(seconds: float) -> str:
    """Seconds in the two largest units that matter."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
