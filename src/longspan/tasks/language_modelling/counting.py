"""Counting the n-grams of documents for `longspan.models.wide.kneser_ney.KneserNey`: `Counts` and `best_model`."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from longspan.data.text.long_documents import token_arrays
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.machine.memory import memory_limit
from longspan.models.wide.kneser_ney import KneserNey
from longspan.tasks.base.corpora import excerpt
from longspan.tasks.base.task import Prepared, check_validation

#: The highest order that is tried: no text that fits into memory has enough of longer n-grams.
HIGHEST = 8
#: Bytes that counting takes for each token, by the largest use of memory on 9 million tokens.
_BYTES = 290
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
    """Counts of each n-gram in documents. Each order is counted when a model first asks for it.

    Args:
        documents: Token ids of each document, `(n,)`, without ends.
        end: The token around documents, which is the last target of each.
        vocab_size: Number of token ids.
    """

    def __init__(self, documents: Sequence[np.ndarray], *, end: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._tokens = np.concatenate([np.concatenate([[end], each, [end]]) for each in documents]).astype(np.int64)
        #: Number of tokens of its document before each; 0 is the end that begins it, which is no target.
        self._depth = np.concatenate([np.arange(len(each) + 2) for each in documents])
        self._levels: list[_Level] = []
        # Of the order to come: the number of each position's n-gram; what each goes on from, its last token and how
        # often it occurs.
        self._numbers = self._tokens
        self._above, self._last = np.zeros(vocab_size, np.int64), np.arange(vocab_size)
        self._occurrences = np.bincount(self._tokens[self._depth > 0], minlength=vocab_size)

    def _count(self) -> None:
        """Count one order more."""
        order, tokens, depth, numbers = len(self._levels) + 1, self._tokens, self._depth, self._numbers
        where = np.flatnonzero(depth >= order)
        keys = numbers[where - 1] * self.vocab_size + tokens[where]
        longer, first, inverse, times = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        # What each longer n-gram is without its first token.
        preceded = np.bincount(numbers[where[first]], minlength=len(self._last))
        begins = np.zeros(len(self._last), bool)
        if order > 1:
            # What begins a document is preceded by nothing.
            begins[numbers[depth == order - 1]] = True
        below = np.where(begins, self._occurrences, preceded)
        self._levels.append(_Level(self._above, self._last, self._occurrences, below))
        self._numbers = np.full(len(tokens), -1)
        self._numbers[where] = inverse
        self._above, self._last, self._occurrences = longer // self.vocab_size, longer % self.vocab_size, times

    def model(self, order: int, most: int | None = None) -> KneserNey:
        """Return the tables of a model of this order with at most `most` n-grams of two tokens and more.

        Rare n-grams are left out, the longest first: their discounted counts go to the shorter ones.
        """
        while len(self._levels) < order:
            self._count()
        levels = self._levels[:order]
        kept = _frequent(levels, most)
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


def _frequent(levels: Sequence[_Level], most: int | None) -> list[np.ndarray]:
    """N-grams of each level to keep so that those of two tokens and more are at most `most`."""
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


def best_model(
    counts: Counts, documents: Sequence[np.ndarray], scored: np.ndarray, end: int, most: int | None = None
) -> KneserNey:
    """Return the model with at most `most` n-grams whose order has the lowest loss on documents held out.

    The order is raised as long as that loss falls, to `HIGHEST` at most; the rest is as in `losses`.
    """
    best, lowest = counts.model(1, most), np.inf
    for order in range(1, HIGHEST + 1):
        model = counts.model(order, most)
        loss = losses(model, documents, scored, end).mean()
        if loss > lowest:
            break
        best, lowest = model, loss
    return best


def losses(model: KneserNey, documents: Sequence[np.ndarray], scored: np.ndarray, end: int) -> np.ndarray:
    """Return the losses in nats of the first `scored` `(d,)` targets of documents, one document after the other.

    Args:
        model: Model that predicts them.
        documents: Token ids of each document, `(n,)`, without ends.
        scored: Number of scored targets of each: its n tokens and its end, from the first one on.
        end: The token around documents.
    """
    found = [np.zeros(0, np.float32)]
    for document, count in zip(documents, scored, strict=True):
        if count:
            row = torch.from_numpy(np.concatenate([[end], document, [end]])[: count + 1].astype(np.int64))
            found.append(-model.probabilities(model.contexts(row[None, :-1]), row[None, 1:])[0].log().numpy())
    return np.concatenate(found)


def check_memory(tokens: int) -> None:
    """Raise UserError if the n-grams of a text of this number of tokens cannot be counted in this machine's memory."""
    memory, needed = memory_limit(), tokens * _BYTES
    if needed > memory:
        raise UserError(
            f"expected a text whose n-grams can be counted in {memory / 2**30:.0f} GiB of memory, got {tokens:,} "
            f"tokens, which take about {needed / 2**30:.0f} GiB; set model.wide=false, or train on a part of the text."
        )


def count(prepared: Prepared, max_eval_tokens: int, most: int | None = None) -> KneserNey:
    """Return the model of the training split with at most `most` n-grams, its order chosen on the validation split.

    Raises:
        UserError: There is no validation split, or the training split is too large for this machine's memory.
    """
    check_validation(prepared.splits)
    check_memory(sum(prepared.splits["train"]["length"][:]))
    tokenizer, validation = tokenizer_of(prepared.processor), prepared.splits["validation"]
    end = tokenizer.eos_token_id
    counts = Counts(token_arrays(prepared.splits["train"]), end=end, vocab_size=len(tokenizer))
    return best_model(counts, token_arrays(validation), excerpt(validation["length"][:], max_eval_tokens), end, most)
