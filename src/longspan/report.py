"""Results for people: tables, pictures and the model card. Nothing here computes a score."""

import inspect
import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from tabulate import tabulate

from longspan.mixers import Description
from longspan.recipes import Recipe

_WORDS = 24  # characters of a class name that fit on a picture's axis
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


def mixer_table(descriptions: Iterable[Description]) -> str:
    """Return what `longspan list` prints."""
    rows = []
    for entry in descriptions:
        flags = (entry.causal, entry.streaming, entry.cross, entry.packing)
        rows.append([entry.name, *("yes" if flag else "-" for flag in flags), entry.cost, entry.summary])
    headers = ["mixer", "causal", "streaming", "cross", "packing", "cost", "what it is"]
    return tabulate(rows, headers, tablefmt="simple", disable_numparse=True)


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


# Pictures. Figures are made directly, without pyplot, so that no global state or display is touched.


def learning_curve(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the losses and the validation accuracy over epochs.

    Args:
        history: Rows with `epoch` and any of `train_loss`, `validation_loss`, `validation_accuracy`.
        path: The PNG file to write.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    losses, accuracies = figure.subplots(1, 2)
    for axes, keys in ((losses, ("train_loss", "validation_loss")), (accuracies, ("validation_accuracy",))):
        for key in keys:
            points = [(row["epoch"], row[key]) for row in history if row.get(key) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=key.replace("_", " "))
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        axes.set_xlim(left=0)
        if axes.get_lines():
            axes.legend(frameon=False)
    losses.set_title("loss")
    accuracies.set_title("validation accuracy")
    accuracies.yaxis.set_major_formatter(PercentFormatter(1))
    _save(figure, path)


def confusion_picture(matrix: Sequence[Sequence[int]], names: Sequence[str], path: Path) -> None:
    """Draw a confusion matrix: rows true, columns predicted, counts as numbers, shares of each row as shades.

    Args:
        matrix: `(c, c)` counts.
        names: The `c` class names; long ones are shortened.
        path: The PNG file to write.
    """
    classes = len(names)
    side = min(1.8 + max(0.75 if classes <= 6 else 0.42, 2.4 / classes) * classes, 30)
    figure = Figure(figsize=(side + 1.2, side), layout="constrained")
    axes = figure.subplots()
    shares = [[cell / (sum(row) or 1) for cell in row] for row in matrix]
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class", format=PercentFormatter(1))
    short = [_short(name) for name in names]
    turned = classes > 6 or max(len(name) for name in short) > 8
    axes.set_xticks(range(classes), short, rotation=90 if turned else 0, fontsize=9)
    axes.set_yticks(range(classes), short, fontsize=9)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if classes <= 40:
        for row, column in itertools.product(range(classes), repeat=2):
            if matrix[row][column]:
                number = str(matrix[row][column])
                colour = "white" if shares[row][column] > 0.55 else "black"
                points = 10 if classes <= 6 else min(8, 26 / len(number))
                axes.text(column, row, number, ha="center", va="center", color=colour, fontsize=points)
    _save(figure, path)


def calibration_picture(reliability: Sequence[Mapping[str, float]], error: float, path: Path) -> None:
    """Draw accuracy against confidence, and how many documents fall into each bin.

    Args:
        reliability: The bins that `longspan.tasks.metrics.metrics` returns.
        error: The expected calibration error, for the title.
        path: The PNG file to write.
    """
    figure = Figure(figsize=(5, 5.6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    left = [row["from"] for row in reliability]
    width = [row["to"] - row["from"] for row in reliability]
    top.bar(left, [row["accuracy"] for row in reliability], width, align="edge", edgecolor="white", label="accuracy")
    middle = [row["confidence"] for row in reliability]
    top.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="as accurate as confident")
    top.plot(middle, [row["accuracy"] for row in reliability], "o", color="black", markersize=3)
    top.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy", title=f"expected calibration error {error:.3f}")
    top.legend(frameon=False, loc="upper left")
    bottom.bar(left, [row["count"] for row in reliability], width, align="edge", edgecolor="white", color="gray")
    bottom.set(xlabel="confidence", ylabel="documents")
    bottom.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    _save(figure, path)


def comparison_picture(summary: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw accuracy, with its spread over seeds, against training speed; one point per mixer.

    Args:
        summary: The `summary` of `longspan.compare.compare`'s result; test accuracy is drawn if all rows have it.
        path: The PNG file to write.
    """
    split = "test" if all("test_accuracy" in row for row in summary) else "validation"
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.subplots()
    markers = itertools.cycle("os^Dv*Ph<>")
    for row, marker in zip(summary, markers, strict=False):
        speed, quality = row["tokens_per_second"], row[f"{split}_accuracy"]
        axes.errorbar(
            speed["mean"],
            quality["mean"],
            xerr=speed["spread"] or 0,
            yerr=quality["spread"] or 0,
            marker=marker,
            markersize=9,
            capsize=4,
            linestyle="none",
            label=row["mixer"],
        )
    speeds = [row["tokens_per_second"]["mean"] for row in summary]
    if speeds and max(speeds) > 10 * min(speeds) > 0:
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set(xlabel="training speed (tokens/s)", ylabel=f"{split} accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    axes.grid(alpha=0.3)
    # Beside the picture: names at the points would cover each other where mixers are equally good.
    figure.legend(loc="outside right upper", frameon=False)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    for axes in figure.axes:
        _plain_text(axes)
    with warnings.catch_warnings():
        # Class names may hold characters that the font lacks; they become boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(path, dpi=120, bbox_inches="tight", pad_inches=0.15)


def _plain_text(axes: Axes) -> None:
    """Keep class names such as "$5 to $10" from being read as formulas."""
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)


def _short(name: str) -> str:
    line = " ".join(name.split())
    # Names that differ only at one end stay different.
    return line if len(line) <= _WORDS else f"{line[: _WORDS // 2]}…{line[1 - _WORDS // 2 :]}"


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

classify = pipeline("text-classification", model="PATH OF THIS FOLDER")
print(classify("Some text."))
```

`longspan predict` labels whole files, and reads documents as they were read in training.

## Training

{data}

Training took {seconds} at {speed} tokens/s and {memory} of memory at most. `recipe.toml` holds every setting and
`environment.json` the versions and the machine; `longspan train recipe.toml` repeats the run.

## Limitations

The scores hold for documents like those it was trained on, and {kept}. It always answers with one of its
classes, also for documents of no such class or in another language. What is biased in the training data is biased
here.
"""
