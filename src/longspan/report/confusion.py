"""A figure of the confusion matrix."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from longspan.report.pictures import needs_matplotlib, save, shortened


@needs_matplotlib
def confusion(matrix: Sequence[Sequence[int]], names: Sequence[str], path: Path) -> None:
    """Draw a confusion matrix: rows true, columns predicted, counts as numbers, shares of each row as shades.

    Args:
        matrix: `(c, c)` counts.
        names: The `c` class names; long ones are shortened.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

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
