"""A mixer at a length: what `plan` measures of its training."""

import dataclasses
import math
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from transformers import set_seed
from transformers.trainer_utils import IntervalStrategy

from longspan.machine import peaks
from longspan.tasks.base import Recipe
from longspan.tasks.counts import Counted
from longspan.tasks.prepared import Prepared
from longspan.verbs import budget, starting, suggestions
from longspan.verbs.costs import Schedule
from longspan.verbs.run_folders import RunFolder
from longspan.verbs.step_costs import Load, Measured, StepCost
from longspan.verbs.train import build_model
from longspan.verbs.training_arguments import arguments_of
from longspan.verbs.trials import CLOCK, MOST_SECONDS, loads, measured

MARGIN = 1.15
"""Predicted memory is the measured one times this: between two returns of freed memory to the system (see
`training.callbacks.ReturnFreedMemory`) batches of changing shapes leave holes."""

_VALIDATION = 40.0
"""A time budget of so many seconds has validations measured for a few tenths of a second."""

_USABLE = 0.8
"""Share of the memory that measuring may take."""


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
            sizes.append(suggestions.smaller(sizes[-1]))
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
            trainer = recipe.task.make_trainer(recipe, model, budget.unrecorded(arguments, folder), prepared)
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
            validation = budget.validation_seconds(trainer, _VALIDATION, CLOCK) if validated and points else None
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
