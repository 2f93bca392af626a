"""Pictures of a classifier's scores."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from longspan.report.pictures import needs_matplotlib, save


@needs_matplotlib
def calibration(reliability: Sequence[Mapping[str, float]], error: float, path: Path) -> None:
    """Draw accuracy against confidence, and how many documents fall into each bin.

    Args:
        reliability: The bins that `ClassificationScores` holds.
        error: The expected calibration error, for the title.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

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
