"""Data and model that are ready in time: the share of the rows that a run with a deadline reads."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longspan import evaluate, recipes, train
from longspan.data.sources.caching import SmallSample
from longspan.errors import UserError
from longspan.tasks.base.task import Recipe
from longspan.training.deadline import Deadline
from longspan.verbs import preparing

ROWS = 1000


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of which 4 % are the first sample."""
    monkeypatch.setattr(preparing, "FIRST_BYTES", 1000)
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"some words {n:07d},{'ab'[n % 2]}\n" for n in range(ROWS)))
    return path


class Clock:
    """A clock that goes on with the preparation: `fixed` seconds, and `each` per row; the first call takes more."""

    def __init__(self, fixed: float, each: float, first: float = 0.0) -> None:
        self.fixed, self.each, self.first, self.now = fixed, each, first, 0.0
        self.shares: list[float] = []

    def __call__(self) -> float:
        return self.now

    def prepare(self, recipe: Recipe, seed: int) -> Any:
        share = recipe.data.sample or 1.0
        self.now += self.fixed + self.each * share * ROWS + (0 if self.shares else self.first)
        self.shares.append(share)
        return SimpleNamespace(recipe=recipe)


def share_of(clock: Clock, table: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> float:
    """The share of the rows that a run of one minute reads."""
    monkeypatch.setattr(preparing, "prepare_whole_run", clock.prepare)
    wanted = recipes.load("classify", [f"data.path={table}", "training.max_minutes=1", *more])
    ready = preparing.prepare_run(wanted, 0, clock, clock())
    assert ready.recipe == wanted or ready.recipe.data.sample
    return float(ready.recipe.data.sample or 1.0)


@pytest.mark.parametrize(("fixed", "first"), [(0.0, 0.0), (1.0, 0.0), (0.5, 4.0)])
def test_all_rows_where_there_is_time(
    fixed: float, first: float, table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(fixed, 0.005, first)
    assert share_of(clock, table, monkeypatch) == 1
    assert clock.now <= 20
    said = capsys.readouterr().err
    assert "a sample of the data is read first, as there are 0 MB and training.max_minutes=1." in said


@pytest.mark.parametrize(("fixed", "first", "each"), [(0.0, 0.0, 0.1), (1.0, 0.0, 0.1), (0.5, 4.0, 0.05), (0, 0, 9.0)])
def test_a_sample_otherwise(
    fixed: float,
    first: float,
    each: float,
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock(fixed, each, first)
    share = share_of(clock, table, monkeypatch)
    assert clock.now <= 2.5 * 20 or clock.shares == [share]
    # Twice as many rows would not have been ready in time, all attempts included.
    if not first:
        assert clock.now + fixed + each * 2 * share * ROWS > 20
    said = capsys.readouterr().err
    assert f"this run reads a sample of {100 * share:.2g}% of the rows (data.sample={share:g}), so that" in said
    assert "about a third of training.max_minutes=1; raise it, or set data.sample=1 to read all." in said


def test_nothing_is_chosen_without_a_deadline_or_with_a_sample(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for more in ("training.max_minutes=0", "data.sample=1", "data.sample=0.3"):
        clock = Clock(0.0, 9.0)
        share_of(clock, table, monkeypatch, more)
        assert clock.shares == [0.3 if more == "data.sample=0.3" else 1.0]
    # Nor for little.
    monkeypatch.setattr(preparing, "FIRST_BYTES", 100_000)
    clock = Clock(0.0, 9.0)
    assert share_of(clock, table, monkeypatch) == 1


def test_a_sample_that_lacks_a_class_is_enlarged(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.0, 0.05)
    usual: Callable[[Recipe, int], Any] = clock.prepare

    def prepare(recipe: Recipe, seed: int) -> Any:
        ready = usual(recipe, seed)
        if recipe.data.sample and recipe.data.sample < 0.2:
            raise SmallSample("expected two classes.")
        return ready

    monkeypatch.setattr(clock, "prepare", prepare)
    assert share_of(clock, table, monkeypatch) >= 0.2


def test_mistakes_in_the_data_are_errors_as_ever(table: Path, tmp_path: Path) -> None:
    table.write_text(table.read_text().replace(",b\n", ",a\n"))
    wanted = [f"data.path={table}", "training.max_minutes=1"]
    with pytest.raises(UserError, match=r"^expected at least two classes in the training data, got only 'a'"):
        train("classify", wanted, tmp_path / "run", progress=False)


def test_the_run_keeps_its_sample(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it was trained on is never scored, and it goes on with what it has read."""
    now, usual = [0.0], preparing.prepare_whole_run

    def prepare(recipe: Recipe, seed: int) -> Any:
        now[0] += 0.1 * ROWS * (recipe.data.sample or 1.0)
        return usual(recipe, seed)

    monkeypatch.setattr(preparing, "prepare_whole_run", prepare)
    monkeypatch.setattr(Deadline, "clock", staticmethod(lambda: now[0]))
    small = ["model.dim=8", "model.depth=1", "model.heads=1", "model.wide=false", "training.num_train_epochs=1"]
    wanted = [f"data.path={table}", "training.max_minutes=1", "training.min_steps=0", *small]
    run = train("classify", wanted, tmp_path / "run", progress=False)
    share = recipes.load(str(tmp_path / "run")).data.sample
    assert 0.04 < share < 1
    scored = run.data["validation"]["documents"]
    assert run.data["train"]["documents"] + scored == pytest.approx(share * ROWS, rel=0.3)
    assert evaluate(tmp_path / "run").details["documents"] == scored
    assert f"the run reads {100 * share:.2g}% of the rows of its data (data.sample)." in capsys.readouterr().err
    # Other data are read whole.
    assert evaluate(tmp_path / "run", table).details["documents"] == ROWS
    longer = [*wanted[:1], "training.max_minutes=9", *wanted[2:-1], "training.num_train_epochs=2"]
    assert train("classify", longer, tmp_path / "run", resume=True, progress=False).data["train"] == (run.data["train"])
    assert recipes.load(str(tmp_path / "run")).data.sample == share
