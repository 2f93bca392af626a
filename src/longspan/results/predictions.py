"""Predictions with one answer for each example: a class, labels or a number, whatever computed the outputs."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from longspan.results import Prediction


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    """The most likely label of an example, and the probabilities of all labels."""

    label: str | None = None
    probabilities: dict[str, float] | None = None

    @classmethod
    def of(cls, where: str, labels: Sequence[str], probabilities: Iterable[float]) -> Self:
        """Prediction of the first of the likeliest labels."""
        shares = dict(zip(labels, probabilities, strict=True))
        return cls(where, None, max(shares, key=lambda name: shares[name]), shares)

    def sure(self, least: Callable[[str], float]) -> Self:
        """This prediction, without a label if the probability of the likeliest is below the `least` of this one."""
        if self.probabilities is None or self.label is None or self.probabilities[self.label] >= least(self.label):
            return self
        return dataclasses.replace(self, label=None)


@dataclass(frozen=True)
class MultiLabelPrediction(Prediction):
    """The labels of a document, likeliest first, and the probabilities of all labels."""

    labels: list[str] | None = None
    probabilities: dict[str, float] | None = None

    @classmethod
    def of(cls, where: str, labels: Sequence[str], probabilities: Iterable[float], thresholds: Sequence[float]) -> Self:
        """Prediction of the labels whose probabilities reach their thresholds."""
        shares = dict(zip(labels, probabilities, strict=True))
        least = dict(zip(labels, thresholds, strict=True))
        given = sorted((name for name in shares if shares[name] >= least[name]), key=lambda name: -shares[name])
        return cls(where, None, given, shares)


@dataclass(frozen=True)
class NumberPrediction(Prediction):
    """The number of a document, in the unit of the training data."""

    number: float | None = None

    @classmethod
    def of(cls, where: str, number: np.float32) -> Self:
        """Prediction of the shortest number that is this one in float32: 3.4 rather than 3.4000000953674316."""
        return cls(where, None, float(str(number)))
