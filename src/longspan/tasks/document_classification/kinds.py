"""Logistic regressions over n-grams, of several kinds: `Kind` and `Model`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from longspan.tasks.document_classification.bags import Bags
from longspan.tasks.document_classification.regression import Linear, Regression


@dataclass(frozen=True)
class Kind:
    """A regression over n-grams of some `sizes`: of TF-IDF vectors, or weighted by naive Bayes.

    Sizes are in tokens; `CHARACTERS` are n-grams of characters. `penalties` are what λ is chosen from.
    """

    sizes: Sequence[int]
    tfidf: bool
    penalties: tuple[float, ...]

    def name(self) -> str:
        """Return what it is called, such as "naive Bayes, 1 to 2 tokens"."""
        longest = max(self.sizes)
        tokens = ["single tokens" if longest == 1 else f"1 to {longest} tokens"] if longest else []
        what = [*tokens, *(["characters"] if self.spelled() else [])]
        return f"{'TF-IDF' if self.tfidf else 'naive Bayes'}, {' and '.join(what)}"

    def spelled(self) -> bool:
        """Return whether n-grams of characters are among its n-grams."""
        return CHARACTERS in self.sizes


CHARACTERS = 0
_STRONG, _WEAK = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1), (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
BAYES = tuple(Kind(range(1, longest + 1), False, _STRONG) for longest in (2, 3))
TFIDF = tuple(Kind(range(1, longest + 1), True, _WEAK) for longest in (1, 3))
#: What else is tried for few documents, with n-grams of characters where there are any.
TFIDF_PAIRS = Kind(range(1, 3), True, (*_WEAK, 0.003, 0.001))
TFIDF_SPELLED = Kind((CHARACTERS, 1, 2), True, (*_WEAK, 0.003, 0.001))
SPELLED = Kind((CHARACTERS,), False, _STRONG)


@dataclass(frozen=True)
class Counted:
    """Training documents as bags, with their labels.

    Attributes:
        bags: How often each document has each n-gram.
        labels: `(n,)` class numbers.
        class_weights: `(c,)` what multiplies the loss of documents of each class.
        tokens: `(size,)` of how many tokens each n-gram is made, or `CHARACTERS`.
    """

    bags: Bags
    labels: np.ndarray
    class_weights: np.ndarray
    tokens: np.ndarray

    def part(self, which: np.ndarray) -> "Counted":
        """Return those of the documents for which `which`, `(n,)`, is true."""
        return replace(self, bags=self.bags.part(which), labels=self.labels[which])

    def per_class(self) -> np.ndarray:
        """Return how many documents of each class have each n-gram, `(size, c)` float64."""
        return self.bags.presence().totals(np.eye(len(self.class_weights))[self.labels])


class Model:
    """A regression of one kind over training documents."""

    def __init__(self, kind: Kind, documents: Counted) -> None:
        self._kind, self._wanted = kind, np.isin(documents.tokens, kind.sizes)
        per_class = documents.per_class() * self._wanted[:, None]
        self.idf = inverse_frequency(per_class.sum(1), len(documents.labels))
        ratio = np.ones(per_class.shape, np.float32) if kind.tfidf else log_ratios(per_class)
        self._regression = Regression(self.features(documents.bags), documents.labels, documents.class_weights, ratio)

    def features(self, bags: Bags) -> Bags:
        """Return the amounts that count, of the n-grams that do."""
        kept = bags.among(self._wanted)
        return kept.tfidf(self.idf) if self._kind.tfidf else kept.presence()

    def solve(self, penalty: float) -> Linear:
        """Return the solution for a penalty, at most the one before."""
        return self._regression.solve(penalty)


def inverse_frequency(documents: np.ndarray, count: int) -> np.ndarray:
    """Return smoothed inverse document frequencies, `ln((1 + n) / (1 + n_g)) + 1` for n_g of n documents.

    N-grams without documents get 0.
    """
    return np.where(documents > 0, np.log((1 + count) / (1 + documents)) + 1, 0.0)


def log_ratios(per_class: np.ndarray) -> np.ndarray:
    """Return the log-count ratios `(size, c)` float32 of how many documents of each class have each n-gram."""
    # Nothing is known about what never occurs.
    occurs = per_class.any(1)
    inside = per_class[occurs] + 1
    outside = per_class[occurs].sum(1, keepdims=True) - per_class[occurs] + 1
    ratio = np.zeros(per_class.shape, np.float32)
    ratio[occurs] = np.log(inside / inside.sum(0)) - np.log(outside / outside.sum(0))
    return ratio


def class_shift(frequencies: np.ndarray) -> np.ndarray:
    """Return what to add to logits, (c,), so that the class frequencies (c,) of few documents are pulled to equal ones.

    Their logarithms keep the share 1 - (c - 1) / χ² of their distance from the mean, at least 0. χ² is Pearson's
    statistic for equal frequencies. Where differences are chance, its mean is c - 1. This is empirical Bayes by the
    method of moments. Frequencies of many documents, or very unequal ones, stay nearly as they are.
    """
    expected = frequencies.mean()
    statistic = float(((frequencies - expected) ** 2).sum() / expected)
    if not statistic or not frequencies.all():
        return np.zeros(len(frequencies))
    lost = min(1.0, (len(frequencies) - 1) / statistic)
    logarithms = np.log(frequencies)
    shift: np.ndarray = lost * (logarithms.mean() - logarithms)
    return shift
