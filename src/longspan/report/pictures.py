"""Pictures of results, as PNG files. Figures are made directly, without pyplot: no global state, no display."""

import itertools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

_SHARES = ("accuracy", "macro_f1")  # scores from 0 to 1, shown in percent
_WORDS = 24  # characters of a class name that fit on an axis


def learning_curve(history: Sequence[Mapping[str, Any]], scores: Mapping[str, str], path: Path) -> None:
    """Draw the losses and the first validation score over epochs.

    Args:
        history: Rows with `epoch` and any of `train_loss`, `validation_loss` and the score.
        scores: The task's SCORES; where the first is "loss", the losses are drawn alone.
        path: The PNG file to write.
    """
    score, word = next(iter(scores.items()))
    shown = {"loss": ["train_loss", "validation_loss"]}
    if score != "loss":
        shown[f"validation {word}"] = [f"validation_{score}"]
    figure = Figure(figsize=(9 if len(shown) == 2 else 5.4, 3.6), layout="constrained")
    for axes, (title, keys) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        for key in keys:
            points = [(row["epoch"], row[key]) for row in history if row.get(key) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=key.replace("_", " "))
        axes.set(title=title, xlabel="epoch")
        axes.grid(alpha=0.3)
        axes.set_xlim(left=0)
        if axes.get_lines():
            axes.legend(frameon=False)
        if score in _SHARES and title != "loss":
            axes.yaxis.set_major_formatter(PercentFormatter(1))
    _save(figure, path)


def confusion(matrix: Sequence[Sequence[int]], names: Sequence[str], path: Path) -> None:
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


def calibration(reliability: Sequence[Mapping[str, float]], error: float, path: Path) -> None:
    """Draw accuracy against confidence, and how many documents fall into each bin.

    Args:
        reliability: The bins that `longspan.metrics.metrics` returns.
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


def loss_by_position(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw the loss against the position in the document, on a logarithmic axis.

    Args:
        rows: What `longspan.metrics.loss_by_position` returns.
        path: The PNG file to write.
    """
    figure = Figure(figsize=(5.4, 3.6), layout="constrained")
    axes = figure.subplots()
    edges = [row["from"] for row in rows] + [rows[-1]["to"] + 1]
    axes.stairs([row["loss"] for row in rows], edges, baseline=None, linewidth=2)
    axes.set(xscale="log", xlabel="position in the document (tokens)", ylabel="nats per token")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    _save(figure, path)


def comparison(
    summary: Sequence[Mapping[str, Any]], scores: Mapping[str, str], path: Path, *, lower_is_better: bool = False
) -> None:
    """Draw the first score, with its spread over seeds, against training speed; one point per mixer.

    Args:
        summary: The `summary` of `longspan.compare.compare`'s result; the test score is drawn if all rows have it.
        scores: The task's SCORES.
        path: The PNG file to write.
        lower_is_better: Whether the best score is the least; the axis says so.
    """
    score, word = next(iter(scores.items()))
    split = "test" if all(f"test_{score}" in row for row in summary) else "validation"
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.subplots()
    markers = itertools.cycle("os^Dv*Ph<>")
    for row, marker in zip(summary, markers, strict=False):
        speed, quality = row["tokens_per_second"], row[f"{split}_{score}"]
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
    better = ", lower is better" if lower_is_better else ""
    axes.set(xlabel="training speed (tokens/s)", ylabel=f"{split} {word}{better}")
    if score in _SHARES:
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
