"""Results of `longspan arena` for people: tables and a figure."""

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from longspan.report import count, duration, number, size, table
from longspan.report.pictures import needs_matplotlib, save, speeds
from longspan.results.arena import Arena, ArenaRun, Start

_STARTS: dict[Start, str] = {"scratch": "from scratch", "pretrained": "pretrained on the inputs"}
_LARGEST = 600.0
"""Area of the circle of the largest memory, in square points."""


def arena_summary(result: Arena, style: str = "simple") -> str:
    """Summary that `longspan arena` prints: accuracies by mixer and challenge, for each start, and costs of runs."""
    parts = []
    for start, words in _STARTS.items():
        if any(run.start == start for run in result.runs):
            parts.append(f"Test accuracy, {words}:\n\n{_accuracies(result, start, style)}")
    gains = _gains(result)
    parts += [f"Gain of pretraining, in points of accuracy:\n\n{table(*gains, style)}"] if gains[1] else []
    parts.append(f"Costs, from scratch:\n\n{_costs(result, style)}")
    return "\n\n".join([*parts, *_controls(result), *result.errors()])


def _accuracies(result: Arena, start: Start, style: str) -> str:
    rows = []
    for mixer in result.mixers:
        scores = [_score(result.of(challenge, start, mixer)) for challenge in result.challenges]
        rows.append([_named(result, mixer), *map(number, scores), *_mean_of(scores)])
    mean = ["mean"] if len(result.challenges) > 1 else []
    return table(["mixer", *result.challenges, *mean], rows, style)


def _gains(result: Arena) -> tuple[list[str], list[list[str]]]:
    rows = []
    for mixer in result.mixers:
        gains = []
        for challenge in result.challenges:
            first, then = (_score(result.of(challenge, start, mixer)) for start in _STARTS)
            gains.append(None if first is None or then is None else 100 * (then - first))
        if any(gain is not None for gain in gains):
            rows.append([_named(result, mixer), *("-" if gain is None else f"{gain:+.1f}" for gain in gains)])
    return ["mixer", *result.challenges], rows


def _costs(result: Arena, style: str) -> str:
    rows = [
        [
            challenge,
            _named(result, mixer),
            count(run.run.steps),
            duration(run.run.seconds),
            count(run.run.tokens_per_second),
            size(run.run.peak_memory_bytes),
            count(run.run.parameters),
        ]
        for challenge, mixer in itertools.product(result.challenges, result.mixers)
        if (run := result.of(challenge, "scratch", mixer)) is not None and run.run.error is None
    ]
    return table(["challenge", "mixer", "steps", "time", "tokens/s", "peak memory", "parameters"], rows, style)


def _controls(result: Arena) -> list[str]:
    """Say which mixers are not better than the control."""
    told = []
    for control, challenge in itertools.product(sorted(result.controls), result.challenges):
        scores = {run.run.mixer: score for run, score in _drawn(result, challenge)}
        behind = [mixer for mixer, score in scores.items() if mixer != control and score <= scores.get(control, 0)]
        if behind:
            told.append(f"On {challenge}, short convolutions alone are as good as {', '.join(behind)}, from scratch.")
    return told


def _named(result: Arena, mixer: str) -> str:
    return f"{mixer} (control)" if mixer in result.controls else mixer


def _score(run: ArenaRun | None) -> float | None:
    return None if run is None else run.score


def _mean_of(scores: Sequence[float | None]) -> list[str]:
    """Return a cell with the mean over several challenges; none where one is missing."""
    if len(scores) < 2:
        return []
    known = [score for score in scores if score is not None]
    return [number(statistics.fmean(known) if len(known) == len(scores) else None)]


@needs_matplotlib
def arena_figure(result: Arena, path: Path) -> None:
    """Draw accuracy against training speed, a panel for each challenge, as the Long Range Arena does (Tay et al. 2021).

    The area of a circle is proportional to the peak memory. Circles without a filling are from scratch, full ones
    pretrained; speed and memory are those from scratch. A dashed line is chance.
    """
    challenges = [name for name in result.challenges if _drawn(result, name)]
    if not challenges:
        return
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import PercentFormatter

    columns = min(3, len(challenges))
    rows = math.ceil(len(challenges) / columns)
    figure = Figure(figsize=(4.2 * columns + 1.8, 3.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    colours = {mixer: f"C{place}" for place, mixer in enumerate(result.mixers)}
    largest = max(run.run.peak_memory_bytes for name in challenges for run, _ in _drawn(result, name))
    for axes, challenge in itertools.zip_longest(panels, challenges):
        if challenge is None:
            axes.set_axis_off()
            continue
        for run, score in _drawn(result, challenge):
            colour, speed = colours[run.run.mixer], run.run.tokens_per_second
            area = _LARGEST * run.run.peak_memory_bytes / largest
            axes.scatter([speed], [score], s=area, facecolors="none", edgecolors=colour, clip_on=False)
            then = _score(result.of(challenge, "pretrained", run.run.mixer))
            if then is not None:
                axes.plot([speed, speed], [score, then], color=colour, linewidth=1)
                axes.scatter([speed], [then], s=area, color=colour, alpha=0.6, clip_on=False)
        if (chance := _drawn(result, challenge)[0][0].chance) is not None:
            axes.axhline(chance, color="gray", linestyle="--", linewidth=1)
        axes.set(title=challenge, xlabel="training speed (tokens/s)", ylabel="test accuracy")
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.margins(0.25)
        speeds(axes, [run.run.tokens_per_second for run, _ in _drawn(result, challenge)])
        axes.grid(alpha=0.3)
    shown = [
        Line2D([], [], marker="o", linestyle="none", color=colours[mixer], label=_named(result, mixer))
        for mixer in result.mixers
    ]
    starts = {run.start for run in result.runs}
    if len(starts) > 1:
        shown += [
            Line2D([], [], marker="o", linestyle="none", color="black", markerfacecolor=filling, label=words)
            for filling, words in (("none", _STARTS["scratch"]), ("black", "pretrained"))
        ]
    if any(run.chance is not None for run in result.runs):
        shown.append(Line2D([], [], color="gray", linestyle="--", linewidth=1, label="chance"))
    figure.legend(handles=shown, title="area: peak memory", loc="outside right upper", frameon=False)
    save(figure, path)


def _drawn(result: Arena, challenge: str) -> list[tuple[ArenaRun, float]]:
    """Return the runs from scratch that have a score, with it."""
    found = (result.of(challenge, "scratch", mixer) for mixer in result.mixers)
    return [(run, run.score) for run in found if run is not None and run.score is not None]
