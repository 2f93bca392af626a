"""Steps of a trainer on chosen batches, measured: `loads` and `measured`."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from longspan.machine.peaks import Peak, resident
from longspan.training.base import LongspanTrainer
from longspan.training.callbacks import ReturnFreedMemory
from longspan.training.lengths import Loader


@dataclass(frozen=True)
class Load:
    """What an optimizer step reads in one batch.

    Attributes:
        positions: rows times their padded length.
        pairs: rows times its square: pairs of positions in a row.
    """

    positions: float
    pairs: float

    @property
    def length(self) -> float:
        """The padded length of its rows."""
        return self.pairs / max(1.0, self.positions)

    def times(self, factor: float) -> "Load":
        """Return what several such batches read."""
        return Load(factor * self.positions, factor * self.pairs)


@dataclass(frozen=True)
class Measured:
    """A measured step.

    Attributes:
        load: what it read in each batch.
        seconds: how long it took.
        extra_bytes: the most memory in use, less what was in use before training.
    """

    load: Load
    seconds: float
    extra_bytes: float


@dataclass(frozen=True)
class StepCost:
    """What a step costs: `fixed + each * positions + pair * pairs`.

    Attributes:
        fixed: the cost of a step that reads nothing, at least 0.
        each: per position, at least 0.
        pair: per pair of positions in a row, at least 0.
    """

    fixed: float
    each: float
    pair: float

    def __call__(self, load: Load) -> float:
        return self.fixed + self.each * load.positions + self.pair * load.pairs

    def scaled(self, factor: float) -> "StepCost":
        """Return a multiple of it."""
        return StepCost(factor * self.fixed, factor * self.each, factor * self.pair)


def fitted(loads: Sequence[Load], costs: Sequence[float], quadratic: bool) -> StepCost:
    """Return the cost with the smallest squared relative errors.

    Args:
        loads: (n,) what was read, n >= 1.
        costs: (n,) what that cost, above 0.
        quadratic: whether the cost may grow with the pairs of positions.
    """
    columns = np.array([[1.0, load.positions, load.pairs] for load in loads])
    y = np.maximum(np.asarray(costs, dtype=float), 1e-12)
    # In units of their largest value, so that all three are of one size.
    units = np.maximum(columns.max(0), 1e-12)
    scaled = columns / units / y[:, None]
    best, error = np.zeros(3), np.inf
    # The best solution without negative numbers is that of the columns which are above 0 in it. With as many points as
    # columns all fit, so few points have few columns; those of one load alone grow with what is read.
    most = min(len({(load.positions, load.pairs) for load in loads}), 3)
    allowed = (0, 1, 2) if quadratic else (0, 1)
    for number in range(1, most + 1):
        for chosen in itertools.combinations(allowed, number):
            if most == 1 and chosen != ((2,) if quadratic else (1,)):
                continue
            found = np.linalg.lstsq(scaled[:, chosen], np.ones(len(y)), rcond=None)[0]
            if (found < 0).any():
                continue
            rest = float(np.square(scaled[:, chosen] @ found - 1).sum())
            if rest < error - 1e-12:
                best, error = np.zeros(3), rest
                best[list(chosen)] = found
    return StepCost(*(best / units).tolist())


def covering(loads: Sequence[Load], costs: Sequence[float], quadratic: bool) -> StepCost:
    """Return `fitted`, raised until no measured cost is above it."""
    found = fitted(loads, costs, quadratic)
    return found.scaled(max(1.0, *(cost / max(found(load), 1e-12) for load, cost in zip(loads, costs, strict=True))))


ROUNDS, ENOUGH_SECONDS, MOST_SECONDS = 3, 2.0, 15.0
"""Each batch is measured in so many rounds at least, and for so many seconds together, but not for more than the last.
In the first round each is read twice, as the first time compiles, allocates and fills caches."""

_MOST_ROUNDS = 50

CLOCK = time.perf_counter


def loads(trainer: LongspanTrainer) -> list[Load]:
    """Return what each batch of the first epoch reads, in order."""
    loader = trainer.get_train_dataloader()
    sampler: Any = loader.batch_sampler
    sizes = trainer.batch_positions(0)
    return [
        Load(float(size), float(size) ** 2 / max(1, len(batch))) for size, batch in zip(sizes, sampler, strict=True)
    ]


def measured(
    trainer: LongspanTrainer,
    found: Sequence[Load],
    peak: Peak,
    worthwhile: Callable[[Load], bool],
    enough: float = ENOUGH_SECONDS,
    clock: Callable[[], float] = CLOCK,
) -> tuple[list[Measured], float]:
    """Train on a few batches of different sizes, and return what their steps cost, and the real share of positions.

    The trainer is of no use afterwards. Nothing is measured if no batch is worth it.

    Args:
        trainer: a trainer whose arguments write nothing.
        found: its `loads`.
        peak: measures memory, which is counted from what is in use now.
        worthwhile: whether a batch is not expected to take too long, or too much memory.
        enough: for how many seconds steps are measured, at least, unless they take `MOST_SECONDS`.
        clock: returns seconds.
    """
    chosen = [number for number in _spread(found) if worthwhile(found[number])]
    if not chosen:
        return [], 1.0
    base = resident()
    loader = trainer.get_train_dataloader()
    batches: list[Any] = list(loader.batch_sampler)
    each = trainer.args.gradient_accumulation_steps
    steps = [*(number for number in chosen for _ in range(2)), *(chosen * _MOST_ROUNDS)]
    order = _Given([batches[number] for number in steps for _ in range(each)])
    given = Loader(loader.dataset, batch_sampler=order, collate_fn=loader.collate_fn)
    trainer.get_train_dataloader = lambda: given
    trainer.args.num_train_epochs, trainer.args.max_steps = 1, -1
    watch = _Watch([found[number] for number in chosen], peak, enough, clock)
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    if trainer.args.device.type == "cpu":
        trainer.add_callback(ReturnFreedMemory())
    trainer.add_callback(watch)
    trainer.train()
    read = sum(each * found[number].positions for number in steps[: len(watch.seconds)])
    real = trainer.real_tokens / read if trainer.real_tokens and read else 1.0
    costs = []
    for number in chosen:
        own = [place for place, each in enumerate(steps[: len(watch.seconds)]) if each == number]
        if own[1:]:
            later = np.array([watch.seconds[place] for place in own[1:]])
            # The mean, as of a training; what waits for something else counts twice at most.
            seconds = float(np.minimum(later, 2 * np.median(later)).mean())
            most = max(watch.bytes[place] for place in own)
            costs.append(Measured(found[number], seconds, max(0, most - base)))
    return costs, min(1.0, real)


def _spread(found: Sequence[Load]) -> list[int]:
    """Return the numbers of a few batches from the cheapest to the dearest, the one with most positions among them."""
    order = sorted(range(len(found)), key=lambda number: (found[number].pairs, found[number].positions))
    places = [order[int(share * (len(order) - 1))] for share in (0, 0.35, 0.7, 1)]
    places.append(max(range(len(found)), key=lambda number: found[number].positions))
    different = {found[number]: number for number in places}
    return [different[load] for load in sorted(different, key=lambda load: (load.pairs, load.positions))]


class _Given(Sampler[Any]):
    """Batches that are given."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches

    def set_epoch(self, epoch: int) -> None:
        """Change nothing."""

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class _Watch(TrainerCallback):
    """Measures steps, and ends the training once it has seen enough."""

    def __init__(self, chosen: Sequence[Load], peak: Peak, enough: float, clock: Callable[[], float]) -> None:
        self.chosen, self.peak, self.enough, self.clock = chosen, peak, enough, clock
        self.seconds: list[float] = []
        self.bytes: list[int] = []
        self._last = 0.0

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.peak.mark()
        self._last = self.clock()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        self.seconds.append(self.clock() - self._last)
        self.bytes.append(self.peak.most())
        if self._enough():
            control.should_training_stop = True
        self.peak.mark()
        self._last = self.clock()

    def _enough(self) -> bool:
        done, total = len(self.seconds), sum(self.seconds)
        number, first = divmod(done, 2)
        if done < 2 * len(self.chosen):
            if first:
                return False
            last, upcoming = self.chosen[number - 1], self.chosen[number]
            # At most, it grows with the pairs of positions.
            return 2 * self.seconds[-1] * upcoming.pairs / max(1.0, last.pairs) > MOST_SECONDS
        rounds = 1 + (done - 2 * len(self.chosen)) // len(self.chosen)
        return (rounds >= ROUNDS and total >= self.enough) or total > MOST_SECONDS
