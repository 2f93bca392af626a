"""Linear-chain CRFs over hashed features of words: chosen on the validation split, and cross-fitted."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from datasets.utils import tqdm
from torch import Tensor

from longspan.models.parts.linear_chain import LinearChain
from longspan.models.parts.losses import IGNORED
from longspan.models.wide.chain import FOLDS, WideChain
from longspan.ops.compiled import compiled
from longspan.ops.crf import best_path
from longspan.ops.words import NOTHING
from longspan.tasks.token_classification.labels import OUTSIDE, spans

#: Size of a weight's first step, and passes over the sentences. CRFsuite with 100 steps of L-BFGS is no more accurate.
_RATE, _PASSES = 0.2, 15
#: Initial value of sums of squares.
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
        decay: Factor of weights in the gradient of the penalty.
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


#: Weights of the squared norm, each with a dropout of features, from which the validation split chooses.
SETTINGS = ((0.3, 0.2), (1.0, 0.3))
#: The rarest features are left out where all of them would have more weights.
_MOST_WEIGHTS = 2**24
#: Words that are scored at once, and sentences that are labelled at once.
_WORDS, _ROWS = 2**13, 256
#: Where a fold has a larger share of the words, the others say little: the network reads nothing in training.
_LARGEST_FOLD = 0.6


@dataclass(frozen=True)
class HashedSentences:
    """Sentences as hashed features.

    Attributes:
        hashes: `(w, f)` int64.
        labels: `(w,)` numbers of labels, `IGNORED` where unknown.
        sizes: `(n,)` how many words each sentence has.
        folds: `(n,)` the fold of each.
    """

    hashes: np.ndarray
    labels: np.ndarray
    sizes: np.ndarray
    folds: np.ndarray


@dataclass(frozen=True)
class FittedChain:
    """Best chain on the validation split."""

    keys: np.ndarray
    words: LabelledWords
    weights: Weights
    penalty: float
    dropout: float

    def model(self, labels: int) -> WideChain:
        """Return the weights as a part of a model."""
        chain = WideChain(len(self.keys), labels, 0)
        self.enter(chain)
        return chain

    def enter(self, chain: WideChain) -> None:
        """Give the weights to a part with room for them."""
        if len(self.keys):
            chain.keys.copy_(torch.from_numpy(self.keys))
            chain.weight.copy_(torch.from_numpy(self.weights.of_features))
        chain.transitions.copy_(torch.from_numpy(self.weights.transitions))


def chosen(training: HashedSentences, validation: HashedSentences | None, names: Sequence[str]) -> FittedChain:
    """Fit with each penalty and dropout, and return what gets most of the validation split right."""
    keys, features = _renumbered(training.hashes, _MOST_WEIGHTS // len(names))
    words = LabelledWords(
        features, training.labels.astype(np.int32), np.concatenate([[0], np.cumsum(training.sizes)]).astype(np.int64)
    )
    allowed = _allowed(names)
    settings = SETTINGS if validation is not None else SETTINGS[-1:]
    # Compiled loops do not hold the interpreter's lock.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        fitted = list(
            tqdm(
                pool.map(lambda setting: fit(words, len(keys), allowed, *setting), settings),
                "Fitting features of words",
                len(settings),
                leave=False,
            )
        )
    every = [FittedChain(keys, words, weights, *setting) for weights, setting in zip(fitted, settings, strict=True)]
    if validation is None:
        return every[0]
    return max(every, key=lambda found: _score(found.model(len(names)), validation, names))


def _score(model: WideChain, sentences: HashedSentences, names: Sequence[str]) -> float:
    """Return the F1 of spans, or the accuracy of labels that have none."""
    given, starts = list(paths(model, sentences, names)), np.cumsum(sentences.sizes)[:-1]
    pairs = list(zip(np.split(sentences.labels, starts), given, strict=True))
    if not any(name.startswith("B-") for name in names):
        return sum(int((gold == own).sum()) for gold, own in pairs) / max(1, len(sentences.labels))
    sides = [[set(spans([names[n] if n != IGNORED else OUTSIDE for n in row])) for row in pair] for pair in pairs]
    right = sum(len(gold & own) for gold, own in sides)
    return 2 * right / max(1, sum(len(gold) + len(own) for gold, own in sides))


def cross_fitted(training: HashedSentences, found: FittedChain, names: Sequence[str]) -> Tensor:
    """Return the weights without each fold, `(FOLDS, size, labels)` float16; all 0 where folds are too uneven."""
    held_out = torch.zeros(FOLDS, max(1, len(found.keys)), len(names), dtype=torch.float16)
    shares = np.bincount(training.folds, training.sizes, FOLDS) / max(1, training.sizes.sum())
    if shares.max() > _LARGEST_FOLD:
        return held_out
    allowed, size = _allowed(names), len(found.keys)

    def without(fold: int) -> np.ndarray:
        return fit(found.words.part(training.folds != fold), size, allowed, found.penalty, found.dropout).of_features

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        every = tqdm(pool.map(without, range(FOLDS)), "Cross-fitting features of words", FOLDS, leave=False)
        for fold, weights in enumerate(every):
            held_out[fold, :size] = torch.from_numpy(weights)
    return held_out


def _renumbered(hashes: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes that occur in increasing order, and each one's number or -1.

    There are at most `most` of them: the most frequent ones, and of equally frequent ones those of the first columns.
    """
    # No hash is in two columns, as their kinds of features differ. Column by column takes less memory.
    every = [np.unique(column, return_counts=True) for column in hashes.T]
    keys, counts = (np.concatenate(each) for each in zip(*every, strict=True))
    keys, counts = keys[keys != NOTHING], counts[keys != NOTHING]
    if len(keys) > most:
        keys = keys[np.argsort(-counts, kind="stable")[:most]]
    keys = np.sort(keys)
    features = np.empty(hashes.shape, np.int32)
    for start in range(0, len(hashes), _WORDS):
        part = hashes[start : start + _WORDS]
        places = np.searchsorted(keys, part).clip(0, max(0, len(keys) - 1))
        features[start : start + _WORDS] = np.where(keys[places] == part, places, -1) if len(keys) else -1
    return keys, features


def _allowed(names: Sequence[str]) -> np.ndarray:
    transitions, *_ = LinearChain(list(names), learned=False)(torch.zeros(()))
    return (transitions == 0).numpy()


def paths(model: WideChain, sentences: HashedSentences, names: Sequence[str]) -> Iterator[np.ndarray]:
    """Yield the numbers of the best labels of each sentence."""
    chain = LinearChain(list(names), learned=False)
    transitions, start, end = chain(model.transitions, model.transitions, torch.ones(2))
    counts, hashes = torch.from_numpy(sentences.sizes), sentences.hashes
    scores = [model.scores(torch.from_numpy(part)) for part in np.array_split(hashes, 1 + len(hashes) // _WORDS)]
    rows = torch.cat(scores).split(counts.tolist())
    for first in range(0, len(rows), _ROWS):
        lengths = counts[first : first + _ROWS]
        padded = torch.nn.utils.rnn.pad_sequence(rows[first : first + _ROWS], batch_first=True)
        best = best_path(padded, lengths, transitions, start, end).numpy()
        yield from (path[:length] for path, length in zip(best, lengths.tolist(), strict=True))
