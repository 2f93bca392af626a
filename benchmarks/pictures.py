"""Pictures of the benchmarks' curves, all of one kind."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure


@contextmanager
def curves(path: Path, xlabel: str, ylabel: str, *, height: float = 4.6, below: bool = False) -> Iterator[Axes]:
    """Give axes to draw labelled curves on, and write them as PNG with a legend, `below` them or on the right.

    Args:
        path: The file.
        xlabel: What is across, with its unit.
        ylabel: What is up, with its unit.
        height: Inches; the picture is 8 wide.
        below: Where the legend is, which has two columns there.
    """
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.subplots()
    yield axes
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    if below:
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    else:
        figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=120)
