"""Plans: their rows, what they leave untouched, and mistakes. No time is asserted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import longspan
from longspan import cli
from longspan.cli.flags import lengths_of
from longspan.errors import UserError
from longspan.machine import memory
from longspan.report.forecast import forecast_summary
from longspan.report.wrapping import wrapped
from longspan.results.forecast import Forecast, Suggestion
from longspan.training.base import LongspanTrainer
from longspan.verbs.plan import Watch

SETTINGS = ["data.tokens=words", "data.vocab_size=200", "model.dim=16", "model.heads=2", "model.depth=1"]
SETTINGS += ["model.wide=false", "training.max_minutes=0", "training.per_device_train_batch_size=8"]


def planned(data: Path, *more: str, **options: Any) -> Forecast:
    options = {"seconds": 0.0, "progress": False, **options}
    return longspan.plan("classify", [f"data.path={data}", *SETTINGS, *more], **options)


@pytest.mark.slow
def test_a_row_for_each_mixer_and_length(animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = memory.resident()
    found = planned(animals, "data.max_length=8", mixers=["additive", "additive+softmax", "softmax"], lengths=[8, 4])
    assert [(run.mixer, run.length) for run in found.runs] == [
        (mixer, length) for length in (4, 8) for mixer in ("additive", "additive+softmax", "softmax")
    ]
    assert found.of("softmax", 4).positions <= 4 < found.of("softmax").positions <= 8
    for run in found.runs:
        assert run.measured
        assert run.peak_memory_bytes > before
        assert run.seconds > run.steps * run.seconds_per_step > 0
        assert run.fits is (found.memory_bytes is None or run.peak_memory_bytes <= found.memory_bytes)
    assert found.cheaper_from.keys() == {"additive", "additive+softmax"}
    assert [one.mixer for one in found.suggestions] == ["additive", "additive+softmax", "softmax"]
    # Nothing was written.
    assert not list(tmp_path.iterdir())
    text = forecast_summary(found)
    assert all(word in text for word in ("data.max_length", "additive+softmax", "peak memory", "fits as it is"))


@pytest.mark.slow
def test_the_defaults_are_the_recipe_and_softmax(animals: Path) -> None:
    found = planned(animals)
    # No document is as long as the recipe reads, so that its own length is the longest document.
    assert list(dict.fromkeys(run.mixer for run in found.runs)) == ["additive", "softmax"]
    assert found.runs[-1].length == found.longest or found.runs[-1].length == 16384
    assert found.of("additive").positions >= found.longest


@pytest.mark.slow
def test_a_time_budget_limits_the_steps(animals: Path) -> None:
    most = planned(animals, "training.num_train_epochs=1000", mixers=["additive"]).of("additive")
    # 6 seconds are not enough for 1,000 epochs, with a checkpoint after each, on any machine.
    short = planned(animals, "training.num_train_epochs=1000", "training.max_minutes=0.001", mixers=["additive"])
    assert short.of("additive").steps < most.steps


@pytest.mark.slow
def test_gradient_accumulation_makes_fewer_and_longer_steps(animals: Path) -> None:
    one = planned(animals, "training.min_steps=0", mixers=["additive"], lengths=[8]).of("additive")
    more = ["training.gradient_accumulation_steps=2", "training.min_steps=0"]
    two = planned(animals, *more, mixers=["additive"], lengths=[8]).of("additive")
    assert two.steps == pytest.approx(one.steps / 2, abs=4)
    assert two.epochs == pytest.approx(one.epochs, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("room", "measured"), [(1 << 40, True), (-(1 << 40), False)])
def test_no_batch_is_tried_that_is_expected_not_to_fit(
    animals: Path, monkeypatch: pytest.MonkeyPatch, room: int, measured: bool
) -> None:
    """Without room for anything but the first row, what it took is all that is known."""
    read: list[int] = []
    step = LongspanTrainer.training_step

    def training_step(self: Any, model: Any, inputs: Any, *more: Any) -> Any:
        read.append(len(inputs["input_ids"]))
        return step(self, model, inputs, *more)

    monkeypatch.setattr(LongspanTrainer, "training_step", training_step)
    monkeypatch.setattr(memory, "available", lambda: memory.resident() + room)
    found = planned(animals, "training.per_device_train_batch_size=20", "data.max_length=8", mixers=["additive"])
    assert found.of("additive", 8).measured == found.of("additive", 8).fits == measured
    assert read[0] == 1
    assert max(read) == (20 if measured else 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixers": ["aditive"]}, "did you mean 'additive'"),
        ({"mixers": "additive"}, "expected mixers to be a list, got the text 'additive'"),
        ({"lengths": [0]}, "expected lengths of at least 1, got 0"),
        ({"mixers": ["linformer"], "lengths": [100_000]}, "lengths of at most .* for rows of linformer, got 100000"),
    ],
)
def test_mistakes_are_told_before_data_are_read(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        planned(tmp_path / "missing.csv", **options)


def test_tasks_without_lengths_take_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected no lengths for the task 'node_classification'"):
        longspan.plan("nodes", [f"data.path={tmp_path / 'missing.npz'}"], lengths=[8], progress=False)


@pytest.mark.parametrize(
    ("text", "lengths"), [("", []), ("512", [512]), ("512, 2000", [512, 2000]), ("3..13", [3, 6, 12])]
)
def test_lengths_are_lists_and_doublings(text: str, lengths: list[int]) -> None:
    assert lengths_of(text) == lengths


@pytest.mark.parametrize("text", ["many", "8..", "0", "16..8", "1.5"])
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected --lengths"):
        lengths_of(text)


def test_suggestions_stay_apart_where_lines_are_filled() -> None:
    """Words to copy are those of one mixer."""
    words = ["training.per_device_train_batch_size=512"]
    found = Forecast("r", "t", "", 1, 1 << 34, "cpu", [], {}, [Suggestion(name, words, False) for name in "ab"], 1.0)
    lines = wrapped(forecast_summary(found), 80).split("\n")
    assert [line[0] for line in lines if " fits as it is" in line] == ["a", "b"]


@pytest.mark.slow
def test_the_command(animals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "classify", f"data.path={animals}", *SETTINGS, "--mixers", "additive", "--lengths", "8"]
    assert cli.main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert [run["mixer"] for run in json.loads(out)["runs"]] == ["additive"]
    assert "measuring additive, data.max_length=8" in err
    assert cli.main([*words[:-1], "nine"]) == 2
    assert "expected --lengths" in capsys.readouterr().err
    assert cli.main(["plan", "classify"]) == 2
    assert "expected data.path=" in capsys.readouterr().err


def watch(lengths: list[int], took: Callable[[int], float], enough: float) -> tuple[Watch, bool]:
    """A watch that has seen steps until it stopped them, where a step of a length takes that many seconds."""
    now = [0.0]
    loads = np.array([[1.0, length, length**2] for length in lengths])
    made = Watch(loads, lambda known, load: load[2] < 50 * known[-1, 2], memory.Peak(), enough, lambda: now[0])
    made.on_train_begin()

    class Control:
        should_training_stop = False

    control: Any = Control()
    for number in made.order:
        now[0] += took(lengths[number])
        made.on_step_end(None, None, control)
        if control.should_training_stop:
            break
    return made, control.should_training_stop


def test_steps_are_measured_in_turns_until_there_is_enough() -> None:
    seen, stopped = watch([1, 2], lambda length: 0.25 * length, enough=4.0)
    # Each twice takes 1.5 seconds, and each turn half of that.
    assert stopped
    assert len(seen.seconds) == 12
    assert seen.steps()[:, :4].tolist() == [[1, 1, 1, 0.25], [1, 2, 4, 0.5]]
    assert len(watch([1, 2], lambda length: 0.25 * length, enough=0.0)[0].seconds) == 4
    assert len(watch([1, 2], lambda length: 5.0 * length, enough=99.0)[0].seconds) == 4


def test_a_batch_that_is_not_allowed_ends_the_steps() -> None:
    seen, stopped = watch([1, 2, 20], lambda length: 1.0, enough=1.0)
    assert stopped
    assert len(seen.seconds) == 4
