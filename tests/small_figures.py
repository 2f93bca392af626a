"""Figures of training runs and evaluations in tests: small, and without laying them out anew, which is half of their
time. Those that a test draws itself are as users see them."""

import sys
import traceback
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_savefig = Figure.savefig


def _write_small(figure: Figure, path: Path, **options: Any) -> None:
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(sys._getframe(1))]
    if frames[0] == "longspan.report.pictures":
        # Who called the function that draws: the decorator of such functions is between them.
        frames = [name for name in frames[2:] if name != "longspan.report.pictures"]
    if frames[0].startswith("test_"):
        _savefig(figure, path, **options)
    else:
        figure.set_layout_engine("none")
        figure.set_dpi(20)
        # Once: `savefig` draws a figure twice, first to measure it.
        FigureCanvasAgg(figure).print_png(path)


def install() -> None:
    """Draw such figures in this process, and in those forked from it."""
    Figure.savefig = _write_small  # type: ignore[method-assign, assignment]
