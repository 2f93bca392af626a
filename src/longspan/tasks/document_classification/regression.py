"""Multinomial logistic regression over the n-grams of documents, by ascent of its dual: `Regression`.

The dual has a distribution α_i over the classes for each document i, and weights v = Σ_i s_i x_i (y_i - α_i)ᵀ/λ. One
document after the other, α_i becomes what is best with all others as they are (Yu, Huang and Lin 2011, "Dual coordinate
descent methods for logistic regression and maximum entropy models", https://doi.org/10.1007/s10994-010-5221-8;
Shalev-Shwartz and Zhang 2013, https://jmlr.org/papers/v14/shalev-shwartz13a.html). Where n-grams are many and documents
have few of them each, three to ten passes are enough, and how much is left to gain is known: Σ_i s_i KL(α_i | p_i) for
the probabilities p that the weights give.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longspan.ops.compiled import compiled
from longspan.tasks.document_classification.bags import Bags

#: Nats per document that a solution may be worse than the best one, and passes after which it is taken as it is: where
#: documents are as alike as files with the same header, ten leave some thousandths, and fifty hardly less.
GAP, PASSES = 1e-3, 10
#: No class has a smaller part in α, so that its logarithm is finite.
_LEAST = 1e-10
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
        self._squares = np.square(ratio, dtype=np.float32)
        # The bias is as an n-gram that all documents have.
        self._lengths = 1 + Bags(documents.grams, documents.amounts**2, documents.counts, documents.size).sums(
            self._squares
        ).astype(np.float64)
        # One document more of each class, as some may have none.
        frequencies = np.bincount(labels, self._importance, classes) + 1
        self._prior = np.log(frequencies / frequencies.sum())
        self._truth = np.eye(classes)[labels]
        self._shares = _feasible(self._truth)
        self._weights, self._bias = np.zeros(ratio.shape, np.float32), np.zeros(classes)
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
        generator, enough = np.random.default_rng(0), GAP * self._importance.sum()
        for _ in range(PASSES):
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
        return Linear(self._weights.copy(), self._prior + self._bias)


def _feasible(shares: np.ndarray) -> np.ndarray:
    """Return distributions near those given that have a part for each class, `(n, c)`."""
    positive = np.maximum(shares, _LEAST)
    return positive / positive.sum(1, keepdims=True)


@compiled
def _settle(logits: np.ndarray, slopes: np.ndarray, shares: np.ndarray, found: np.ndarray) -> None:
    """Fill `found` (c,) with the distribution p for which log p + slopes ⊙ (p - shares) + a constant are the logits.

    Newton's method for log p and the constant together: each of its steps has a closed form.
    """
    constant, logs = 0.0, np.log(shares)
    # With the shares as they are, errors are those of the logits.
    for j in range(len(logits)):
        constant += shares[j] * (logits[j] - logs[j])
    errors = np.empty(len(logits))
    for _ in range(_STEPS):
        missing, total, slope, worst = 1.0, 0.0, 0.0, 0.0
        for j in range(len(logits)):
            share = np.exp(logs[j])
            steep = 1 + slopes[j] * share
            error = logits[j] - slopes[j] * (share - shares[j]) - logs[j] - constant
            errors[j] = error / steep
            missing -= share
            total += share / steep * error
            slope += share / steep
            worst = max(worst, abs(error))
        if worst < _NEAR and abs(missing) < _NEAR:
            break
        move = (total - missing) / slope
        constant += move
        for j in range(len(logits)):
            step = errors[j] - move / (1 + slopes[j] * np.exp(logs[j]))
            logs[j] += min(max(step, -_FARTHEST), _FARTHEST)
    total = 0.0
    for j in range(len(logits)):
        found[j] = max(np.exp(logs[j]), _LEAST)
        total += found[j]
    found /= total


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
    classes, gap = len(bias), 0.0
    logits, found = np.empty(classes), np.empty(classes)
    for i in order:
        for j in range(classes):
            logits[j] = prior[j] + bias[j]
        for place in range(starts[i], starts[i + 1]):
            gram, amount = grams[place], amounts[place]
            for j in range(classes):
                logits[j] += amount * weights[gram, j]
        highest, total = logits.max(), 0.0
        for j in range(classes):
            total += np.exp(logits[j] - highest)
        normaliser = highest + np.log(total)
        for j in range(classes):
            gap += importance[i] * shares[i, j] * (np.log(shares[i, j]) - logits[j] + normaliser)
        scale = importance[i] / penalty
        _settle(logits, scale * lengths[i], shares[i], found)
        for j in range(classes):
            logits[j] = scale * (shares[i, j] - found[j])
            shares[i, j] = found[j]
            bias[j] += logits[j]
        for place in range(starts[i], starts[i + 1]):
            gram, amount = grams[place], amounts[place]
            for j in range(classes):
                weights[gram, j] += amount * logits[j] * squares[gram, j]
    return gap
