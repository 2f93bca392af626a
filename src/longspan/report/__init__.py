"""Results for people. Nothing here computes a score.

What is common to all tasks is here and in `pictures`. A task's file of the same name offers `data_table`,
`evaluation_summary` and `model_card`.
"""

import importlib
import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tabulate import tabulate

from longspan import tasks
from longspan.mixers import Description


def load(task: str) -> ModuleType:
    """Return the module that prints the results of `task`."""
    return importlib.import_module(f"{__name__}.{task}")


# Tables


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], style: str = "simple") -> str:
    """Return a table of cells that are already text, names left and numbers right; `style` is one of tabulate's."""
    body = [list(row) for row in rows]
    if not body:
        return "(nothing)"
    if style == "github":
        body = [[cell.replace("|", "\\|") for cell in row] for row in body]
    align = ("left",) + ("right",) * (len(headers) - 1)
    return tabulate(body, headers, tablefmt=style, disable_numparse=True, colalign=align)


def mixer_table(descriptions: Sequence[Description], width: int | None = None) -> str:
    """Return what `longspan list` prints, its long columns folded to fit into `width` characters if that is given."""
    rows = []
    for entry in descriptions:
        flags = (entry.causal, entry.streaming, entry.context, entry.packing)
        rows.append([entry.name, *("yes" if flag else "-" for flag in flags), entry.cost, entry.summary])
    headers = ["mixer", "causal", "streaming", "context", "packing", "cost", "what it is"]
    # Two spaces part the columns, and two more widen each header.
    taken = max((len(row[0]) for row in rows), default=0) + sum(len(header) + 4 for header in headers[1:5]) + 4
    folded = None if width is None else [None] * 5 + [max(12, (width - taken) // 2)] * 2
    listed = tabulate(rows, headers, tablefmt="simple", disable_numparse=True, maxcolwidths=folded)
    others = [f"{alias} ({entry.name})" for entry in descriptions for alias in entry.aliases]
    return f"{listed}\n\nOther names: {', '.join(sorted(others))}" if others else listed


def mixer_page(description: Description) -> str:
    """Return what `longspan show MIXER` prints."""
    can = [name for name in ("causal", "streaming", "context", "packing") if getattr(description, name)]
    known_as = "" if description.alias_of is None else f", another name for {description.alias_of}"
    options = [
        [name, "(required)" if value is inspect.Parameter.empty else repr(value)]
        for name, value in description.options.items()
    ]
    return "\n\n".join(
        [
            f"{description.name}{known_as}: {', '.join(can) or 'plain'}",
            description.docstring,
            tabulate(options, ["option", "default"], tablefmt="simple", disable_numparse=True),
        ]
    )


def training_summary(task: str, result: Mapping[str, Any], run_dir: Path) -> str:
    """Return what `longspan train` prints at the end, from the result of `longspan.train.train`."""
    cost = (
        f"{count(result['parameters'])} parameters, {count(result['tokens_per_second'])} tokens/s, "
        f"{size(result['peak_memory_bytes'])} at most, {duration(result['seconds'])}"
    )
    scores = scores_table(tasks.load(task).SCORES, scored(result))
    return "\n\n".join([load(task).data_table(result["data"]), scores, cost, f"run folder: {run_dir}"])


def scores_table(scores: Mapping[str, str], splits: Mapping[str, Mapping[str, Any]], style: str = "simple") -> str:
    """Return one row per split of a task's SCORES."""
    rows = ([name, *(share(row[key]) for key in scores)] for name, row in splits.items())
    return table(["split", *scores.values()], rows, style)


def scored(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the scores of the splits that a training scored."""
    return {name: result[name] for name in ("validation", "test") if result.get(name)}


def comparison_summary(result: Mapping[str, Any], style: str = "simple") -> str:
    """Return the table of `longspan compare`, from the result of `longspan.compare.compare`."""
    keys = [
        (f"{split}_{score}", f"{split} {word}")
        for split, (score, word) in itertools.product(("validation", "test"), tasks.load(result["task"]).SCORES.items())
        if any(f"{split}_{score}" in row for row in result["summary"])
    ]
    rows = [
        [
            row["mixer"],
            *(spread(row.get(key)) for key, _ in keys),
            count(row["tokens_per_second"]["mean"]),
            size(row["peak_memory_bytes"]),
            count(row["parameters"]),
            str(row["seeds"]),
        ]
        for row in result["summary"]
    ]
    headers = ["mixer", *(words for _, words in keys), "tokens/s", "peak memory", "parameters", "seeds"]
    failed = [f"{run['mixer']}, seed {run['seed']}, failed: {run['error']}" for run in result["runs"] if "error" in run]
    return "\n\n".join([table(headers, rows, style), *failed])


# Cells


def share(value: float) -> str:
    """A fraction with three decimals."""
    return f"{value:.3f}"


def count(value: float | None) -> str:
    """A whole number with thousands separated; "-" for None."""
    return "-" if value is None else f"{value:,.0f}"


def spread(value: Mapping[str, float | None] | None) -> str:
    """A mean with its standard deviation over seeds, where there is one."""
    if value is None or value["mean"] is None:
        return "-"
    deviation = value["spread"]
    return share(value["mean"]) if deviation is None else f"{share(value['mean'])} ± {share(deviation)}"


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
