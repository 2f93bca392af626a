"""Results for people: tables and cells that all tasks share. Nothing here computes a score or names a task."""

import inspect
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from longspan.machine.printing import markdown_cell, printable
from longspan.mixers import Description
from longspan.report.wrapping import WIDTH, fitted
from longspan.results import Spread, TrainingResult
from longspan.results.parts import COUNTS, NAMES, Parts, describe_parts
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
    """Table that `longspan list` prints: abilities, summary and cost of each mixer."""
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
    """Page that `longspan show MIXER` prints."""
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
    """Summary that `longspan train` prints at the end.

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
    notes = [sentence for sentence in (parts_table(result), parts_sentence(result), selection(result)) if sentence]
    parts = [data_table, scores_table(result.scores), *ended, *notes, cost, f"run folder: {result.folder}", following]
    return "\n\n".join(parts)


def stopped(result: TrainingResult) -> str:
    """Say where and why training, of which this is said, ended before its last planned step; "" if it did not."""
    if result.stopped is None:
        return ""
    if result.stopped == "deadline":
        return f"ended at its deadline after epoch {result.epochs:.4g} (step {count(result.steps)})"
    place = f"epoch {result.epochs:.4g} (step {count(result.steps)} of {count(result.planned_steps)})"
    kept = "" if result.kept_epoch is None else f"; the model kept is that after epoch {result.kept_epoch:.4g}"
    if result.stopped == "early":
        return f"stopped early after {place}, as validation scores no longer improved{kept}"
    return f"was interrupted after {place} and finished with its last checkpoint{kept}"


def parts_table(result: TrainingResult) -> str:
    """Table of the scores of counts, network and both on each split; "" for a model of one part."""
    found = _parts(result)
    rows = ([split, *(number(parts.values[name]) for name in NAMES)] for split, (parts, _) in found.items())
    return table([next(iter(found.values()))[1], *NAMES], rows) if found else ""


def parts_sentence(result: TrainingResult) -> str:
    """Compare counts and network of a model on the last split that was scored; "" for a model of one part."""
    for split, (found, word) in reversed(_parts(result).items()):
        sentence = f"Parts on the {split} split: {describe_parts(found, word, number)}"
        if not found.equals_both(COUNTS):
            return sentence
        command = ["longspan", "train", result.folder, "--run", f"{result.folder}-counts", *ALONE]
        return f"{sentence} To keep it alone, with a network of next to no size: {shlex.join(command)}"
    return ""


def _parts(result: TrainingResult) -> dict[str, tuple[Parts, str]]:
    """The scores of parts on each split, and the name of the score in tables."""
    found = {}
    for name, split in (("parts", "validation"), ("test_parts", "test")):
        if result.details.get(name):
            parts = Parts.from_dict(result.details[name])
            found[split] = parts, result.scores[split].shown().get(parts.score, parts.score)
    return found


#: Settings with which a model is its count-based part.
ALONE = ("model.dim=8", "model.heads=1", "model.depth=1", "training.max_minutes=0", "training.max_steps=1")


def selection(result: TrainingResult) -> str:
    """Say how uncertain the choice of the epoch is on few validation rows; "" on many."""
    found = result.details.get("selection")
    if not found:
        return ""
    word = next(iter(result.scores.values())).shown()[found["score"]]
    parts = any("validation_loss_as_trained" in row for row in result.history)
    return (
        f"The model was chosen on {count(found['rows'])} validation rows: {word} has a standard error of "
        f"{number(found['standard_error'])}, and {found['close']} of {found['epochs']} validations are within it of "
        f"the best.{' Of equal ones, the network with the lowest loss alone was kept.' if parts else ''}"
    )


def scores_table(splits: Mapping[str, Scores], style: str = "simple") -> str:
    """Return one row per split of the scores that tables show."""
    kind = type(next(iter(splits.values())))
    rows = ([name, *(number(scores.numbers().get(one)) for one in kind.shown())] for name, scores in splits.items())
    return table(["split", *kind.shown().values()], rows, style)


def generation_summary(statistics: Mapping[str, Any]) -> str:
    """Summary that `longspan generate --stats` prints, from ``Statistics.summary``."""
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
