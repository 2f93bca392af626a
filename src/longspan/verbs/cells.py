"""A mixer at a length: what `plan` measures of its training."""

import dataclasses
import math
import tempfile
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path

from transformers import TrainingArguments, set_seed
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from longspan.machine import peaks
from longspan.results.forecast import Suggestion
from longspan.tasks.base.task import Counted, Prepared, Recipe
from longspan.training.base import LongspanTrainer
from longspan.training.deadline import SAVED_BYTES_PER_SECOND, scoring_seconds
from longspan.verbs import starting
from longspan.verbs.run_folders import RunFolder, arguments_of
from longspan.verbs.train import build_model
from longspan.verbs.trials import CLOCK, MOST_SECONDS, Load, Measured, StepCost, loads, measured

MARGIN = 1.15
"""Predicted memory is the measured one times this: between two returns of freed memory to the system (see
`training.callbacks.ReturnFreedMemory`) batches of changing shapes leave holes."""

_VALIDATION = 40.0
"""A time budget of so many seconds has validations measured for a few tenths of a second."""

_USABLE = 0.8
"""Share of the memory that measuring may take."""


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


@dataclasses.dataclass(frozen=True)
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


@dataclasses.dataclass(frozen=True)
class Cell:
    """A mixer at a length, and what was found out about it.

    Attributes:
        mixer: the mixer.
        length: the value of the key for the length, if there is one.
        recipe: the recipe of both.
        loads: what the batches of an epoch read.
        points: measured steps; none where they would take too long.
        real_share: share of positions that are no padding.
        base_bytes: memory in use before training.
        other_bytes: the most memory in use before and after training.
        schedule: when validations and checkpoints are made.
        validation: seconds of a validation; None if it was not measured.
        validation_rows: number of its rows.
        steps: number of steps without a time budget.
    """

    mixer: str
    length: int | None
    recipe: Recipe
    loads: list[Load]
    points: list[Measured]
    real_share: float
    base_bytes: int
    other_bytes: int
    schedule: Schedule
    validation: float | None
    validation_rows: int
    steps: int

    @property
    def accumulated(self) -> int:
        """Batches in a step."""
        return int(self.recipe.training.get("gradient_accumulation_steps", 1))

    @property
    def largest(self) -> Load:
        """The most that a batch reads."""
        return Load(max(load.positions for load in self.loads), max(load.pairs for load in self.loads))

    def bytes(self, extra: StepCost, load: Load) -> float:
        """Return the memory that training on batches like one takes, with the margin."""
        return MARGIN * max(self.other_bytes, self.base_bytes + extra(load))


class Cells:
    """Measures cells, one after the other.

    Attributes:
        available: bytes of memory that there are; None if the system does not say.
        peak: measures memory.
        preparing: the most bytes in use so far while no training ran.
    """

    def __init__(self, available: int | None, peak: peaks.Peak, enough: float) -> None:
        self.available, self.peak, self.enough = available, peak, enough
        self.preparing = 0

    def count_preparing(self) -> None:
        """Count the memory in use since the last mark as that of preparing a training."""
        self.preparing = max(self.preparing, self.peak.most())

    def cell(
        self,
        name: str,
        length: int | None,
        recipe: Recipe,
        prepared: Prepared,
        counted: Counted | None,
        before: Sequence[Measured],
    ) -> Cell:
        """Return what was found out about a mixer at a length.

        A row is measured first, and then the largest batches that are not expected to take too much memory or time:
        those of the recipe, an eighth of them, and so on. So no batch is tried of which nothing is known.

        Args:
            name: the mixer.
            length: the length.
            recipe: the recipe of both.
            prepared: its data.
            counted: what was counted in them, for models that contain it.
            before: what was measured of the mixer at other lengths.
        """
        sizes = [recipe]
        while not before and sizes[-1].training["per_device_train_batch_size"] > 1:
            sizes.append(smaller(sizes[-1]))
        cell = found = self._measured(name, length, sizes.pop(), prepared, counted, before, recipe)
        while sizes:
            # From the largest on, until one is measured; those above it may be expected to fit then.
            skipped: list[Recipe] = []
            for tried in sizes:
                larger = self._measured(name, length, tried, prepared, counted, found.points, recipe)
                cell = larger if tried is recipe else cell
                if larger.points:
                    found, sizes = larger, skipped
                    break
                skipped.append(tried)
            else:
                break
        return dataclasses.replace(cell, points=found.points, real_share=found.real_share, validation=found.validation)

    def _measured(
        self,
        name: str,
        length: int | None,
        recipe: Recipe,
        prepared: Prepared,
        counted: Counted | None,
        before: Sequence[Measured],
        whole: Recipe,
    ) -> Cell:
        """Measure a recipe: that of the cell, the `whole` one, or one with smaller batches, for a shorter time."""
        with tempfile.TemporaryDirectory() as folder:
            arguments = arguments_of(recipe, RunFolder(Path(folder, "run"), "new"), False)
            set_seed(arguments.seed)
            model = build_model(recipe, prepared, starting.start_of(recipe), counted)[0]
            trainer = recipe.task.make_trainer(recipe, model, unrecorded(arguments, folder), prepared)
            trainer.at_least(recipe.options.min_steps)
            trainer.layer_decay, trainer.average_last = recipe.options.layer_decay, recipe.options.average_last
            found, schedule = loads(trainer), Schedule.of(trainer, arguments)
            epochs = trainer.args.num_train_epochs
            steps = arguments.max_steps if arguments.max_steps > 0 else math.ceil(epochs * schedule.steps_per_epoch)
            self.count_preparing()
            peaks.release()
            base = peaks.resident()
            worthwhile = partial(self._worthwhile, before, base)
            enough = self.enough if recipe is whole else 0.0
            points, real = measured(trainer, found, self.peak, worthwhile, enough)
            validated = arguments.eval_strategy != IntervalStrategy.NO
            self.peak.mark()
            validation = (
                scoring_seconds(trainer, trainer.rehearse, _VALIDATION, CLOCK) if validated and points else None
            )
            cell = Cell(
                name,
                length,
                recipe,
                found,
                points,
                real,
                base,
                max(self.preparing, self.peak.most()),
                schedule,
                validation if validated else 0.0,
                len(trainer.eval_dataset),
                steps,
            )
        del model, trainer
        peaks.release()
        self.peak.mark()
        return cell

    def _worthwhile(self, before: Sequence[Measured], base: int, load: Load) -> bool:
        """Say whether a batch would take neither too long nor too much memory, by what was measured before."""
        if not before:
            return True
        largest = max(before, key=lambda point: (point.load.pairs, point.load.positions))
        ratio = max(1.0, load.pairs / max(1.0, largest.load.pairs))
        fits = self.available is None or base + ratio * largest.extra_bytes < _USABLE * self.available
        return fits and largest.seconds * ratio < MOST_SECONDS


_SHORTEST, _DOUBLINGS = 16, 16
_MOST_TIMES = 6
"""Batches are not made larger than so many doublings of the recipe's."""


def cheaper_from(cost: StepCost, other: StepCost, recipe: Recipe) -> int | None:
    """Return from which length on full batches take less time per position by `cost` than by `other`.

    Lengths are tried in steps of a quarter of a doubling, up to a million. 0 means at all of them, None at none.
    """

    def wins(length: int) -> bool:
        rows = _rows(recipe, length)
        load = Load(rows * length, rows * length**2)
        return cost(load) < other(load)

    lengths = [round(_SHORTEST * 2 ** (step / 4)) for step in range(4 * _DOUBLINGS + 1)]
    found = None
    for length in reversed(lengths):
        if not wins(length):
            return found
        found = length
    return 0


def fitting(
    mixer: str,
    recipe: Recipe,
    key: str,
    length: int | None,
    largest: Load,
    bytes_of: Callable[[Load], float],
    memory: int,
) -> Suggestion:
    """Return the largest batch of a recipe that fits into memory; if not even one row does, the longest row.

    Sizes are powers of two of the recipe's. Where batches are made smaller, gradients are accumulated over more of
    them.

    Args:
        mixer: the mixer.
        recipe: its recipe.
        key: the key that sets the length, "" for none.
        length: its value; 0 or None if there is none.
        largest: what the recipe's largest batch reads.
        bytes_of: the memory that a batch takes.
        memory: the memory that there is.
    """
    row = largest.length
    tokens = getattr(recipe.options, "batch_tokens", 0)
    size = recipe.training["per_device_train_batch_size"]
    limited = bool(tokens) and size * row > tokens
    name, value = ("batch_tokens", tokens) if limited else ("per_device_train_batch_size", size)
    for doublings in range(_MOST_TIMES, -31, -1):
        factor = 2.0**doublings
        if value * factor < 1:
            break
        load = Load(max(row, factor * largest.positions), max(row**2, factor * largest.pairs))
        if bytes_of(load) <= memory:
            words = [f"training.{name}={int(value * factor)}"]
            if factor < 1:
                each = recipe.training.get("gradient_accumulation_steps", 1)
                words.append(f"training.gradient_accumulation_steps={int(each / factor)}")
            return Suggestion(mixer, words, needed=factor < 1)
    power = 2 if key == "data.max_side" else 1
    longest = length or round(row)
    while key and longest > 1:
        longest //= 2
        shorter = row * (longest / (length or row)) ** power
        if bytes_of(Load(shorter, shorter**2)) <= memory:
            return Suggestion(mixer, [f"{key}={longest}", "training.per_device_train_batch_size=1"], needed=True)
    return Suggestion(mixer, [], needed=True)


def smaller(recipe: Recipe) -> Recipe:
    """Return a recipe whose batches are an eighth of another's, of a row at least."""
    rows = max(1, recipe.training["per_device_train_batch_size"] // 8)
    options, tokens = recipe.options, getattr(recipe.options, "batch_tokens", 0)
    if tokens:
        options = dataclasses.replace(options, batch_tokens=max(1, tokens // 8))
    return dataclasses.replace(
        recipe, training={**recipe.training, "per_device_train_batch_size": rows}, options=options
    )


def _rows(recipe: Recipe, length: int) -> int:
    """Return how many rows of a length a batch has."""
    size, tokens = recipe.training["per_device_train_batch_size"], getattr(recipe.options, "batch_tokens", 0)
    return int(min(size, max(1, tokens // length))) if tokens else int(size)
