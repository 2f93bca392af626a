"""Fitting a linear-chain CRF to labelled sentences over sparse features of words: `fit`.

The score of labels y is Σ_t Σ_f W[f(t), y_t] + Σ_t A[y_t, y_{t+1}], the first sum over the features of each word. As in
CRFsuite, a feature has weights for the labels that it occurs with. They minimise the negative log-likelihood of the
sentences plus λ (|W|² + |A|²), by AdaGrad (Duchi et al. 2011, https://jmlr.org/papers/v12/duchi11a.html), sentence by
sentence. A feature's share of the penalty is taken whenever a word has it, so that a step costs what its sentence has.

In each pass, each word lacks a random share of its features, so that a few features that tell the labels of the
training words do not keep the others from learning (dropout, Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html;
for features of such models, Wager et al. 2013, https://arxiv.org/abs/1307.1493).
"""

from dataclasses import dataclass

import numpy as np

from longspan.ops.compiled import compiled

#: Size of a weight's first step, and passes over the sentences. CRFsuite with 100 steps of L-BFGS is no more accurate.
_RATE, _PASSES = 0.2, 15
#: What sums of squares begin with.
_FIRST = 1e-8
_FACTOR, _SUMMAND, _HIGH = np.uint64(6364136223846793005), np.uint64(1442695040888963407), np.uint64(32)


@dataclass(frozen=True)
class LabelledWords:
    """Words with their features and labels, sentence after sentence.

    Attributes:
        features: `(m, f)` int32 numbers of features, -1 for none.
        labels: `(m,)` int32 numbers of labels.
        starts: `(n + 1,)` int64 where sentences start, and where the last one ends.
    """

    features: np.ndarray
    labels: np.ndarray
    starts: np.ndarray

    def part(self, which: np.ndarray) -> "LabelledWords":
        """Return the sentences for which `which`, `(n,)`, is true."""
        sizes = np.diff(self.starts)
        inside, ends = np.repeat(which, sizes), np.cumsum(sizes[which])
        return LabelledWords(self.features[inside], self.labels[inside], np.concatenate([[0], ends]).astype(np.int64))


@dataclass(frozen=True)
class Weights:
    """The weights of a linear-chain CRF: W `(features, labels)` and A `(labels, labels)`, float32."""

    of_features: np.ndarray
    transitions: np.ndarray


def fit(words: LabelledWords, size: int, allowed: np.ndarray, penalty: float, dropout: float = 0.0) -> Weights:
    """Return the weights for labelled words; the same ones each time.

    Args:
        words: The words.
        size: Number of features.
        allowed: `(labels, labels)` whether a label may come after another; A is 0 where it may not.
        penalty: λ.
        dropout: The probability that a word lacks a feature in a pass. All count after fitting, with the same weights.
    """
    labels = len(allowed)
    pairs, times = _pairs(words, labels)
    owner, label = pairs // labels, (pairs % labels).astype(np.int16)
    first = np.searchsorted(owner, np.arange(size + 1)).astype(np.int64)
    having = np.bincount(owner, times, size).astype(np.float32)
    weights, squares = np.zeros(len(pairs), np.float32), np.full(len(pairs), _FIRST, np.float32)
    transitions, transition_squares = np.zeros(allowed.shape), np.full(allowed.shape, _FIRST)
    random = np.random.default_rng(0)
    for number in range(_PASSES):
        _descend(
            random.permutation(len(words.starts) - 1),
            words.starts,
            words.features,
            words.labels,
            first,
            label,
            having,
            2 * penalty,
            weights,
            squares,
            transitions,
            transition_squares,
            allowed,
            dropout,
            number,
        )
    table = np.zeros((size, labels), np.float32)
    table[owner, label] = weights
    return Weights(table, transitions.astype(np.float32))


def _pairs(words: LabelledWords, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of a feature and a label that occur, in increasing order, and how often each does."""
    # Column by column, which takes less memory.
    every = [
        np.unique((column.astype(np.int64) * labels + words.labels)[column >= 0], return_counts=True)
        for column in words.features.T
    ]
    pairs, times = (np.concatenate(each) for each in zip(*every, strict=True))
    pairs, place = np.unique(pairs, return_inverse=True)
    return pairs, np.bincount(place, times, len(pairs))


@compiled
def _descend(
    order: np.ndarray,
    starts: np.ndarray,
    features: np.ndarray,
    labels: np.ndarray,
    first: np.ndarray,
    label: np.ndarray,
    having: np.ndarray,
    decay: float,
    weights: np.ndarray,
    squares: np.ndarray,
    transitions: np.ndarray,
    transition_squares: np.ndarray,
    allowed: np.ndarray,
    dropout: float,
    number: int,
) -> float:
    """Take a step for each sentence, and return the sum of the negative log-likelihoods before their steps.

    Args:
        order: `(n,)` the sentences.
        starts, features, labels: See `LabelledWords`.
        first: `(size + 1,)` where the weights of each feature start.
        label: `(p,)` the label of each weight.
        having: `(size,)` how many words have each feature.
        decay: What multiplies weights in the gradient of the penalty.
        weights, squares, transitions, transition_squares: Weights, and sums of their squared gradients; changed.
        allowed: Which transitions there are.
        dropout: The probability that a word lacks a feature.
        number: Of the pass; which features are left out depends on it.
    """
    classes, longest, total = len(transitions), 0, 0.0
    for i in order:
        longest = max(longest, starts[i + 1] - starts[i])
    # Probabilities of labels by what comes before, and by what comes after, each position with a scale of its own.
    scores, before, after = np.empty((longest, classes)), np.empty((longest, classes)), np.empty((longest, classes))
    scale, slopes = np.empty(longest), np.empty(classes)
    step, pairs = np.empty((classes, classes)), np.empty((classes, classes))
    kept = np.empty((longest, features.shape[1]), np.int32)
    # Knuth's linear congruential generator of 64 bits, of which the highest ones are the most random.
    drawn, least = np.uint64(number), np.uint64(dropout * 2**32)
    for i in order:
        start, n = starts[i], starts[i + 1] - starts[i]
        for a in range(classes):
            for b in range(classes):
                step[a, b] = np.exp(transitions[a, b]) if allowed[a, b] else 0.0
                pairs[a, b] = 0.0
        for t in range(n):
            own = labels[start + t]
            scores[t] = 0.0
            for j in range(features.shape[1]):
                drawn = drawn * _FACTOR + _SUMMAND
                kept[t, j] = features[start + t, j] if drawn >> _HIGH >= least else -1
            for f in kept[t]:
                if f >= 0:
                    for p in range(first[f], first[f + 1]):
                        scores[t, label[p]] += weights[p]
            highest = scores[t].max()
            total -= scores[t, own] - highest
            if t:
                total -= transitions[labels[start + t - 1], own]
                pairs[labels[start + t - 1], own] -= 1.0
            scale[t] = 0.0
            for b in range(classes):
                scores[t, b] = np.exp(scores[t, b] - highest)
                value = 1.0
                if t:
                    value = 0.0
                    for a in range(classes):
                        value += before[t - 1, a] * step[a, b]
                before[t, b] = value * scores[t, b]
                scale[t] += before[t, b]
            total += np.log(scale[t])
            for b in range(classes):
                before[t, b] /= scale[t]
        for t in range(n - 1, -1, -1):
            if t == n - 1:
                after[t] = 1.0
            else:
                for a in range(classes):
                    value = 0.0
                    for b in range(classes):
                        joint = step[a, b] * scores[t + 1, b] * after[t + 1, b] / scale[t + 1]
                        pairs[a, b] += before[t, a] * joint
                        value += joint
                    after[t, a] = value
        for t in range(n):
            for b in range(classes):
                slopes[b] = before[t, b] * after[t, b]
            slopes[labels[start + t]] -= 1.0
            for f in kept[t]:
                if f >= 0:
                    less = decay / having[f]
                    for p in range(first[f], first[f + 1]):
                        slope = slopes[label[p]] + less * weights[p]
                        squares[p] += slope * slope
                        weights[p] -= _RATE * slope / np.sqrt(squares[p])
        less = decay * n / len(labels)
        for a in range(classes):
            for b in range(classes):
                if allowed[a, b]:
                    slope = pairs[a, b] + less * transitions[a, b]
                    transition_squares[a, b] += slope * slope
                    transitions[a, b] -= _RATE * slope / np.sqrt(transition_squares[a, b])
    return total
