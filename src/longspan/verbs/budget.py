"""Time budgets: how many optimizer steps fit into `training.max_minutes` on this machine, measured and decided once.

A copy of the model trains for a short while on the first batches. The measured speed decides the number of steps. The
training run that follows is an ordinary one of that many steps, so any learning-rate schedule ends where it should. The
same number given as `training.max_steps` repeats the run. The measured steps do not count: when they are taken, the end
of the schedule is unknown, and no other run could repeat them. A run's recipe.toml has the steps in place of
`training.max_minutes`, and its plan.json has the measurements.
"""

import dataclasses
import functools
import gc
import json
import math
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from longspan.errors import UserError
from longspan.results.outputs import write_json
from longspan.tasks.base.task import Prepared, Recipe
from longspan.training import processes
from longspan.training.base import LongspanTrainer
from longspan.training.callbacks import ReturnFreedMemory

FILE = "plan.json"
"""Where a run folder holds the plan."""

STEPS_SHARE, MOST_SECONDS = 0.02, 30.0
"""How long steps are measured: this share of the budget, but not longer than so many seconds."""

FEW_STEPS, FEW_STEPS_SHARE = 3, 0.05
"""So many steps are measured at least, unless they take more than this share of the budget."""

FIRST_STEP_SHARE = 0.25
"""The first step compiles and allocates; it is measured only if it takes more than this share of the budget."""

VALIDATION_SHARE, MOST_VALIDATION_SHARE = 0.01, 0.05
"""Validation is measured on parts of it until one takes this share of the budget; the first one may take more."""

_SHORT = 64
"""Tokens of each example in the first part of a validation."""


@dataclass(frozen=True)
class Plan:
    """What was decided, and from what.

    Attributes:
        max_minutes: the budget, for measuring, steps, validations and checkpoints. It excludes reading the data and the
            final scores.
        steps: number of optimizer steps.
        epochs: the same number in passes over the training data.
        seconds: expected duration, validations and checkpoints included.
        seconds_per_step: mean over these steps.
        validations: number of validations, those of a mean of checkpoints included.
        seconds_per_validation: expected duration of each.
        measured_steps: number of steps measured.
        everything: whether the whole training fits, as long as `training.num_train_epochs` allows.
    """

    max_minutes: float
    steps: int
    epochs: float
    seconds: float
    seconds_per_step: float
    validations: int
    seconds_per_validation: float
    measured_steps: int
    everything: bool

    def announcement(self) -> str:
        """Return in a sentence how many steps there will be, and when they will be done, from now on."""
        end = time.strftime("%H:%M" if self.seconds >= 120 else "%H:%M:%S", time.localtime(time.time() + self.seconds))
        steps = f"{self.steps:,} step{'s' if self.steps > 1 else ''}"
        share = "all that training.num_train_epochs allows" if self.everything else f"{self.epochs:.2g} epochs"
        return f"{steps} ({share}) fit into training.max_minutes={self.max_minutes:g}; training ends at about {end}."

    def write(self, folder: Path) -> None:
        """Write the plan into a run folder."""
        write_json(folder / FILE, dataclasses.asdict(self))


def read(folder: Path) -> Plan | None:
    """Return the plan in a run folder, or None without one.

    Raises:
        UserError: The file there is not one.
    """
    try:
        return Plan(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise UserError(
            f"expected the plan of a training run in {folder / FILE}, got something else ({error}); start the run "
            "again with --overwrite."
        ) from None


def check(recipe: Recipe) -> None:
    """Raise UserError if a recipe has a time budget and a number of steps."""
    minutes, steps = recipe.options.max_minutes, recipe.training.get("max_steps", -1)
    if minutes and steps > 0:
        raise UserError(
            f"expected training.max_minutes or training.max_steps, got both ({minutes:g} and {steps}); set one of them "
            "to 0."
        )


def planned(
    recipe: Recipe,
    model: PreTrainedModel,
    arguments: TrainingArguments,
    prepared: Prepared,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Recipe, Plan | None]:
    """Return the recipe with the number of steps that its time budget allows, and the plan, if it has a budget.

    A copy of the model is trained for a short while. All processes call this and agree; the first one says on standard
    error how many steps there are. The budget covers this call, too; `clock` returns seconds.

    Raises:
        UserError: There is not even time for one step with its validation.
    """
    minutes = recipe.options.max_minutes
    if not minutes:
        return recipe, None

    def make_trainer(given: TrainingArguments) -> LongspanTrainer:
        trainer = recipe.task.make_trainer(recipe, deepcopy(model), given, prepared)
        trainer.raise_epochs_to(recipe.options.min_steps)
        trainer.average_last = recipe.options.average_last
        return trainer

    found = processes.in_each(lambda: _plan(minutes, arguments, make_trainer, clock))
    if processes.rank() == 0:
        print(f"longspan: {found.announcement()}", file=sys.stderr)
    return _with(recipe, found), found


def recorded(recipe: Recipe, run_dir: Path) -> Recipe:
    """Return the recipe with the steps that a run folder has planned for its time budget, if that is no larger.

    Raises:
        UserError: They were planned for a larger budget.
    """
    minutes = recipe.options.max_minutes
    found = read(run_dir) if minutes else None
    if found is None or found.max_minutes < minutes:
        return recipe
    if found.max_minutes > minutes:
        raise UserError(
            f"expected training.max_minutes to be at least {found.max_minutes:g}, for which the {found.steps:,} steps "
            f"of {run_dir} were planned, got {minutes:g}; resume with the same or more."
        )
    return _with(recipe, found)


def _with(recipe: Recipe, found: Plan) -> Recipe:
    return dataclasses.replace(
        recipe,
        training={**recipe.training, "max_steps": found.steps},
        options=dataclasses.replace(recipe.options, max_minutes=0.0),
    )


def _plan(
    max_minutes: float,
    arguments: TrainingArguments,
    make_trainer: Callable[[TrainingArguments], LongspanTrainer],
    clock: Callable[[], float],
) -> Plan:
    start, budget = clock(), 60 * max_minutes
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(unrecorded(arguments, folder))
        stopwatch = _Stopwatch(budget, clock)
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        if arguments.device.type == "cpu":
            trainer.add_callback(ReturnFreedMemory())
        trainer.add_callback(stopwatch)
        trainer.train()
        cost = Cost(trainer, arguments, stopwatch.seconds)
        if arguments.eval_strategy != IntervalStrategy.NO:
            cost.validation = validation_seconds(trainer, budget, clock)
    left = budget - (clock() - start)
    limit = math.ceil(trainer.args.num_train_epochs * cost.steps_per_epoch)
    # The clock of the first process decides.
    most = bisect_right(range(1, limit + 1), left, key=cost)
    steps = int(processes.largest(most if processes.rank() == 0 else 0))
    if steps < 1:
        raise UserError(
            f"expected time for at least one step and its validation, about {(budget - left + cost(1)) / 60:.2g} "
            f"minutes on this machine, got training.max_minutes={max_minutes:g}; raise it."
        )
    found = Plan(
        max_minutes=float(max_minutes),
        steps=steps,
        epochs=round(steps / cost.steps_per_epoch, 3),
        seconds=cost(steps),
        seconds_per_step=cost.of_steps(steps) / steps,
        validations=cost.validations(steps),
        seconds_per_validation=cost.validation,
        measured_steps=len(stopwatch.seconds),
        everything=steps == limit,
    )
    del trainer, cost
    # A trainer holds itself in cycles.
    gc.collect()
    return found


def unrecorded(arguments: TrainingArguments, folder: str) -> TrainingArguments:
    """Return a copy of the arguments for a training that neither scores nor saves nor reports."""
    trial = copy(arguments)
    trial.output_dir = folder
    trial.eval_strategy = trial.logging_strategy = IntervalStrategy.NO
    trial.save_strategy = SaveStrategy.NO
    trial.load_best_model_at_end = trial.eval_on_start = trial.push_to_hub = False
    trial.report_to = []
    trial.max_steps = -1
    trial.disable_tqdm = True
    return trial


class _Stopwatch(TrainerCallback):
    """Times steps, and ends the training once it has seen enough."""

    def __init__(self, budget: float, clock: Callable[[], float]) -> None:
        self.budget = budget
        self.clock = clock
        self.seconds: list[float] = []
        self._last = 0.0

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._last = self.clock()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        now = self.clock()
        self.seconds.append(now - self._last)
        self._last = now
        # All processes stop after the same step.
        if processes.largest(self._enough() if processes.rank() == 0 else 0):
            control.should_training_stop = True

    def _enough(self) -> bool:
        steps, seconds = len(self.seconds) - 1, sum(self.seconds[1:])
        return (
            (steps >= FEW_STEPS and seconds >= min(MOST_SECONDS, STEPS_SHARE * self.budget))
            or seconds >= FEW_STEPS_SHARE * self.budget
            or self.seconds[0] >= FIRST_STEP_SHARE * self.budget
        )


def validation_seconds(trainer: LongspanTrainer, budget: float, clock: Callable[[], float]) -> float:
    """Return what a validation takes, from ever larger parts of it, the last two of which make a line."""
    sizes = trainer.validation_sizes()
    # Without what is not scored at all.
    order, longest = np.argsort(-sizes, kind="stable")[: max(1, np.count_nonzero(sizes))], sizes.max()
    rows = trainer.args.world_size
    if trainer.per_token_columns():
        rows, most = rows * trainer.args.per_device_eval_batch_size, _SHORT
    else:
        most = longest
    rows = min(len(order), rows)
    # Once for what the first call compiles and allocates.
    trainer.rehearse(_part(trainer, order[-rows:], most, sizes))
    before, read_before = 0.0, 0
    while True:
        # Of all lengths, the longest among them, and cut rather than few: a batch costs what its rows cost together.
        chosen = order[(np.arange(rows) * len(order) / rows).astype(int)]
        read = int(np.minimum(sizes[chosen], most).sum())
        part = _part(trainer, chosen, most, sizes)
        start = clock()
        trainer.rehearse(part)
        took = processes.largest(clock() - start if processes.rank() == 0 else 0.0)
        each = max(0.0, took - before) / max(1, read - read_before)
        enough = VALIDATION_SHARE if read_before else MOST_VALIDATION_SHARE
        if (rows == len(order) and most >= longest) or took >= enough * budget:
            return took + each * (int(sizes.sum()) - read)
        before, read_before = took, read
        if most < longest:
            most *= 4
        else:
            rows = min(len(order), rows * 4)


def _part(trainer: LongspanTrainer, rows: np.ndarray, most: int, sizes: np.ndarray) -> Dataset:
    """Return rows of the validation split, cut to their sizes and to `most` tokens where tokens can be left out."""
    dataset, cut = trainer.eval_dataset, trainer.per_token_columns()
    if not cut:
        return dataset.select(rows)
    given, kept = dataset[rows], np.minimum(sizes[rows], most).tolist()
    found = dict(given)
    for name in cut:
        # There may be several numbers at each position.
        numbers = [max(1, len(each) // max(1, own)) for each, own in zip(given[name], given["length"], strict=True)]
        found[name] = [each[: many * size] for each, many, size in zip(given[name], numbers, kept, strict=True)]
    found["length"] = [min(own, size) for own, size in zip(given["length"], kept, strict=True)]
    return Dataset.from_dict(found, features=dataset.features)


SAVED_BYTES_PER_SECOND = 200e6
"""Checkpoints are written and hashed about this fast, by estimate."""


@dataclass(frozen=True)
class Schedule:
    """When a training is validated and saved.

    Attributes:
        arguments: the arguments of the training.
        steps_per_epoch: number of optimizer steps in an epoch.
        averages: whether a mean of checkpoints is tried at the end.
        save: seconds of saving a checkpoint.
    """

    arguments: TrainingArguments
    steps_per_epoch: int
    averages: bool
    save: float

    @classmethod
    def of(cls, trainer: LongspanTrainer, arguments: TrainingArguments) -> "Schedule":
        """Return that of a trainer, with the arguments that its training will have."""
        weights = sum(weight.numel() * weight.element_size() for weight in trainer.model.parameters())
        steps = -(-len(trainer.batch_positions(0)) // arguments.gradient_accumulation_steps)
        # The weights and AdamW's two moments of each.
        return cls(arguments, steps, bool(trainer.average_last), 3 * weights / SAVED_BYTES_PER_SECOND)

    def seconds(self, step: float, validation: float, steps: int) -> float:
        """Return the seconds of a training, given those of a step and of a validation, and the number of steps."""
        return step * steps + self.validations(steps) * validation + self.saves(steps) * self.save

    def validations(self, steps: int) -> int:
        """Return the number of validations in and after `steps` steps."""
        found = self._times(self.arguments.eval_strategy, self.arguments.eval_steps, steps)
        # A mean of checkpoints is validated, and if it is no better, perhaps the last one again.
        return found + 2 if found and self.averages else found

    def saves(self, steps: int) -> int:
        """Return the number of checkpoints."""
        strategy = self.arguments.save_strategy
        if strategy == SaveStrategy.BEST:
            return self.validations(steps)
        return self._times(strategy, self.arguments.save_steps, steps)

    def _times(self, strategy: str, every: float | None, steps: int) -> int:
        if strategy == "epoch":
            return -(-steps // self.steps_per_epoch)
        if strategy == "steps" and steps:
            # Below 1 it is a share of all steps, as in `Trainer`.
            every = every or self.arguments.logging_steps
            return -(-steps // max(1, math.ceil(steps * every) if every < 1 else int(every)))
        return 0


class Cost:
    """What a training of n steps takes, in seconds, by the sizes of its batches and the times of its first steps.

    Attributes:
        validation: seconds of one validation.
        steps_per_epoch: number of optimizer steps in an epoch.
    """

    def __init__(self, trainer: LongspanTrainer, arguments: TrainingArguments, seconds: Sequence[float]) -> None:
        self.trainer = trainer
        self.arguments = arguments
        self.validation = 0.0
        self.schedule = Schedule.of(trainer, arguments)
        sizes = self._sizes(0)
        self.steps_per_epoch = len(sizes)
        seen = np.concatenate([self._sizes(epoch) for epoch in range(-(-len(seconds) // len(sizes)))])[: len(seconds)]
        # The first step only if there is no other.
        first = 1 if len(seconds) > 1 else 0
        self.fixed, self.each = fit(seen[first:], np.asarray(seconds[first:]))

    def __call__(self, steps: int) -> float:
        return self.of_steps(steps) + self.schedule.seconds(0.0, self.validation, steps)

    def of_steps(self, steps: int) -> float:
        """Return the seconds of the steps alone."""
        epochs, rest = divmod(steps, self.steps_per_epoch)
        positions = epochs * int(self._sizes(0).sum()) + (int(self._sizes(epochs)[:rest].sum()) if rest else 0)
        return self.fixed * steps + self.each * positions

    def validations(self, steps: int) -> int:
        """Return the number of validations in and after `steps` steps."""
        return self.schedule.validations(steps)

    @functools.lru_cache(maxsize=4)  # noqa: B019 (it lives as long as `_plan` runs)
    def _sizes(self, epoch: int) -> np.ndarray:
        """Return the positions, padding included, that each optimizer step of an epoch reads."""
        sizes = np.asarray(self.trainer.batch_positions(epoch), dtype=np.int64)
        return np.add.reduceat(sizes, np.arange(0, len(sizes), self.arguments.gradient_accumulation_steps))


def fit(sizes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Return seconds per step and seconds per position, both at least 0, that explain the times of steps.

    Medians choose the line (Theil 1950, Sen 1968), so that single slow steps do not tilt it. The line is then scaled to
    the mean. In the mean, a step's time is clipped to between half and twice that of the line.

    Args:
        sizes: (n,) positions of each step.
        seconds: (n,) their times.
    """
    spread = np.unique(np.linspace(0, len(sizes) - 1, 200).astype(int))
    x, y = sizes[spread].astype(float), seconds[spread]
    one, other = np.triu_indices(len(x), 1)
    different = x[one] != x[other]
    # A process may have no rows in some steps.
    read = x > 0
    fixed, each = (0.0, float(np.median(y[read] / x[read]))) if read.any() else (float(np.median(y)), 0.0)
    if different.any():
        one, other = one[different], other[different]
        slope = max(0.0, float(np.median((y[one] - y[other]) / (x[one] - x[other]))))
        rest = float(np.median(y - slope * x))
        if rest >= 0:
            fixed, each = rest, slope
    expected = fixed + each * sizes
    scale = float(np.clip(seconds, expected / 2, expected * 2).sum() / max(expected.sum(), 1e-12))
    return scale * fixed, scale * each
