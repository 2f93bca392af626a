"""Interpolated modified Kneser-Ney smoothing on sorted arrays: `KneserNey`.

The probability of a token w after the k - 1 tokens h is, from order k = 1 up to the highest,

    p_k(w | h) = max(c(hw) - D(c(hw)), 0) / c(h) + γ(h) p_{k-1}(w | h without its first token)

with p_0 the uniform distribution over the vocabulary and p_k = p_{k-1} where h was never seen. At the highest order
c(hw) counts how often hw occurs; below, it counts the different tokens that precede hw, or the occurrences of an hw
that begins a document, which nothing precedes. c(h) = Σ_w c(hw), and γ(h) is what the discounts have taken away, so
that probabilities add up to one. The discounts D of counts 1, 2 and more are those of Chen and Goodman (1999,
https://doi.org/10.1006/csla.1999.0128), per order and from the numbers of n-grams that are counted 1 to 4 times.

An n-gram is a number: its place among the sorted keys (number of its last n - 1 tokens) · V + (its first token). So all
orders of a million tokens are counted, or looked up, by a few sorts.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

#: Discounts of counts 1, 2 and more where the counts of counts give none, as in KenLM.
_USUAL = np.array([0.0, 0.5, 1.0, 1.5])


@dataclass(frozen=True)
class Stream:
    """Documents one after the other, each as [end] t1 .. tn [end].

    Attributes:
        tokens: `(m,)` int64.
        depth: `(m,)` how many tokens of the document come before each; 0 is the end that begins a document, which is
            no target.
        vocab_size: Number of token ids.
    """

    tokens: np.ndarray
    depth: np.ndarray
    vocab_size: int

    @classmethod
    def of(cls, documents: Sequence[np.ndarray], end: int, vocab_size: int) -> Self:
        """Return the stream of documents `(n,)` without their ends."""
        tokens = [np.concatenate([[end], document, [end]]).astype(np.int64) for document in documents]
        depth = [np.arange(len(document)) for document in tokens]
        empty = [np.zeros(0, np.int64)]
        return cls(np.concatenate(tokens or empty), np.concatenate(depth or empty), vocab_size)

    def keys(self, suffixes: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where n-grams of this order end, and their keys, -1 for those with an unknown suffix.

        Args:
            suffixes: `(m,)` the number of the (n - 1)-gram that ends at each position, or -1.
            order: n, at least 2.
        """
        where = np.flatnonzero(self.depth >= order - 1)
        known = suffixes[where]
        return where, np.where(known < 0, -1, known * self.vocab_size + self.tokens[where - order + 1])


@dataclass(frozen=True)
class _Counts:
    """The counts of one order: of its n-grams, and of the contexts that these begin with.

    Attributes:
        discounted: `(g,)` c(hw) - D(c(hw)).
        totals: `(c,)` c(h); 0 for what is no context.
        taken: `(c,)` the sum of the discounts of each context.
    """

    discounted: np.ndarray
    totals: np.ndarray
    taken: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray, contexts: np.ndarray, size: int) -> Self:
        """Return the counts `(g,)` of n-grams with these contexts `(g,)`, numbers below `size`."""
        discounts = _discounts(counts)[np.minimum(counts, 3)]
        totals, taken = (np.bincount(contexts, weights, size) for weights in (counts, discounts))
        return cls(counts - discounts, totals, taken)

    def on(self, lower: np.ndarray, grams: np.ndarray, contexts: np.ndarray) -> np.ndarray:
        """Return p_k of targets `(m,)` from their p_{k-1} and the numbers of their n-grams and contexts, -1 unknown."""
        seen = np.flatnonzero(contexts >= 0)
        seen = seen[self.totals[contexts[seen]] > 0]
        gram, context = grams[seen], contexts[seen]
        found = lower.copy()
        own = np.where(gram >= 0, self.discounted[gram], 0.0)
        found[seen] = (own + self.taken[context] * lower[seen]) / self.totals[context]
        return found


def _discounts(counts: np.ndarray) -> np.ndarray:
    """Return the discounts of counts 0, 1, 2, and 3 and more: above 0, and below the count itself."""
    n = np.bincount(np.minimum(counts, 5).astype(np.int64), minlength=6).astype(float)
    found = _USUAL.copy()
    if n[1] and n[2]:
        scale = n[1] / (n[1] + 2 * n[2])
        for count in (1, 2, 3):
            discount = count - (count + 1) * scale * n[count + 1] / n[count] if n[count] else 0.0
            # Of few n-grams the formula can give less than nothing.
            found[count] = discount if 0 < discount < count else _USUAL[count]
    return found


@dataclass(frozen=True)
class _Order:
    """One order: the keys of its n-grams, and its counts if it is the highest and if it is not."""

    keys: np.ndarray
    highest: _Counts
    lower: _Counts


class KneserNey:
    """An n-gram model of every order: each is counted when it is first asked for.

    Args:
        documents: Token ids of each document, `(n,)`, without ends.
        end: The token around documents, which is the last target of each.
        vocab_size: Number of token ids.
    """

    def __init__(self, documents: Sequence[np.ndarray], *, end: int, vocab_size: int) -> None:
        self.end, self.vocab_size = end, vocab_size
        self._stream = Stream.of(documents, end, vocab_size)
        self._orders: list[_Order] = []
        # Of the order to come: its n-grams' keys, the number of each position's, their contexts and occurrences.
        targets = self._stream.depth > 0
        self._keys = np.arange(vocab_size)
        self._numbers = self._stream.tokens
        self._contexts = np.zeros(vocab_size, np.int64)
        self._occurrences = np.bincount(self._stream.tokens[targets], minlength=vocab_size)
        self._sizes = 1

    def parameters(self, order: int) -> int:
        """Return how many different n-grams a model of this order, asked for before, has counted."""
        return sum(int((each.highest.discounted > 0).sum()) for each in self._orders[:order])

    def probabilities(self, documents: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield the probabilities of all targets by the models of order 1, 2, 3 and so on, without an end.

        Args:
            documents: Token ids of each document, `(n,)`, without ends.

        Yields:
            `(m,)` float64: n + 1 targets of each document, its end the last, one document after the other.
        """
        stream = Stream.of(documents, self.end, self.vocab_size)
        targets = np.flatnonzero(stream.depth > 0)
        numbers, contexts = stream.tokens, np.zeros(len(stream.tokens), np.int64)
        found = np.full(len(targets), 1 / self.vocab_size)
        for order in itertools.count(1):
            if order > len(self._orders):
                self._count()
            counted = self._orders[order - 1]
            if order > 1:
                contexts = np.concatenate([[-1], numbers[:-1]])
                # Before a document there is none.
                contexts[stream.depth < order - 1] = -1
                numbers = _looked_up(stream, numbers, counted.keys, order)
            grams, before = numbers[targets], contexts[targets]
            yield counted.highest.on(found, grams, before)
            found = counted.lower.on(found, grams, before)

    def _count(self) -> None:
        """Count one order more."""
        order, stream = len(self._orders) + 1, self._stream
        where, keys = stream.keys(self._numbers, order + 1)
        longer, first, inverse, occurrences = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        preceded = np.bincount(longer // self.vocab_size, minlength=len(self._keys))
        # What begins a document is preceded by nothing; a document's end follows only.
        begins = np.zeros(len(self._keys), bool)
        if order > 1:
            begins[self._numbers[stream.depth == order - 1]] = True
        below = np.where(begins, self._occurrences, preceded)
        self._orders.append(
            _Order(
                self._keys,
                _Counts.of(self._occurrences, self._contexts, self._sizes),
                _Counts.of(below, self._contexts, self._sizes),
            )
        )
        self._contexts = self._numbers[where[first] - 1]
        self._sizes = len(self._keys)
        self._keys, self._occurrences = longer, occurrences
        numbers = np.full(len(stream.tokens), -1)
        numbers[where] = inverse
        self._numbers = numbers


def _looked_up(stream: Stream, suffixes: np.ndarray, keys: np.ndarray, order: int) -> np.ndarray:
    """Return the number of the n-gram that ends at each position, -1 for one without key."""
    where, wanted = stream.keys(suffixes, order)
    numbers = np.full(len(stream.tokens), -1)
    if len(keys):
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        numbers[where] = np.where(keys[place] == wanted, place, -1)
    return numbers
