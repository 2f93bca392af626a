"""What a training of n steps takes, from the times of a few: `Cost`; when it is validated and saved:
`Schedule`.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import TrainingArguments
from transformers.trainer_utils import SaveStrategy

from longspan.training.base import LongspanTrainer

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
