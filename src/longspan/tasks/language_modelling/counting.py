"""Counting the n-grams of documents for `longspan.models.wide.kneser_ney.KneserNey`: `Counts`."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from longspan.models.wide.kneser_ney import KneserNey

#: Discounts of counts 1, 2 and more where the counts of counts give none, as in KenLM.
_USUAL = np.array([0.0, 0.5, 1.0, 1.5])


@dataclass(frozen=True)
class _Level:
    """The n-grams of one order, in the order of their keys.

    Attributes:
        above: `(g,)` the number, at the level above, of the n-gram without its last token.
        last: `(g,)` the last token.
        occurrences: `(g,)` how often each occurs.
        preceded: `(g,)` how many different tokens precede each, or its occurrences where it begins a document.
    """

    above: np.ndarray
    last: np.ndarray
    occurrences: np.ndarray
    preceded: np.ndarray


class Counts:
    """How often documents have each n-gram, of every order up to a highest one.

    Args:
        documents: Token ids of each document, `(n,)`, without ends.
        end: The token around documents, which is the last target of each.
        vocab_size: Number of token ids.
        highest: The highest order.
    """

    def __init__(self, documents: Sequence[np.ndarray], *, end: int, vocab_size: int, highest: int) -> None:
        self.vocab_size = vocab_size
        tokens = np.concatenate([np.concatenate([[end], each, [end]]) for each in documents]).astype(np.int64)
        depth = np.concatenate([np.arange(len(each) + 2) for each in documents])
        self._levels: list[_Level] = []
        numbers, above, last = tokens, np.zeros(vocab_size, np.int64), np.arange(vocab_size)
        occurrences = np.bincount(tokens[depth > 0], minlength=vocab_size)
        for order in range(1, highest + 1):
            where = np.flatnonzero(depth >= order)
            keys = numbers[where - 1] * vocab_size + tokens[where]
            longer, first, inverse, times = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
            # What each longer n-gram is without its first token.
            preceded = np.bincount(numbers[where[first]], minlength=len(last))
            begins = np.zeros(len(last), bool)
            if order > 1:
                # What begins a document is preceded by nothing.
                begins[numbers[depth == order - 1]] = True
            below = np.where(begins, occurrences, preceded)
            self._levels.append(_Level(above, last, occurrences, below))
            numbers = np.full(len(tokens), -1)
            numbers[where] = inverse
            above, last, occurrences = longer // vocab_size, longer % vocab_size, times

    def model(self, order: int, most: int | None = None) -> KneserNey:
        """Return the tables of a model of this order with at most `most` n-grams of two tokens and more.

        Rare n-grams are left out, the longest first: their discounted counts go to the shorter ones.
        """
        levels = self._levels[:order]
        kept = _kept(levels, most)
        model = KneserNey(self.vocab_size, [int(each.sum()) for each in kept[1:]])
        place = np.arange(self.vocab_size)
        keys, shares, left, seen = [], [], [], []
        for number, level in enumerate(levels):
            counts = level.occurrences if number == order - 1 else level.preceded
            discounted = counts - _discounts(counts)[np.minimum(counts, 3)]
            contexts = len(levels[number - 1].last) if number else 1
            totals = np.bincount(level.above, counts, contexts)
            safe = np.where(totals > 0, totals, 1)
            share = np.where(kept[number], discounted / safe[level.above], 0.0)
            rest = np.where(totals > 0, 1 - np.bincount(level.above, share, contexts), 1.0)
            if number == 0:
                model.first.copy_(torch.from_numpy(share + rest[0] / self.vocab_size))
                continue
            here = kept[number]
            left.append(rest[kept[number - 1]])
            seen.append(totals[kept[number - 1]])
            shares.append(share[here])
            keys.append(place[level.above[here]] * self.vocab_size + level.last[here])
            # A pruned n-gram has no longer ones.
            start = self.vocab_size + sum(map(len, keys[:-1]))
            place = np.where(here, start + np.cumsum(here) - 1, -1)
        for name, parts in (("keys", keys), ("shares", shares), ("left", left), ("seen", seen)):
            if parts:
                getattr(model, name).copy_(torch.from_numpy(np.concatenate(parts)))
        return model


def _kept(levels: Sequence[_Level], most: int | None) -> list[np.ndarray]:
    """Return which n-grams of each level are kept so that those of two tokens and more are at most `most`."""
    least = [1] * len(levels)

    def sizes() -> list[int]:
        return [int((level.occurrences >= each).sum()) for level, each in zip(levels, least, strict=True)]

    while most is not None and sum(sizes()[1:]) > most:
        # Shorter n-grams are in longer ones, so that their bounds never are above those of longer ones.
        lowest = min(least[1:])
        least[max(number for number in range(1, len(least)) if least[number] == lowest)] += 1
    kept = [np.ones(len(levels[0].last), bool)]
    kept += [level.occurrences >= each for level, each in itertools.islice(zip(levels, least, strict=True), 1, None)]
    return kept


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
