"""Pictures of a classifier's scores."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from longspan.report.pictures import save, shortened


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
    short = [shortened(name) for name in names]
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
    save(figure, path)


def calibration(reliability: Sequence[Mapping[str, float]], error: float, path: Path) -> None:
    """Draw accuracy against confidence, and how many documents fall into each bin.

    Args:
        reliability: The bins that `ClassificationScores` holds.
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
    save(figure, path)
