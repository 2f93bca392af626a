"""Time budgets: a deadline for a training run, and learning rates that follow the time until then."""

import math
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, get_scheduler
from transformers.trainer_callback import ExportableState

from longspan.errors import UserError
from longspan.report import duration
from longspan.training import processes
from longspan.training.base import LongspanTrainer

RECENT_SHARE = 0.05
"""Seconds per step are a mean over about this share of the budget."""

START_SHARE, START_STEPS = 0.05, 3
"""The length of the schedule is fixed after this share of the time for steps, not before this number of them."""

SLOW_START_SHARE = 0.25
"""It is fixed in any case after this share of that time."""

MOST_RESERVE_SHARE = 0.5
"""Training gets at least the rest of the budget, even if the run then ends late."""

SAVED_BYTES_PER_SECOND = 200e6
"""Checkpoints are written and hashed about this fast, until one was measured."""

FILES_SECONDS, FILES_SHARE = 3.0, 0.05
"""Seconds for figures, model card and report, at most this share of the budget."""

_GO_ON, _MEASURE, _LAST_STEP = 0.0, 1.0, 2.0


class Deadline(TrainerCallback, ExportableState):
    """Ends training in time for the run to be done by its deadline; learning rates follow the time.

    The recipe's schedule has a length of S steps: those that are expected to fit when a little of the budget has
    passed, at most the N that the recipe allows. The place p on the schedule moves in each step n:

        p = p + (S - p) / (N - n)           while the N - n steps that are left are expected to fit
        p = p + (S - p) · step / left       otherwise, for seconds of the step and seconds that were left before it

    So a run whose steps all fit has S = N and p = n: it equals one without a deadline. Otherwise p is at the end of the
    schedule when time is up, whether the machine becomes busy or idle.

    Time for what comes after the last step is reserved: a validation, a checkpoint, the final scores and the report.
    Scoring is first measured on parts of the validation split, then in each validation, and is taken to slow down as
    steps do. What a new model writes may be far longer than what a trained one does: that is measured again in time.

    The first process decides, by its clock. The state is saved with each checkpoint, so that a resumed run continues on
    the remaining time.

    Args:
        trainer: The trainer.
        minutes: Minutes from `start` to the end of the run.
        test: The test split, if it is scored at the end.
        start: When the run began to read its data, by `clock`; by default, now.

    Attributes:
        reached: Whether training has ended because of the deadline.
    """

    def __init__(
        self, trainer: LongspanTrainer[Any], minutes: float, test: Dataset | None, start: float | None = None
    ) -> None:
        self.trainer, self.minutes, self.budget = trainer, minutes, 60 * minutes
        self.reached = False
        size = trainer.scoring_sizes(trainer.eval_dataset).sum()
        self._test_share = 0.0 if test is None else float(trainer.scoring_sizes(test).sum() / max(1, size))
        self._start = self.clock() if start is None else start
        self._last_event = self._last_step = self._prepared = 0.0
        self._steps = 0
        self._schedule_length, self._schedule = 0, lambda place: 1.0
        self._recent_seconds = self._recent_steps = 0.0
        self._measures = False
        # Saved with checkpoints.
        self.elapsed = 0.0
        self.limits: list[float] = []
        self.place, self.length, self.fixed = 0.0, 0, False
        self.pace = self.pace_when_measured = 0.0
        self.step_seconds = self.other_seconds = 0.0
        self.validation: float | None = None
        self.final: float | None = None
        self.measured_at = 0.0
        parameters = trainer.model.parameters()
        # The weights and AdamW's two moments of each.
        self.saving = 3 * sum(one.numel() * one.element_size() for one in parameters) / SAVED_BYTES_PER_SECOND

    @staticmethod
    def clock() -> float:
        """Seconds from any origin."""
        return time.perf_counter()

    def state(self) -> dict[str, Any]:
        names = ["limits", "place", "length", "fixed", "pace", "pace_when_measured", "step_seconds", "other_seconds"]
        names += ["validation", "final", "measured_at", "saving"]
        return {"args": {}, "attributes": {name: getattr(self, name) for name in names} | {"elapsed": self.now()}}

    def now(self) -> float:
        """Seconds of the budget that have passed, over all sessions of the run."""
        return self.elapsed + self.clock() - self._start

    def reserve(self) -> float:
        """Seconds from the last step to the end of the run."""
        validates, averages = self.trainer.args.eval_strategy != "no", bool(self.trainer.average_last)
        # A mean of checkpoints is scored, and if it is no better, perhaps the last one again.
        scoring = (self.validation or 0.0) * (validates + 2 * averages)
        scoring += (self.final or 0.0) * (self._test_share + (self.trainer.scores_again or not validates))
        slower = self.pace / self.pace_when_measured if self.pace_when_measured else 1.0
        files = min(FILES_SECONDS, FILES_SHARE * self.budget)
        # The model is a third of a checkpoint.
        return slower * scoring + self.saving * 4 / 3 + files

    def end(self) -> float:
        """Seconds of the budget after which no step should end."""
        return self.budget - min(self.reserve(), MOST_RESERVE_SHARE * self.budget)

    # What happens in training

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, lr_scheduler: Any = None, **_: Any
    ) -> None:
        limits = [self.budget, float(state.max_steps)]
        if self.limits != limits:
            # A new run, or one that was given more.
            self.limits, self.place, self.length, self.fixed = limits, float(state.global_step), state.max_steps, False
        self._set_schedule()
        if isinstance(lr_scheduler, LambdaLR):
            lr_scheduler.lr_lambdas = [lambda step: self._schedule(self.place)] * len(lr_scheduler.base_lrs)
            for group, rate in zip(lr_scheduler.optimizer.param_groups, lr_scheduler.base_lrs, strict=True):
                group["lr"] = rate * self._schedule(self.place)
        self._last_event = self._last_step = self._prepared = self.now()
        self._end_if_due(state, control)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        first = processes.rank() == 0
        decision = processes.total(self._decide(state) if first else [0.0] * 4)
        self.place, self.length, fixed, then = decision[0], int(decision[1]), bool(decision[2]), decision[3]
        self._set_schedule()
        if fixed and not self.fixed:
            self.fixed = True
            # Settings that are shares of all steps.
            state.compute_steps(args, self.length)
            if first:
                print(f"longspan: {self._announcement(state)}", file=sys.stderr)
        self._measures = then == _MEASURE
        if then == _LAST_STEP:
            # The Trainer evaluates and saves after it as after every last step.
            state.max_steps = state.global_step + 1
            self.reached = state.max_steps < self.limits[1]

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._measures:
            self._measures = False
            self._measure()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        took = self._lap(self.now())
        self.other_seconds += took
        if not self.trainer.scores_again:
            self.final = took
        elif self.final is not None and self.validation:
            self.final *= took / self.validation
        self.validation, self.pace_when_measured = took, self.pace
        self._end_if_due(state, control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.saving = self._lap(self.now())
        self.other_seconds += self.saving

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step >= state.max_steps:
            # The Trainer knows only the epochs of the recipe.
            control.should_training_stop = True

    # What the first process decides

    def _decide(self, state: TrainerState) -> list[float]:
        """Return the place on the schedule, its length, whether that is fixed, and what follows the step."""
        now, before = self.now(), self._last_step
        self._last_step = now
        self._count_step(self._lap(now))
        limit, step = int(self.limits[1]), state.global_step + 1
        end, then, fixed = self.end(), _GO_ON, self.fixed
        # Validations and checkpoints take their share.
        each = max(1e-9, self.pace * (1 + self.other_seconds / max(self.step_seconds, 1e-9)))
        fits = (limit - step) * each <= end - now
        self.trainer.expected_steps = limit if fits else step + max(0, round((end - now) / each))
        if not fixed:
            self.place = float(step)
            self.length = limit if self._steps < 2 else max(step + 1, self.trainer.expected_steps)
            share = START_SHARE if self._steps >= START_STEPS else SLOW_START_SHARE
            if now - self._prepared >= share * (self.budget - self._prepared):
                fixed = self.final is not None
                then = _GO_ON if fixed else _MEASURE
        elif fits:
            self.place += (self.length - self.place) / (limit - state.global_step)
        else:
            self.place += (self.length - self.place) * min(1.0, (now - before) / max(end - before, 1e-9))
        then = self._due(now) or then
        if then == _LAST_STEP:
            self.place = float(self.length)
        return [self.place, float(self.length), float(fixed), then]

    def _due(self, now: float) -> float:
        """Signal that follows if another step would end too late; 0 if it would not."""
        if now + self.pace <= self.end():
            return _GO_ON
        again = self.trainer.scores_again and self.measured_at < now / 2 and now + 2 * self.pace < self.budget
        return _MEASURE if again else _LAST_STEP

    def _end_if_due(self, state: TrainerState, control: TrainerControl) -> None:
        """End training without another step if that would end too late. All processes call this."""
        if not 0 < state.global_step < state.max_steps:
            return
        while then := processes.largest(self._due(self.now()) if processes.rank() == 0 else _GO_ON):
            if then == _LAST_STEP:
                state.max_steps = state.global_step
                control.should_training_stop = self.reached = True
                return
            self._measure()

    def _count_step(self, seconds: float) -> None:
        self._steps += 1
        self.step_seconds += seconds
        if self._steps > 1:
            forgets = math.exp(-seconds / (RECENT_SHARE * self.budget))
            self._recent_seconds = self._recent_seconds * forgets + seconds
            self._recent_steps = self._recent_steps * forgets + 1
            self.pace = self._recent_seconds / self._recent_steps
        else:
            # It compiles and allocates: the next one replaces it.
            self.pace = self.pace or seconds

    def _lap(self, now: float) -> float:
        """Seconds since the last event."""
        seconds, self._last_event = now - self._last_event, now
        return seconds

    # Measurements

    def _measure(self) -> None:
        """Measure on parts of the validation split what scoring takes. All processes call this."""
        trainer, start, first = self.trainer, self.now(), self.validation is None
        with trainer.not_training():
            self.validation = self.final = scoring_seconds(trainer, trainer.rehearse, self.budget, self.clock, first)
            if trainer.scores_again:
                self.final = scoring_seconds(trainer, trainer.rehearse_final, self.budget, self.clock, False)
        self.other_seconds += self._lap(self.now())
        self.measured_at, self.pace_when_measured = start, self.pace

    # Learning rates

    def _set_schedule(self) -> None:
        if self._schedule_length != self.length:
            self._schedule_length, self._schedule = self.length, schedule(self.trainer.args, self.length)

    def _announcement(self, state: TrainerState) -> str:
        limit, reserve = int(self.limits[1]), self.reserve()
        setting = f"training.max_minutes={self.minutes:g}"
        if self.length == limit:
            return f"all {limit:,} steps are expected to fit into {setting}."
        left = self.end() - self.now()
        if reserve > MOST_RESERVE_SHARE * self.budget:
            return (
                f"the final scores may take {duration(reserve)}, more than half of {setting}, and the run may end "
                f"late, at about {_time_in(left + reserve)}; raise it."
            )
        return (
            f"training ends at about {_time_in(left)}; {duration(reserve)} of {setting} are reserved for the final "
            "scores and the report."
        )


def _time_in(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))


def check_limits(minutes: float, steps: int) -> None:
    """Raise UserError if a run has both a time budget and a number of steps."""
    if minutes and steps > 0:
        raise UserError(
            f"expected training.max_minutes or training.max_steps, got both ({minutes:g} and {steps}); set one of them "
            "to 0."
        )


def schedule(arguments: TrainingArguments, steps: int) -> Callable[[float], float]:
    """The learning rate's factor by the place on the schedule that the arguments name, for a number of steps.

    Schedules that follow the scores have the factor 1.
    """
    alone = torch.optim.SGD([torch.zeros(1)], lr=arguments.learning_rate)
    warmup, options = arguments.get_warmup_steps(steps), arguments.lr_scheduler_kwargs
    found = get_scheduler(arguments.lr_scheduler_type, alone, warmup, steps, options)
    return cast(Callable[[float], float], found.lr_lambdas[0]) if isinstance(found, LambdaLR) else lambda place: 1.0


SCORED_SHARE, MOST_SCORED_SHARE = 0.01, 0.05
"""Scoring is measured on parts until one takes this share of the budget; the first one may take more."""

_SHORT = 64
"""Tokens of each example in the first part."""


def scoring_seconds(
    trainer: LongspanTrainer[Any],
    score: Callable[[Dataset], None],
    budget: float,
    clock: Callable[[], float],
    warm_up: bool = True,
) -> float:
    """Seconds to score the validation split, from ever larger parts of it, the last two of which make a line.

    Args:
        trainer: The trainer. All its processes call this.
        score: Scores a part of the split.
        budget: Seconds of the budget.
        clock: Seconds from any origin.
        warm_up: Whether a part is scored once before, as the first call compiles and allocates.
    """
    sizes = trainer.scoring_sizes(trainer.eval_dataset)
    # Without what is not scored at all.
    order, longest = np.argsort(-sizes, kind="stable")[: max(1, np.count_nonzero(sizes))], sizes.max()
    rows, most = trainer.args.world_size, longest
    if trainer.per_token_columns():
        rows, most = rows * trainer.args.per_device_eval_batch_size, _SHORT
    rows = min(len(order), rows)
    with trainer.rehearsing():
        if warm_up:
            score(_part(trainer, order[-rows:], most, sizes))
        before, read_before = 0.0, 0
        while True:
            # Of all lengths, the longest among them. Cut rather than few: a batch costs what its rows cost together.
            chosen = order[(np.arange(rows) * len(order) / rows).astype(int)]
            read = int(np.minimum(sizes[chosen], most).sum())
            part = _part(trainer, chosen, most, sizes)
            start = clock()
            score(part)
            took = processes.largest(clock() - start if processes.rank() == 0 else 0.0)
            each = max(0.0, took - before) / max(1, read - read_before)
            enough = SCORED_SHARE if read_before else MOST_SCORED_SHARE
            if (rows == len(order) and most >= longest) or took >= enough * budget:
                return took + each * (int(sizes.sum()) - read)
            before, read_before = took, read
            if most < longest:
                most *= 4
            else:
                rows = min(len(order), rows * 4)


def _part(trainer: LongspanTrainer[Any], rows: np.ndarray, most: int, sizes: np.ndarray) -> Dataset:
    """Rows of the validation split, cut to their sizes and to `most` tokens where tokens can be left out."""
    dataset, cut = trainer.eval_dataset, trainer.per_token_columns()
    if not cut:
        return dataset.select(rows)
    whole, kept = dataset[rows], np.minimum(sizes[rows], most).tolist()
    part = dict(whole)
    for name in cut:
        # There may be several numbers at each position.
        numbers = [max(1, len(each) // max(1, own)) for each, own in zip(whole[name], whole["length"], strict=True)]
        part[name] = [each[: many * size] for each, many, size in zip(whole[name], numbers, kept, strict=True)]
    part["length"] = [min(own, size) for own, size in zip(whole["length"], kept, strict=True)]
    return Dataset.from_dict(part, features=dataset.features)
