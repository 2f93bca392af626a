"""Pictures that all tasks share: that they are drawn, and at a size that can be read."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawing import drawn
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from longspan.report import arena, pictures
from longspan.report.arena import arena_figure
from longspan.results import ComparedRun, Comparison, MixerSummary, Spread
from longspan.results.arena import Arena, ArenaRun, Start
from longspan.results.scores import Scores, score


@dataclass(frozen=True)
class Accuracy(Scores):
    accuracy: float = score("accuracy", higher_is_better=True, share=True)


@dataclass(frozen=True)
class Loss(Scores):
    loss: float = score("nats per token", higher_is_better=False)


def comparison(kind: type[Scores], rows: list[MixerSummary]) -> Comparison:
    return Comparison("mine", "a task", kind, [], "runs", [], rows)


def row(mixer: str, split: str, name: str, value: Spread, speed: Spread) -> MixerSummary:
    return MixerSummary(mixer, {split: {name: value}}, Spread(9, None), Spread(1, None), speed, 2**20, 10, 1)


@pytest.mark.slow
def test_learning_curve(tmp_path: Path) -> None:
    steps = [{"epoch": 0.5, "train_loss": 0.7}, {"epoch": 1.0, "train_loss": 0.6}]
    epochs = [{"epoch": 1.0, "validation_loss": 0.65, "validation_accuracy": 0.6}]
    pictures.learning_curve(steps + epochs, Accuracy, tmp_path / "curve.png")
    pictures.learning_curve([], Accuracy, tmp_path / "empty.png")
    assert drawn(tmp_path / "curve.png")[0] > drawn(tmp_path / "curve.png")[1]
    drawn(tmp_path / "empty.png")
    pictures.learning_curve(steps + epochs, Loss, tmp_path / "loss.png")
    assert drawn(tmp_path / "loss.png")[0] < drawn(tmp_path / "curve.png")[0]


def test_what_cannot_be_drawn_fails_in_training_runs_of_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known failure: a figure like one that was drawn before was a copy of it."""
    caller: dict[str, Any] = {"__name__": "longspan.caller", "learning_curve": pictures.learning_curve}
    exec("def draw(*arguments): learning_curve(*arguments)", caller)
    history = [{"epoch": 1.0, "train_loss": 0.6, "validation_loss": 0.65, "validation_accuracy": 0.6}]
    caller["draw"](history, Accuracy, tmp_path / "curve.png")
    assert drawn(tmp_path / "curve.png")[1] < 100

    def draw(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Line2D, "draw", draw)
    with pytest.raises(ZeroDivisionError):
        caller["draw"](history, Accuracy, tmp_path / "curve.png")


@pytest.mark.parametrize("fastest", [2000.0, 200000.0])
def test_comparison(tmp_path: Path, fastest: float) -> None:
    rows = [
        row(name, "validation", "accuracy", Spread(0.8, spread), Spread(speed, spread))
        for name, speed, spread in (("additive", fastest, 0.1), ("softmax", 1000.0, None))
    ]
    pictures.comparison(comparison(Accuracy, rows), tmp_path / "comparison.png")
    drawn(tmp_path / "comparison.png")


def test_comparison_says_which_way_is_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = []

    def save(figure: Figure, path: Path) -> None:
        labels.append(figure.axes[0].get_ylabel())
        usual(figure, path)

    usual = pictures.save
    monkeypatch.setattr(pictures, "save", save)
    number = Spread(1.5, 0.1)
    for kind in (Accuracy, Loss):
        rows = [row("a+b", "test", kind.headline(), number, number)]
        pictures.comparison(comparison(kind, rows), tmp_path / "comparison.png")
    drawn(tmp_path / "comparison.png")
    assert labels == ["test accuracy", "test nats per token, lower is better"]


@pytest.mark.parametrize("values", [[2_000.0, 9_000.0], [2_000.0, 90_000.0]], ids=["near", "far"])
def test_speeds_are_written_as_plain_numbers(values: list[float]) -> None:
    axes = Figure().subplots()
    axes.plot(values, [0, 1], "o")
    pictures.speeds(axes, values)
    axes.figure.canvas.draw()
    labels = [label.get_text() for label in axes.get_xticklabels() + axes.get_xticklabels(minor=True)]
    shown = [label for label in labels if label]
    assert len(shown) > 2
    assert all(label.replace(",", "").isdigit() for label in shown)


def test_numbers_of_speeds_do_not_overlap() -> None:
    # As wide as a panel of the arena.
    figure = Figure(figsize=(4.2, 3.6))
    axes = figure.subplots()
    values = [13_000.0, 190_000.0]
    axes.plot(values, [0, 1], "o")
    axes.margins(0.25)
    pictures.speeds(axes, values)
    figure.canvas.draw()
    left, right = axes.get_window_extent().intervalx
    boxes = [each.get_window_extent() for each in axes.get_xticklabels() if each.get_text()]
    shown = sorted((box for box in boxes if left <= box.x0 + box.width / 2 <= right), key=lambda box: box.x0)
    assert len(shown) > 2
    assert all(first.x1 < second.x0 for first, second in itertools.pairwise(shown))


def test_the_figure_of_the_arena_shows_whole_circles_and_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(arena, "save", lambda figure, path: figures.append(figure))
    starts: list[tuple[Start, float]] = [("scratch", 0.36), ("pretrained", 0.38)]
    runs = [
        ArenaRun("listops", start, False, score, ComparedRun("local", 0, "", tokens_per_second=900.0), 0.1)
        for start, score in starts
    ]
    fast = ComparedRun("linear", 0, "", tokens_per_second=10.0, peak_memory_bytes=1 << 30)
    arena_figure(
        Arena("runs", 10.0, [], [*runs, ArenaRun("listops", "scratch", False, 0.37, fast, 0.1)]), tmp_path / "a"
    )
    (axes,) = figures[0].axes
    assert axes.collections
    assert not any(circles.get_clip_on() for circles in axes.collections)
    lines = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [np.asarray(line.get_ydata()).tolist() for line in lines] == [[0.1, 0.1]]
    assert axes.get_ylim()[0] < 0.1
    assert "chance" in [text.get_text() for text in figures[0].legends[0].get_texts()]
