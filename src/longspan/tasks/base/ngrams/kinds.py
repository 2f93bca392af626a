"""Logistic regressions over n-grams, of several kinds: `Kind` and `Model`."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from longspan.ops.compiled import compiled
from longspan.tasks.base.ngrams.bags import Bags
from longspan.tasks.base.ngrams.latent import Latent

#: Nats per document that a solution may be worse than the best one, and passes after which it is taken as it is: where
#: documents are as alike as files with the same header, ten leave some thousandths, and fifty hardly less.
GAP, PASSES = 1e-3, 10
#: Fewer documents than these are solved more exactly in as much time: a gap of little loss may be one of large biases.
EXACT = 1000
#: No class has a smaller part in α, so that its logarithm is finite.
_LEAST = 1e-10
#: Conjugate gradients stop at this share of the numbers' size, or after so many steps.
_RESIDUAL, _GRADIENTS = 1e-3, 100
#: Newton's steps for one document, how far one may go, and logits that are near enough.
_STEPS, _FARTHEST, _NEAR = 30, 4.0, 1e-5


@dataclass(frozen=True)
class Linear:
    """A linear model: weights `(size, c)` float32, and bias `(c,)`."""

    weights: np.ndarray
    bias: np.ndarray

    def logits(self, documents: Bags) -> Tensor:
        """Return the logits of documents, `(n, c)` float32."""
        return torch.from_numpy(documents.sums(self.weights) + self.bias.astype(np.float32))


class Regression:
    """A logistic regression over the n-grams of training documents, from strong penalties to weak ones.

    Its logits are b⁰ + b + Σ_g a_g r_g ⊙ v_g with amounts a, ratios r, and the logarithms b⁰ of how frequent classes
    are; it minimises Σ_i s_i CE_i + λ/2 (|v|² + |b|²).

    Args:
        documents: The bags of training documents.
        labels: `(n,)` their class numbers.
        class_weights: `(c,)` what multiplies the loss of documents of each class.
        ratio: `(size, c)` float32 what the weights are multiples of.
    """

    def __init__(self, documents: Bags, labels: np.ndarray, class_weights: np.ndarray, ratio: np.ndarray) -> None:
        classes = len(class_weights)
        self._documents = documents
        self._starts = np.concatenate([[0], np.cumsum(documents.counts)])
        self._importance = class_weights.astype(np.float64)[labels]
        squares = np.square(ratio, dtype=np.float32)
        # The bias is as an n-gram that all documents have.
        self._lengths = 1 + Bags(documents.grams, documents.amounts**2, documents.counts, documents.size).sums(
            squares
        ).astype(np.float64)
        # One document more of each class, as some may have none.
        frequencies = np.bincount(labels, self._importance, classes) + 1
        self._prior = np.log(frequencies / frequencies.sum())
        self._truth = np.eye(classes)[labels]
        self._shares = _feasible(self._truth)
        # Where an n-gram's ratios are of one size, its weights add up to 0: those of the last class follow.
        columns = classes - int((squares == squares[:, :1]).all())
        self._squares = np.ascontiguousarray(squares[:, :columns])
        self._weights, self._bias = np.zeros((len(ratio), columns), np.float32), np.zeros(classes)
        self._penalty = math.inf

    def solve(self, penalty: float) -> Linear:
        """Return the solution for the penalty λ, on the way from the one before.

        Args:
            penalty: λ, at most the one before.

        Raises:
            ValueError: A stronger penalty than before.
        """
        if penalty > self._penalty:
            raise ValueError(f"expected a penalty of at most {self._penalty}, as solutions go on, got {penalty}")
        # With another penalty, the weights there are belong to other shares.
        ratio = penalty / self._penalty if self._penalty < math.inf else 1.0
        self._shares = _feasible(self._truth + (self._shares - self._truth) * ratio)
        self._penalty = penalty
        few = max(1, EXACT // len(self._truth))
        generator, enough = np.random.default_rng(0), GAP / few * self._importance.sum()
        for _ in range(PASSES * few):
            left = _ascend(
                generator.permutation(len(self._truth)),
                self._starts,
                self._documents.grams,
                self._documents.amounts,
                self._importance,
                self._lengths,
                self._squares,
                self._prior,
                penalty,
                self._shares,
                self._weights,
                self._bias,
            )
            if left <= enough:
                break
        weights, missing = self._weights, len(self._bias) - self._weights.shape[1]
        last = -weights.sum(1, keepdims=True)[:, :missing]
        return Linear(np.concatenate([weights, last], 1), self._prior + self._bias)


def _feasible(shares: np.ndarray) -> np.ndarray:
    """Return distributions near those given that have a part for each class, `(n, c)`."""
    positive = np.maximum(shares, _LEAST)
    return positive / positive.sum(1, keepdims=True)


@compiled
def _settle(
    logits: np.ndarray, slopes: np.ndarray, shares: np.ndarray, logs: np.ndarray, found: np.ndarray, errors: np.ndarray
) -> None:
    """Fill `found` (c,) with the distribution p for which log p + slopes ⊙ (p - shares) + a constant are the logits.

    Newton's method for log p and the constant together: each of its steps has a closed form. It begins with `logs`
    (c,), those of the shares; these and `errors` (c,) are overwritten.
    """
    constant = 0.0
    # With the shares as they are, errors are those of the logits.
    for j in range(len(logits)):
        constant += shares[j] * (logits[j] - logs[j])
        found[j] = shares[j]
    for _ in range(_STEPS):
        missing, total, slope, worst = 1.0, 0.0, 0.0, 0.0
        for j in range(len(logits)):
            errors[j] = logits[j] - slopes[j] * (found[j] - shares[j]) - logs[j] - constant
            part = found[j] / (1 + slopes[j] * found[j])
            missing -= found[j]
            total += part * errors[j]
            slope += part
            worst = max(worst, abs(errors[j]))
        if worst < _NEAR and abs(missing) < _NEAR:
            break
        move = (total - missing) / slope
        constant += move
        for j in range(len(logits)):
            step = (errors[j] - move) / (1 + slopes[j] * found[j])
            logs[j] += min(max(step, -_FARTHEST), _FARTHEST)
            found[j] = np.exp(logs[j])
    total = 0.0
    for j in range(len(logits)):
        found[j] = max(found[j], _LEAST)
        total += found[j]
    for j in range(len(logits)):
        found[j] /= total


@compiled
def _ascend(
    order: np.ndarray,
    starts: np.ndarray,
    grams: np.ndarray,
    amounts: np.ndarray,
    importance: np.ndarray,
    lengths: np.ndarray,
    squares: np.ndarray,
    prior: np.ndarray,
    penalty: float,
    shares: np.ndarray,
    weights: np.ndarray,
    bias: np.ndarray,
) -> float:
    """Make each document's shares the best ones, with weights and bias that follow; return the gap met on the way."""
    classes, columns, gap = len(bias), weights.shape[1], 0.0
    # Memory that is taken once.
    logits, slopes, logs = np.empty(classes), np.empty(classes), np.empty(classes)
    found, errors = np.empty(classes), np.empty(classes)
    for i in order:
        logits[:], first = 0, 0.0
        for place in range(starts[i], starts[i + 1]):
            gram, amount = grams[place], amounts[place]
            first += amount * weights[gram, 0]
            for j in range(1, columns):
                logits[j] += amount * weights[gram, j]
        logits[0] = first
        if columns < classes:
            logits[columns] = -logits[:columns].sum()
        logits += prior
        logits += bias
        highest, total = logits.max(), 0.0
        for j in range(classes):
            total += np.exp(logits[j] - highest)
        normaliser = highest + np.log(total)
        scale = importance[i] / penalty
        for j in range(classes):
            logs[j], slopes[j] = np.log(shares[i, j]), scale * lengths[i, j]
            gap += importance[i] * shares[i, j] * (logs[j] - logits[j] + normaliser)
        _settle(logits, slopes, shares[i], logs, found, errors)
        for j in range(classes):
            logits[j] = scale * (shares[i, j] - found[j])
            shares[i, j] = found[j]
            bias[j] += logits[j]
        first = logits[0]
        for place in range(starts[i], starts[i + 1]):
            gram, amount = grams[place], amounts[place]
            weights[gram, 0] += amount * first * squares[gram, 0]
            for j in range(1, columns):
                weights[gram, j] += amount * logits[j] * squares[gram, j]
    return gap


@dataclass(frozen=True)
class Kind:
    """A regression over n-grams of some `sizes`: of TF-IDF vectors, or weighted by naive Bayes.

    Sizes are in tokens; `CHARACTERS` are n-grams of characters. `penalties` are what λ is chosen from. With
    `directions`, a TF-IDF vector is replaced by so many coordinates of it, which texts without labels gave.
    """

    sizes: Sequence[int]
    tfidf: bool
    penalties: tuple[float, ...]
    directions: int = 0

    def name(self) -> str:
        """Its name, such as "naive Bayes, 1 to 2 tokens"."""
        if self.directions:
            return f"TF-IDF, {self.directions} latent directions"
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
#: Further trials for few documents, with n-grams of characters where there are any.
TFIDF_PAIRS = Kind(range(1, 3), True, (*_WEAK, 0.003, 0.001))
TFIDF_SPELLED = Kind((CHARACTERS, 1, 2), True, (*_WEAK, 0.003, 0.001))
SPELLED = Kind((CHARACTERS,), False, _STRONG)
#: With texts without labels. With more directions or weaker penalties, a hundred documents choose by chance.
LATENT = Kind((1,), True, (1.0, 0.3, 0.1, 0.03, 0.01), 20)


@dataclass(frozen=True)
class Counted:
    """Training documents of one class each as bags, with their labels.

    Attributes:
        bags: How often each document has each n-gram.
        labels: `(n,)` class numbers.
        class_weights: `(c,)` what multiplies the loss of documents of each class.
        tokens: `(size,)` of how many tokens each n-gram is made, or `CHARACTERS`.
        latent: Directions of texts without labels, by n-gram, if there are any.
    """

    bags: Bags
    labels: np.ndarray
    class_weights: np.ndarray
    tokens: np.ndarray
    latent: Latent | None = None
    #: Whether there are regressions weighted by naive Bayes, which compares a class with the others.
    bayes: ClassVar[bool] = True

    def part(self, which: np.ndarray) -> Self:
        """The documents for which `which`, `(n,)`, is true."""
        return replace(self, bags=self.bags.part(which), labels=self.labels[which])

    @functools.cached_property
    def sums(self) -> np.ndarray:
        """Sums over the documents with each n-gram, `(size, s)` float64: here, their number by class."""
        return self.bags.presence().totals(np.eye(len(self.class_weights))[self.labels])

    def documents(self, sums: np.ndarray) -> np.ndarray:
        """Number of documents with each n-gram, `(size,)`, by their `sums`."""
        found: np.ndarray = sums.sum(1)
        return found

    def ratios(self, sums: np.ndarray) -> np.ndarray:
        """Log-count ratios of n-grams for each output, `(size, c)` float32, from their `sums`."""
        return log_ratios(sums)

    def strata(self) -> np.ndarray:
        """Numbers, `(n,)`, of which each fold has about the same."""
        return self.labels

    def constant(self) -> Tensor:
        """Logits, `(c,)` float32, without n-grams."""
        weights = self.class_weights
        frequencies = torch.from_numpy(np.bincount(self.labels, weights[self.labels], len(weights)))
        return (frequencies + 1).log().log_softmax(0).float()

    def shift(self) -> Tensor:
        """Shift of the logits, `(c,)` float32: see `class_shift`."""
        weights = self.class_weights
        return torch.from_numpy(class_shift(np.bincount(self.labels, weights[self.labels], len(weights)))).float()

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Losses, `(n,)`, of logits, `(n, c)`."""
        return cross_entropy(logits, labels, reduction="none")

    def importance(self, labels: Tensor) -> Tensor:
        """Factors of the losses, `(n,)` float32."""
        return torch.from_numpy(self.class_weights)[labels].float()

    def solver(self, features: Bags, ratio: np.ndarray) -> "Solver":
        """Regression over features, of weights that are multiples of `ratio`, `(size, c)`."""
        return Regression(features, self.labels, self.class_weights, ratio)


class CountedLabels(Counted):
    """Documents with any number of labels each, `(n, c)` 0 or 1: a regression by label, with or without it."""

    @functools.cached_property
    def sums(self) -> np.ndarray:
        return self.bags.presence().totals(np.column_stack([self.labels, np.ones(len(self.labels))]))

    def documents(self, sums: np.ndarray) -> np.ndarray:
        return sums[:, -1]

    def ratios(self, sums: np.ndarray) -> np.ndarray:
        columns = (np.stack([having, sums[:, -1] - having], 1) for having in sums.T[:-1])
        return np.stack([log_ratios(column)[:, 0] for column in columns], 1)

    def strata(self) -> np.ndarray:
        return self.labels.argmax(1)

    def constant(self) -> Tensor:
        having = torch.from_numpy(self.labels).double().sum(0)
        return ((having + 1) / (len(self.labels) - having + 1)).log().float()

    def shift(self) -> Tensor:
        return torch.zeros(self.labels.shape[1])

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").sum(1)

    def importance(self, labels: Tensor) -> Tensor:
        return torch.ones(len(labels))

    def solver(self, features: Bags, ratio: np.ndarray) -> "Solver":
        return ByLabel(features, self.labels, ratio)


class CountedNumbers(CountedLabels):
    """Documents with a number each, `(n, 1)` with mean 0 and variance 1: ridge regression.

    An n-gram indicates the mean number of the documents with it, and of one more document with 0.
    """

    bayes = False

    def ratios(self, sums: np.ndarray) -> np.ndarray:
        found: np.ndarray = (sums[:, :1] / (sums[:, 1:] + 1)).astype(np.float32)
        return found

    def strata(self) -> np.ndarray:
        return self.labels[:, 0]

    def constant(self) -> Tensor:
        return torch.zeros(1)

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits - labels).square().sum(1).float() / 2

    def solver(self, features: Bags, ratio: np.ndarray) -> "Solver":
        return Ridge(features, self.labels[:, 0])


class Solver(Protocol):
    """A regression that goes from strong penalties to weak ones."""

    def solve(self, penalty: float) -> Linear:
        """Return the solution for a penalty, at most the one before."""


class ByLabel:
    """A `Regression` of two classes for each label, `(n, c)` 0 or 1; the logits are the log-odds of having it."""

    def __init__(self, documents: Bags, labels: np.ndarray, ratio: np.ndarray) -> None:
        pairs = zip(labels.T.astype(int), ratio.T, strict=True)
        self._labels = [Regression(documents, has, np.ones(2), np.stack([each, each], 1)) for has, each in pairs]

    def solve(self, penalty: float) -> Linear:
        found = [regression.solve(penalty) for regression in self._labels]
        weights = np.stack([one.weights[:, 1] - one.weights[:, 0] for one in found], 1)
        return Linear(weights, np.array([one.bias[1] - one.bias[0] for one in found]))


class Ridge:
    """Ridge regression of numbers y, `(n,)`: it minimises |X w + b - y|² + λ (|w|² + b²), w being X' a with
    (X X' + 1 + λ) a = y, which conjugate gradients solve.
    """

    def __init__(self, documents: Bags, numbers: np.ndarray) -> None:
        self._documents, self._numbers = documents, numbers.astype(np.float64)
        self._solution = np.zeros(len(numbers))

    def solve(self, penalty: float) -> Linear:
        found = self._solution
        left = self._numbers - self._product(found, penalty)
        way, size = left.copy(), left @ left
        enough = _RESIDUAL**2 * (self._numbers @ self._numbers)
        for _ in range(_GRADIENTS):
            if size <= enough:
                break
            product = self._product(way, penalty)
            step = size / (way @ product)
            found, left = found + step * way, left - step * product
            before, size = size, left @ left
            way = left + size / before * way
        self._solution = found
        return Linear(self._weights(found), np.array([found.sum()]))

    def _weights(self, dual: np.ndarray) -> np.ndarray:
        return self._documents.totals(dual[:, None]).astype(np.float32)

    def _product(self, dual: np.ndarray, penalty: float) -> np.ndarray:
        found: np.ndarray = self._documents.sums(self._weights(dual))[:, 0] + dual.sum() + penalty * dual
        return found


class Model:
    """A regression of one kind over training documents."""

    def __init__(self, kind: Kind, documents: Counted) -> None:
        self._kind, self._wanted = kind, np.isin(documents.tokens, kind.sizes)
        self._directions: np.ndarray | None = None
        if kind.directions:
            assert documents.latent is not None
            self.idf, self._directions = documents.latent.idf, documents.latent.directions[:, : kind.directions]
            coordinates = self.features(documents.bags).sums(self._directions)
            ones = np.ones((coordinates.shape[1], len(documents.class_weights)), np.float32)
            self._regression = documents.solver(Bags.dense(coordinates), ones)
            return
        sums = documents.sums * self._wanted[:, None]
        self.idf = inverse_frequency(documents.documents(sums), len(documents.labels))
        ratio = documents.ratios(sums)
        ratio = np.ones_like(ratio) if kind.tfidf else ratio
        self._regression = documents.solver(self.features(documents.bags), ratio)

    def features(self, bags: Bags) -> Bags:
        """Return the amounts that count, of the n-grams that do."""
        kept = bags.among(self._wanted)
        return kept.tfidf(self.idf) if self._kind.tfidf else kept.presence()

    def solve(self, penalty: float) -> Linear:
        """Return the solution for a penalty, at most the one before."""
        found = self._regression.solve(penalty)
        return found if self._directions is None else replace(found, weights=self._directions @ found.weights)


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
    """Shift of logits, (c,), that pulls the class frequencies (c,) of few documents to equal ones.

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
