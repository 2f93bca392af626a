"""Results for people: tables and the model card. Nothing here computes a score."""

import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from longspan.mixers import Description
from longspan.recipes import Recipe
from longspan.report.pictures import learning_curve as learning_curve

_COMPARED = {"accuracy": "accuracy", "macro_f1": "macro-F1"}


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


def mixer_table(descriptions: Iterable[Description], width: int | None = None) -> str:
    """Return what `longspan list` prints, its long columns folded to fit into `width` characters if that is given."""
    rows = []
    for entry in descriptions:
        flags = (entry.causal, entry.streaming, entry.cross, entry.packing)
        rows.append([entry.name, *("yes" if flag else "-" for flag in flags), entry.cost, entry.summary])
    headers = ["mixer", "causal", "streaming", "cross", "packing", "cost", "what it is"]
    # Two spaces part the columns, and two more widen each header.
    taken = max((len(row[0]) for row in rows), default=0) + sum(len(header) + 4 for header in headers[1:5]) + 4
    folded = None if width is None else [None] * 5 + [max(12, (width - taken) // 2)] * 2
    return tabulate(rows, headers, tablefmt="simple", disable_numparse=True, maxcolwidths=folded)


def mixer_page(description: Description) -> str:
    """Return what `longspan show MIXER` prints."""
    can = [name for name in ("causal", "streaming", "cross", "packing") if getattr(description, name)]
    options = [
        [name, "(required)" if value is inspect.Parameter.empty else repr(value)]
        for name, value in description.options.items()
    ]
    return "\n\n".join(
        [
            f"{description.name}: {', '.join(can) or 'plain'}",
            description.docstring,
            tabulate(options, ["option", "default"], tablefmt="simple", disable_numparse=True),
        ]
    )


def data_table(data: Mapping[str, Any], style: str = "simple") -> str:
    """Return the table of splits: documents, tokens, how many were cut and by how much, and the lengths."""
    splits = {name: row for name, row in data.items() if isinstance(row, Mapping) and "documents" in row}
    headers = ["split", "documents", "tokens", "median length", "longest", "cut documents", "tokens cut off"]
    keys = ["documents", "tokens", "median_length", "longest", "cut_documents", "removed_tokens"]
    return table(headers, ([name, *(count(row.get(key)) for key in keys)] for name, row in splits.items()), style)


def scores_table(splits: Mapping[str, Mapping[str, Any]], style: str = "simple") -> str:
    """Return one row of scores per split."""
    keys = ("accuracy", "macro_f1", "calibration_error")
    rows = ([name, *(share(row[key]) for key in keys)] for name, row in splits.items())
    return table(["split", "accuracy", "macro-F1", "calibration error"], rows, style)


def training_summary(result: Mapping[str, Any], run_dir: Path) -> str:
    """Return what `longspan train` prints at the end."""
    cost = (
        f"{count(result['parameters'])} parameters, {count(result['tokens_per_second'])} tokens/s, "
        f"{size(result['peak_memory_bytes'])} at most, {duration(result['seconds'])}"
    )
    return "\n\n".join([data_table(result["data"]), scores_table(_scored(result)), cost, f"run folder: {run_dir}"])


def evaluation_summary(result: Mapping[str, Any]) -> str:
    """Return what `longspan evaluate` prints, from the result of `longspan.evaluate.evaluate`."""
    split = result["split"]
    keys = ("precision", "recall", "f1")
    classes = (
        [name, *(share(row[key]) for key in keys), count(row["support"])] for name, row in result["per_class"].items()
    )
    bins = (
        [f"{row['from']:.2f} to {row['to']:.2f}", count(row["count"]), share(row["confidence"]), share(row["accuracy"])]
        for row in result["reliability"]
    )
    parts = [
        data_table({split: result["truncation"]}),
        f"padding: {result['padding_fraction']:.1%} of the computed positions",
        scores_table({split: result}),
        table(["class", "precision", "recall", "F1", "support"], classes),
        table(["confidence", "documents", "mean confidence", "accuracy"], bins),
        f"written to {result['folder']}",
    ]
    return "\n\n".join(parts)


def comparison_summary(result: Mapping[str, Any], style: str = "simple") -> str:
    """Return the table of `longspan compare`, from the result of `longspan.compare.compare`."""
    keys = [
        (f"{split}_{score}", f"{split} {word}")
        for split, (score, word) in itertools.product(("validation", "test"), _COMPARED.items())
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


def _scored(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {name: result[name] for name in ("validation", "test") if result.get(name)}


# Model card


def model_card(recipe: Recipe, result: Mapping[str, Any]) -> str:
    """Return the README.md of a run folder, in the form the Hugging Face Hub reads.

    Args:
        recipe: The resolved recipe of the run.
        result: What `longspan.train.train` returns.
    """
    labels = result["labels"]
    mixers = recipe.model.get("mixers", ["additive"])
    tags = "\n".join(f"- {tag}" for tag in ("longspan", "long-document", *dict.fromkeys(mixers)))
    named = ", ".join(f"`{name}`" for name in labels[:50])
    more = f" and {len(labels) - 50} more" if len(labels) > 50 else ""
    length = recipe.data.max_length
    # A pipeline reads documents whole unless told otherwise.
    cut = f", truncation=True, max_length={length}" if length else ""
    left = '\nclassify.tokenizer.truncation_side = "left"' if length and recipe.data.keep == "last" else ""
    kept = f"only the {recipe.data.keep} {length:,} tokens of each are read" if length else "they are read whole"
    return _CARD.format(
        tags=tags,
        name=recipe.name,
        description=recipe.description or f"A text classifier trained with the recipe `{recipe.name}`.",
        labels=named + more,
        mixers=", ".join(mixers),
        parameters=count(result["parameters"]),
        scores=scores_table(_scored(result), "github"),
        data=data_table(result["data"], "github"),
        seconds=duration(result["seconds"]),
        speed=count(result["tokens_per_second"]),
        memory=size(result["peak_memory_bytes"]),
        kept=kept,
        cut=cut,
        left=left,
    )


_CARD = """\
---
library_name: transformers
pipeline_tag: text-classification
tags:
{tags}
metrics:
- accuracy
- f1
---

# {name}

{description}

Made with longspan: {mixers}, {parameters} parameters. It tells apart {labels}.

## Results

{scores}

Macro-F1 is the mean over classes. The calibration error compares confidence with accuracy: 0 is best.

## Use

```python
import longspan.models  # makes the architecture known to transformers
from transformers import pipeline

classify = pipeline("text-classification", model="PATH OF THIS FOLDER"){left}
print(classify("Some text."{cut}))
```

`longspan predict` labels whole files.

## Training

{data}

Training took {seconds} at {speed} tokens/s and {memory} of memory at most. `recipe.toml` holds every setting and
`environment.json` the versions and the machine; `longspan train recipe.toml` repeats the run.

## Limitations

The scores hold for documents like those it was trained on, and {kept}. It always answers with one of its
classes, also for documents of no such class or in another language. What is biased in the training data is biased
here.
"""
