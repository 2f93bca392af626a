"""Time budgets: runs end at their deadline whatever the machine does. The clock is moved by the work; none is real."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interruptions import interrupted, same_result
from transformers import Trainer, TrainingArguments

from longspan import recipes, train
from longspan.errors import UserError
from longspan.tasks.base.task import Recipe
from longspan.training.base import LongspanTrainer
from longspan.training.deadline import Deadline, schedule
from longspan.training.lengths import LengthTrainer

SETTINGS = [
    "data.tokens=words",
    "data.vocab_size=200",
    "data.validation_fraction=0.1",
    "data.test_fraction=0.1",
    "model.dim=16",
    "model.heads=2",
    "model.depth=1",
    "model.token_dropout=0.1",
    "training.num_train_epochs=100",
    # So slow that the last model is the best.
    "training.learning_rate=1e-3",
    "training.per_device_train_batch_size=8",
    "training.batch_tokens=240",
    "model.wide=false",
]


class Machine:
    """A clock that goes on with the work done.

    A step takes `fixed` seconds and `each` per position, scoring `scored` per token; the first step takes one second
    more. All of it takes `slower(now)` times as long.
    """

    fixed, each, scored = 0.05, 0.001, 0.001

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.slower: Callable[[float], float] = lambda now: 1.0
        #: Seconds of the last scoring.
        self.scoring = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> float:
        seconds *= self.slower(self.now)
        self.now += seconds
        return seconds

    def step(self, positions: int) -> None:
        self.pass_(self.fixed + self.each * positions + (self.steps == 0))
        self.steps += 1


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine()
    step, outputs = Trainer.training_step, LengthTrainer.outputs

    def training_step(self: Trainer, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        made.step(inputs["input_ids"].numel())
        return step(self, model, inputs, *args, **kwargs)

    def score(self: LengthTrainer, dataset: Any) -> torch.Tensor:
        made.scoring = made.pass_(made.scored * sum(dataset["length"]))
        return outputs(self, dataset)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", training_step)
        patch.setattr(LengthTrainer, "outputs", score)
        patch.setattr(Deadline, "clock", staticmethod(made))
        yield made


def recipe(animals: Path, *more: str) -> Recipe:
    return recipes.load("quickstart", [f"data.path={animals}", *SETTINGS, *more])


IDLE, BUSY, FREED = (lambda now: 1.0), (lambda now: 6.0 if now > 12 else 1.0), (lambda now: 6.0 if now < 15 else 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("slower", [IDLE, BUSY, FREED], ids=["idle", "busy midway", "idle midway"])
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("training.eval_strategy=no",),
        ("training.eval_strategy=steps", "training.eval_steps=9", "training.save_steps=9"),
        ("training.eval_strategy=steps", "training.eval_steps=0.2", "training.save_steps=0.2"),
        ("training.gradient_accumulation_steps=2",),
        ("training.average_last=2",),
    ],
    ids=["epochs", "no validation", "steps", "shares", "accumulation", "average"],
)
def test_a_run_ends_at_its_deadline(
    more: tuple[str, ...], slower: Callable[[float], float], animals: Path, tmp_path: Path, machine: Machine
) -> None:
    machine.slower = slower
    result = train(recipe(animals, *more, "training.max_minutes=0.5"), run=tmp_path / "run", progress=False)
    assert 0.8 * 30 < machine.now <= 1.15 * 30 + machine.scoring
    assert result.stopped == "deadline"
    assert result.steps == result.planned_steps == round(result.epochs * (result.steps / result.epochs))
    validated = [entry["step"] for entry in result.history if "validation_loss" in entry]
    if "training.eval_strategy=no" not in more:
        assert validated[-1] == result.steps
    if "training.eval_steps=0.2" in more and slower is IDLE:
        # Shares are of the steps that were expected to fit after the first ones.
        assert 4 <= len(validated) <= 7


def test_rates_follow_the_time(animals: Path, tmp_path: Path, machine: Machine, monkeypatch: Any) -> None:
    seen: list[tuple[float, float, float]] = []
    usual = Deadline.on_step_end

    def on_step_end(self: Deadline, *args: Any, lr_scheduler: Any, **kwargs: Any) -> None:
        seen.append((self.now() / self.end(), self.place / self.length, lr_scheduler.get_last_lr()[0] / 1e-3))
        usual(self, *args, **kwargs)

    monkeypatch.setattr(Deadline, "on_step_end", on_step_end)
    machine.slower = BUSY
    more = ["training.max_minutes=0.5", "training.lr_scheduler_type=cosine", "training.warmup_steps=0"]
    train(recipe(animals, *more), run=tmp_path / "run", progress=False)
    for time, place, rate in [each for each in seen if each[0] > 0.1]:
        # The first twentieth of the time counts by steps, and a step of the busy machine takes as much.
        assert place == pytest.approx(time, abs=0.1)
        assert rate == pytest.approx((1 + math.cos(math.pi * place)) / 2)
    assert seen[-1][1:] == (1, 0)


@pytest.mark.slow
def test_a_run_that_fits_equals_one_without_a_deadline(animals: Path, tmp_path: Path, machine: Machine) -> None:
    more = ["training.num_train_epochs=3", "training.lr_scheduler_type=cosine", "training.warmup_steps=5"]
    whole = train(recipe(animals, *more, "training.max_minutes=0"), run=tmp_path / "whole", progress=False)
    # Both validations of the first one, and steps, take about half of the time.
    result = train(recipe(animals, *more, "training.max_minutes=1"), run=tmp_path / "run", progress=False)
    assert (result.stopped, result.steps, result.epochs) == (None, whole.steps, 3)
    same_result(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_the_time_of_a_machine_that_becomes_idle_is_used(animals: Path, tmp_path: Path, machine: Machine) -> None:
    machine.slower = FREED
    result = train(recipe(animals, "training.max_minutes=0.5"), run=tmp_path / "freed", progress=False)
    machine.slower, before = (lambda now: 6.0), machine.now
    busy = train(recipe(animals, "training.max_minutes=0.5"), run=tmp_path / "busy", progress=False)
    assert machine.now - before <= 1.15 * 30 + machine.scoring
    assert result.steps > 3 * busy.steps


@pytest.mark.slow
@pytest.mark.parametrize("number", [5, 20])
def test_a_resumed_run_continues_on_the_remaining_time(
    number: int, animals: Path, tmp_path: Path, machine: Machine
) -> None:
    wanted = recipe(animals, "training.max_minutes=0.2")
    train(wanted, run=tmp_path / "whole", progress=False)
    machine.steps = machine.now = 0
    interrupted(wanted, tmp_path / "run", number)
    # What passes between sessions does not count.
    machine.now += 1000
    train(wanted if number == 5 else str(tmp_path / "run/recipe.toml"), run=tmp_path / "run", resume=True)
    assert machine.now - 1000 <= 1.15 * 12 + machine.scoring
    one, other = (json.loads((tmp_path / run / "metrics.json").read_text())["steps"] for run in ("run", "whole"))
    assert one == pytest.approx(other, abs=3)
    (tmp_path / "run/metrics.json").unlink()
    with pytest.raises(UserError, match=r"expected training\.max_minutes to be at least 0\.2, .* got 0\.05"):
        train(recipe(animals, "training.max_minutes=0.05"), run=tmp_path / "run", resume=True)
    # Nothing is left: it is finished without a step.
    result = train(wanted, run=tmp_path / "run", resume=True, progress=False)
    assert (result.steps, result.stopped) == (one, "deadline")


@pytest.mark.slow
def test_a_run_that_fits_is_resumed_to_the_same_weights(animals: Path, tmp_path: Path, machine: Machine) -> None:
    wanted = recipe(animals, "training.max_minutes=2", "training.num_train_epochs=3")
    train(wanted, run=tmp_path / "whole", progress=False)
    interrupted(wanted, tmp_path / "run", 30)
    train(wanted, run=tmp_path / "run", resume=True, progress=False)
    same_result(tmp_path / "run", tmp_path / "whole")


def test_a_finished_run_is_given_more_minutes(animals: Path, tmp_path: Path, machine: Machine) -> None:
    run, last = tmp_path / "run", ["training.load_best_model_at_end=false"]
    before = train(recipe(animals, "training.max_minutes=0.1", *last), run=run, progress=False).steps
    with pytest.raises(UserError, match="is finished"):
        train(recipe(animals, "training.max_minutes=0.1", *last), run=run, resume=True)
    longer = recipe(animals, "training.max_minutes=0.1", "training.num_train_epochs=101", *last)
    with pytest.raises(UserError, match=r"expected a larger training\.max_minutes .*ended at its deadline, got 0\.1"):
        train(longer, run=run, resume=True)
    machine.now = 0
    after = train(recipe(animals, "training.max_minutes=0.2", *last), run=run, progress=False, resume=True).steps
    assert after > 1.5 * before
    assert machine.now <= 1.15 * 6 + machine.scoring
    assert recipes.load(str(run)).options.max_minutes == 0.2


def test_early_stopping_comes_first(animals: Path, tmp_path: Path, machine: Machine) -> None:
    # Nothing improves.
    more = ["training.early_stopping_patience=2", "training.learning_rate=0", "training.max_minutes=9"]
    result = train(recipe(animals, *more), run=tmp_path / "run", progress=False)
    assert (result.stopped, result.epochs) == ("early", 3)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [10, 1000])
def test_a_minimum_of_steps_ends_at_the_deadline_too(
    steps: int, animals: Path, tmp_path: Path, machine: Machine
) -> None:
    more = ["training.num_train_epochs=1", f"training.min_steps={steps}", "training.max_minutes=0.5"]
    more += ["training.gradient_accumulation_steps=9"]
    result = train(recipe(animals, *more), run=tmp_path / "run", progress=False)
    assert result.stopped == (None if steps == 10 else "deadline")
    assert result.steps == 12


@pytest.mark.slow
@pytest.mark.parametrize(
    "named",
    [
        ["linear"],
        ["constant"],
        ["cosine", "training.warmup_steps=5"],
        ["polynomial", "training.warmup_steps=0.2", 'training.lr_scheduler_kwargs={"lr_end": 0.0}'],
        ["warmup_stable_decay", 'training.lr_scheduler_kwargs={"num_decay_steps": 9}'],
    ],
)
def test_rates_end_as_the_schedule_does(
    named: list[str], animals: Path, tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[LongspanTrainer] = []
    usual = LongspanTrainer.validation_scores
    monkeypatch.setattr(
        LongspanTrainer,
        "validation_scores",
        lambda self: ended.append(self) or usual(self),  # type: ignore[func-returns-value]
    )
    wanted = recipe(animals, "training.max_minutes=0.1", "training.lr_scheduler_type=" + named[0], *named[1:])
    train(wanted, run=tmp_path / "run", progress=False)
    (trainer,) = ended
    rate = 1e-3 if named == ["constant"] else 0.0
    assert trainer.lr_scheduler.get_last_lr() == pytest.approx([rate] * len(trainer.optimizer.param_groups))


def test_schedules_that_follow_scores_have_no_factor(tmp_path: Path) -> None:
    options = {"output_dir": str(tmp_path), "use_cpu": True}
    assert schedule(TrainingArguments(lr_scheduler_type="linear", **options), 10)(2.5) == 0.75
    arguments = TrainingArguments(lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="epoch", **options)
    assert schedule(arguments, 10)(2.5) == 1


@pytest.mark.slow
def test_it_says_when_training_ends_and_what_is_reserved(
    animals: Path, tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    train(recipe(animals, "training.max_minutes=0.1"), run=tmp_path / "run", progress=False)
    told = capsys.readouterr().err
    assert "longspan: training ends at about " in told
    assert "s of training.max_minutes=0.1 are reserved for the final scores and the report." in told
    few = recipe(animals, "training.max_minutes=0.3", "training.num_train_epochs=1")
    train(few, run=tmp_path / "few", progress=False)
    assert "steps are expected to fit into training.max_minutes=0.3." in capsys.readouterr().err


def test_final_scores_that_take_longer_than_the_budget(
    animals: Path, tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.scored = 0.1
    result = train(recipe(animals, "training.max_minutes=0.1"), run=tmp_path / "run", progress=False)
    assert result.steps > 0
    assert "more than half of training.max_minutes=0.1, and the run may end late, at about" in capsys.readouterr().err


def test_mistakes_cost_nothing(animals: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for given, message in (
        (["training.max_minutes=-1"], "at least 0 and finite, got -1"),
        (["training.max_minutes=nan"], "at least 0 and finite, got nan"),
        (["training.max_minutes=inf"], "at least 0 and finite, got inf"),
        (["training.max_minutes=1", "training.max_steps=5"], r"got both \(1 and 5\); set one of them to 0"),
    ):
        with pytest.raises(UserError, match=message):
            train(recipe(animals, *given), run=run, progress=False)
        assert not run.exists()


@pytest.mark.slow
def test_the_plans_of_former_runs_are_ignored(animals: Path, tmp_path: Path) -> None:
    """Their recipes have a number of steps in place of minutes, and their folders a plan."""
    run = tmp_path / "run"
    interrupted(recipe(animals, "training.max_steps=9"), run, 5)
    (run / "plan.json").write_text('{"max_minutes": 1, "steps": 9}')
    assert train(run, run=run, resume=True, progress=False).steps == 9
    # And with the minutes of the time.
    (run / "metrics.json").unlink()
    interrupted(recipe(animals, "training.num_train_epochs=2"), tmp_path / "other", 5)
    result = train(
        recipe(animals, "training.max_minutes=9", "training.num_train_epochs=2"), run=tmp_path / "other", resume=True
    )
    assert result.epochs == 2


@pytest.mark.slow
def test_streams_have_deadlines_too(tmp_path: Path, machine: Machine) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog.\n" * 90)
    small = ["model.dim=16", "model.depth=1", "model.heads=2", "training.segment_length=32", "training.warmup_steps=0"]
    small += [f"data.path={text}", "training.per_device_train_batch_size=4", "training.num_train_epochs=99"]
    machine.slower = lambda now: 6.0 if now > 3 else 1.0
    result = train(recipes.load("shakespeare", [*small, "training.max_minutes=0.1"]), run=tmp_path / "run")
    # Scoring takes no time here. Twelve steps of 0.18 seconds after the first second, then steps of 1.1 seconds.
    assert 6 - 0.3 - 1.1 < machine.now <= 6 - 0.3
    assert (result.stopped, result.steps) == ("deadline", 14)
    assert "test_parts" not in result.details
