"""Seconds and memory of training steps as functions of what they read: `StepCost`, fitted to a few measured steps."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
