"""Pictures of results, as PNG files. Figures are made directly, without pyplot: no global state, no display."""

import functools
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from longspan.errors import missing_package
from longspan.machine.imports import is_installed
from longspan.machine.printing import note
from longspan.report import duration
from longspan.results import Comparison
from longspan.results.outputs import replacing
from longspan.results.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

_CHARACTERS = 24  # of a class name that fit on an axis


@functools.cache
def can_draw() -> bool:
    """Whether matplotlib is installed. If it is not, a notice says so, once."""
    found = is_installed("matplotlib")
    if not found:
        note(f"no figures are drawn: {missing_package('matplotlib', 'drawing them')}")
    return found


def needs_matplotlib(draw: Callable[P, None]) -> Callable[P, None]:
    """Decorator of functions whose last argument is the PNG file to write.

    Without matplotlib they draw nothing, and remove the figure of earlier results.
    """

    @functools.wraps(draw)
    def draw_if_possible(*arguments: P.args, **options: P.kwargs) -> None:
        if can_draw():
            draw(*arguments, **options)
        else:
            path = arguments[-1]
            assert isinstance(path, Path)
            path.unlink(missing_ok=True)

    return draw_if_possible


@needs_matplotlib
def learning_curve(history: Sequence[Mapping[str, Any]], kind: type[Scores], path: Path) -> None:
    """Draw the losses and the headline score of the validation split over epochs.

    The training loss and the first validation loss are the same quantity, which the legend names. It excludes label
    smoothing and class weights; where training fits only a part of the model, it is of that part alone.

    Args:
        history: Rows with `epoch` and any of `train_loss`, `validation_loss`, `validation_loss_as_trained` and the
            score.
        kind: The task's scores; where the headline is "loss", the losses are drawn alone.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    score = kind.headline()
    word = kind.shown()[score]
    loss = kind.shown().get("loss", "loss")
    part = any("validation_loss_as_trained" in row for row in history)
    names = {"train_loss": f"training: {loss}", "validation_loss": f"validation: {loss}"}
    if part:
        names = {
            "train_loss": f"training: {loss}, trained part",
            "validation_loss_as_trained": f"validation: {loss}, trained part",
            "validation_loss": f"validation: {loss}, whole model",
        }
    shown = {"loss": names}
    if score != "loss":
        shown[f"validation {word}"] = {f"validation_{score}": f"validation: {word}"}
    figure = Figure(figsize=(9 if len(shown) == 2 else 5.4, 3.6), layout="constrained")
    for axes, (title, keys) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        for key, name in keys.items():
            points = [(row["epoch"], row[key]) for row in history if row.get(key) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
        axes.set(title=title, xlabel="epoch")
        axes.grid(alpha=0.3)
        axes.set_xlim(left=0)
        if len(axes.get_lines()) > 1:
            # Below, where it hides no line.
            axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18))
        if kind.is_share() and title != "loss":
            axes.yaxis.set_major_formatter(PercentFormatter(1))
            low, high = axes.get_ylim()
            # A little beyond 100 %, so that points there are whole, and no label beyond it.
            axes.set_ylim(low, min(high, 1 + 0.02 * (1 - min(low, 0.99))))
            axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= 1])
    save(figure, path)


@needs_matplotlib
def comparison(result: Comparison, path: Path) -> None:
    """Draw the headline score, with its spread over seeds, against training speed: one point per mixer.

    A baseline, which takes no steps, is a line to reach, with its time in the legend. The test score is drawn if all
    have it.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    score, summary = result.kind.headline(), result.summary
    baselines = [row for row in result.baselines if row.error is None]
    tested = all("test" in row.scores for row in summary) and all("test" in row.scores for row in baselines)
    split = "test" if tested else "validation"
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.subplots()
    markers = itertools.cycle("os^Dv*Ph<>")
    for row, marker in zip(summary, markers, strict=False):
        speed, quality = row.tokens_per_second, row.scores[split][score]
        axes.errorbar(
            speed.mean,
            quality.mean,
            xerr=speed.spread or 0,
            yerr=quality.spread or 0,
            marker=marker,
            markersize=9,
            capsize=4,
            linestyle="none",
            label=row.mixer,
        )
    styles = itertools.cycle(("--", ":", "-."))
    for line, style in zip(baselines, styles, strict=False):
        label = f"{line.baseline} (baseline, {duration(line.seconds)})"
        axes.axhline(line.scores[split].numbers()[score], color="black", linestyle=style, linewidth=1, label=label)
    speeds(axes, [row.tokens_per_second.mean for row in summary])
    better = "" if result.kind.higher_is_better() else ", lower is better"
    axes.set(xlabel="training speed (tokens/s)", ylabel=f"{split} {result.kind.shown()[score]}{better}")
    if result.kind.is_share():
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    axes.grid(alpha=0.3)
    # Next to the picture: names at the points would overlap where mixers are equally good.
    figure.legend(loc="outside right upper", frameon=False)
    save(figure, path)


def speeds(axes: "Axes", values: Sequence[float]) -> None:
    """Let the horizontal axis show speeds: from zero on, or with a logarithmic scale where they differ much."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    if values and max(values) > 10 * min(values) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG, with names as they are: none is read as a formula."""
    for axes in figure.axes:
        # Such as "$5 to $10".
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set_parse_math(False)
    for legend in figure.legends:
        for text in legend.get_texts():
            text.set_parse_math(False)
    with warnings.catch_warnings():
        # Class names may hold characters that the font lacks; they become boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        with replacing(path) as fresh:
            figure.savefig(fresh, dpi=120, bbox_inches="tight", pad_inches=0.15)


def shortened(name: str) -> str:
    """Return the name of a class on one line, its middle left out if it is too long for an axis."""
    line = " ".join(name.split())
    # Names that differ only at one end remain distinct.
    return line if len(line) <= _CHARACTERS else f"{line[: _CHARACTERS // 2]}…{line[1 - _CHARACTERS // 2 :]}"
