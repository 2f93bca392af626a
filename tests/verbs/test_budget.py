"""Time budgets: the plan fits, and training equals that with the number of steps given. No real time is measured."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interruptions import interrupted, same_result
from transformers import Trainer

from longspan import recipes, train
from longspan.errors import UserError
from longspan.tasks.base.task import Recipe
from longspan.training.base import LongspanTrainer
from longspan.training.lengths import LengthTrainer
from longspan.verbs import budget

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
    """A clock that goes on with the work done, at a speed that is known.

    A step takes `fixed` seconds and `each` per position, a validation `each` per token. The first step takes a second
    more.
    """

    fixed, each = 0.05, 0.001

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0

    def __call__(self) -> float:
        return self.now

    def step(self, positions: int) -> None:
        self.now += self.fixed + self.each * positions + (self.steps == 0)
        self.steps += 1


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine()
    step, outputs = Trainer.training_step, LengthTrainer.outputs

    def training_step(self: Trainer, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        made.step(inputs["input_ids"].numel())
        return step(self, model, inputs, *args, **kwargs)

    def score(self: LengthTrainer, dataset: Any) -> torch.Tensor:
        made.now += made.each * sum(dataset["length"])
        return outputs(self, dataset)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", training_step)
        patch.setattr(LengthTrainer, "outputs", score)
        patch.setattr(budget, "planned", functools.partial(budget.planned, clock=made))
        yield made


def recipe(animals: Path, *more: str) -> Recipe:
    return recipes.load("quickstart", [f"data.path={animals}", *SETTINGS, *more])


def test_times_of_steps_become_a_line() -> None:
    random = np.random.default_rng(0)
    sizes = random.integers(100, 5000, 60)
    seconds = 0.02 + 1e-5 * sizes
    assert budget.fit(sizes, seconds) == pytest.approx((0.02, 1e-5))
    # A step that waits for something else for a whole minute counts twice, not a thousand times.
    seconds[7] += 60
    fixed, each = budget.fit(sizes, seconds)
    assert (fixed, each) == pytest.approx((0.02, 1e-5), rel=0.05)
    # One size; times that sizes do not explain; one step.
    assert budget.fit(np.array([512] * 5), np.array([1.0, 1.0, 1.0, 1.0, 1.4])) == pytest.approx((0, 1.08 / 512))
    assert budget.fit(np.array([1, 2, 3, 4]), np.array([3.0, 2.5, 2.0, 1.5])) == pytest.approx((2.25, 0))
    assert budget.fit(np.array([8]), np.array([2.0])) == pytest.approx((0, 0.25))
    # One of several processes may have nothing to read.
    assert budget.fit(np.array([0, 8]), np.array([0.0, 2.0])) == pytest.approx((0, 0.25))
    assert budget.fit(np.array([0, 0]), np.array([1.0, 3.0])) == pytest.approx((2, 0))


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("training.eval_strategy=no",),
        ("training.eval_strategy=steps", "training.eval_steps=9", "training.save_steps=9"),
        ("training.eval_strategy=steps", "training.eval_steps=0.2", "training.save_steps=0.2"),
        ("training.gradient_accumulation_steps=2",),
    ],
)
def test_training_with_its_validations_takes_the_budget(
    more: tuple[str, ...], animals: Path, tmp_path: Path, machine: Machine
) -> None:
    scored_after = []
    usual = LengthTrainer.validation_scores

    def validation_scores(self: LengthTrainer) -> Any:
        scored_after.append(machine.now)
        return usual(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LengthTrainer, "validation_scores", validation_scores)
        result = train(recipe(animals, *more, "training.max_minutes=0.2"), run=tmp_path / "run", progress=False)
    # Checkpoints take no time here, and the first step of a process is slow but once.
    assert 10.5 < scored_after[0] <= 12
    plan = budget.read(tmp_path / "run")
    assert plan is not None
    assert plan.steps == result.steps
    assert not plan.everything
    assert plan.measured_steps < 6
    validated = [entry for entry in result.history if "validation_loss" in entry]
    assert len(validated) == plan.validations
    if plan.validations:
        assert validated[-1]["step"] == plan.steps


def test_the_run_is_one_of_so_many_steps(animals: Path, tmp_path: Path, machine: Machine) -> None:
    wanted = recipe(animals, "training.max_minutes=0.2", "training.lr_scheduler_type=cosine")
    result = train(wanted, run=tmp_path / "run", progress=False)
    again = recipe(animals, f"training.max_steps={result.steps}", "training.lr_scheduler_type=cosine")
    train(again, run=tmp_path / "again", progress=False)
    same_result(tmp_path / "run", tmp_path / "again")
    # Whoever has only the run folder repeats it by its recipe.
    train(str(tmp_path / "run/recipe.toml"), run=tmp_path / "third", progress=False)
    same_result(tmp_path / "run", tmp_path / "third")
    assert not (tmp_path / "third/plan.json").exists()


@pytest.mark.parametrize("number", [5, 9])
def test_an_interrupted_run_keeps_its_plan(number: int, animals: Path, tmp_path: Path, machine: Machine) -> None:
    wanted = recipe(animals, "training.max_minutes=0.1")
    train(wanted, run=tmp_path / "whole", progress=False)
    plan = budget.read(tmp_path / "whole")
    assert plan is not None
    assert plan.measured_steps < 5 < 9 < plan.steps - 1
    # As before, so that the same steps are planned.
    machine.steps = 0
    interrupted(wanted, tmp_path / "run", number)
    machine.each *= 10
    # The recipe as it was given, or as the run folder holds it.
    train(wanted if number == 5 else str(tmp_path / "run/recipe.toml"), run=tmp_path / "run", resume=True)
    same_result(tmp_path / "run", tmp_path / "whole")
    (tmp_path / "run/metrics.json").unlink()
    message = rf"to be at least 0\.1, for which the {plan.steps} steps of .* got 0\.05; resume with"
    with pytest.raises(UserError, match=message):
        train(recipe(animals, "training.max_minutes=0.05"), run=tmp_path / "run", resume=True)


def test_a_finished_run_is_given_more_minutes(animals: Path, tmp_path: Path, machine: Machine) -> None:
    # The end of the first run is validated, which is not the end of an epoch of the other: the last model is kept.
    run, last = tmp_path / "run", ["training.lr_scheduler_type=constant", "training.load_best_model_at_end=false"]
    before = train(recipe(animals, "training.max_minutes=0.1", *last), run=run, progress=False).steps
    more = recipe(animals, "training.max_minutes=0.2", *last)
    machine.each *= 3
    message = rf"expected more than the {before} steps .* from training\.max_minutes=0\.2; raise it"
    with pytest.raises(UserError, match=message):
        train(more, run=run, resume=True)
    machine.each /= 3
    machine.steps = 0
    after = train(more, run=run, resume=True, progress=False).steps
    assert after > 1.5 * before
    plan = budget.read(run)
    assert plan is not None
    assert (plan.max_minutes, plan.steps) == (0.2, after)
    train(recipe(animals, f"training.max_steps={after}", *last), run=tmp_path / "whole", progress=False)
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "schedule",
    [
        ["linear"],
        ["cosine", "training.warmup_steps=5"],
        ["polynomial", "training.warmup_steps=0.2", 'training.lr_scheduler_kwargs={"lr_end": 0.0}'],
        ["warmup_stable_decay", 'training.lr_scheduler_kwargs={"num_decay_steps": 9}'],
    ],
)
def test_the_learning_rate_ends_at_zero(
    schedule: list[str], animals: Path, tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[LongspanTrainer] = []
    usual = LongspanTrainer.validation_scores
    monkeypatch.setattr(
        LongspanTrainer,
        "validation_scores",
        lambda self: ended.append(self) or usual(self),  # type: ignore[func-returns-value]
    )
    wanted = recipe(animals, "training.max_minutes=0.1", "training.lr_scheduler_type=" + schedule[0], *schedule[1:])
    train(wanted, run=tmp_path / "run", progress=False)
    (trainer,) = ended
    assert trainer.lr_scheduler.get_last_lr() == pytest.approx([0.0] * len(trainer.optimizer.param_groups))


def test_it_says_when_it_will_be_done(
    animals: Path, tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(recipe(animals, "training.max_minutes=0.1"), run=tmp_path / "run", progress=False)
    told = capsys.readouterr().err
    assert f"longspan: {result.steps} steps (" in told
    assert "fit into training.max_minutes=0.1; training ends at about " in told
    few = recipe(animals, "training.max_minutes=9", "training.num_train_epochs=1")
    result = train(few, run=tmp_path / "few", progress=False)
    plan = json.loads((tmp_path / "few/plan.json").read_text())
    assert (plan["everything"], plan["epochs"], plan["steps"]) == (True, 1, result.steps)
    told = capsys.readouterr().err
    assert f"{result.steps} steps (all that training.num_train_epochs allows) fit into training.max_minutes=9;" in told


def test_mistakes_cost_nothing(animals: Path, tmp_path: Path, machine: Machine) -> None:
    run = tmp_path / "run"
    for given, message in (
        (["training.max_minutes=-1"], "at least 0 .no limit., got -1"),
        (["training.max_minutes=nan"], "at least 0 .no limit., got nan"),
        (["training.max_minutes=inf"], "at least 0 .no limit., got inf"),
        (["training.max_minutes=1", "training.max_steps=5"], r"got both \(1 and 5\); set one of them to 0"),
        (["training.max_minutes=0.001"], r"at least one step and its validation, about .* minutes .* got training"),
    ):
        with pytest.raises(UserError, match=message):
            train(recipe(animals, *given), run=run, progress=False)
        assert not run.exists()


def test_ctrl_c_while_measuring_leaves_nothing(
    animals: Path, tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Machine, "step", pressed)
        with pytest.raises(KeyboardInterrupt):
            train(recipe(animals, "training.max_minutes=1"), run=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_damaged_plan_is_named(animals: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"max_minutes": 1')
    with pytest.raises(UserError, match=r"expected the plan of a training run in .*plan\.json"):
        train(recipe(animals, "training.max_minutes=1"), run=tmp_path, resume=True)


def test_streams_have_budgets_too(tmp_path: Path, machine: Machine) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog.\n" * 90)
    small = ["model.dim=16", "model.depth=1", "model.heads=2", "training.segment_length=32", "training.warmup_steps=0"]
    small += [f"data.path={text}", "training.per_device_train_batch_size=4", "training.num_train_epochs=99"]
    run = tmp_path / "run"
    result = train(recipes.load("shakespeare", [*small, "training.max_minutes=0.1"]), run=run, progress=False)
    again = recipes.load("shakespeare", [*small, f"training.max_steps={result.steps}"])
    train(again, run=tmp_path / "again", progress=False)
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "again/model.safetensors").read_bytes()
    # Two steps are measured after the first one, which takes a second more.
    step = Machine.fixed + Machine.each * 4 * 32
    assert result.steps == int((6 - 1 - 3 * step) / step)
