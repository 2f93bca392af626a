"""The extractive oracle: `Oracle`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from longspan.tasks.summarisation.baselines._extraction import Extraction, Setting
from longspan.tasks.summarisation.reading import UNITS, fill, units


class Oracle(Extraction):
    """An upper bound for extraction, which reads the reference: sentences or lines that raise ROUGE most, one by one.

    Each part taken raises the sum of ROUGE-1 and ROUGE-2 most, until none raises it or the words are used up.
    """

    settings = tuple({"parts": kind} for kind in UNITS)

    def summaries(self, row: Mapping[str, Any], words: int, settings: Sequence[Setting]) -> Iterator[list[str]]:
        from rouge_score.tokenizers import DefaultTokenizer

        split = DefaultTokenizer(use_stemmer=True).tokenize
        wanted = [split(text) for text in row["summaries"]]
        for setting in settings:
            # Of a longer part, the beginning can be taken.
            parts = [" ".join(part.split()[:words]) for part in units(row["document"], setting["parts"])]
            tokens = [split(part) for part in parts]
            sizes = np.array([len(part.split()) for part in parts])
            yield ["\n".join(fill(parts, greedy(tokens, sizes, one, words), words)) for one in wanted]


def greedy(parts: Sequence[Sequence[str]], sizes: np.ndarray, reference: Sequence[str], words: int) -> list[int]:
    """Return the numbers of parts whose addition raises ROUGE-1 + ROUGE-2 most, in the order in which they are taken.

    Args:
        parts: The tokens of each part.
        sizes: The number of words of each part, (p,).
        reference: The tokens of the reference.
        words: Maximum number of words.
    """
    orders = [_Overlap(parts, reference, order) for order in (1, 2)]
    free = sizes <= words
    found: list[int] = []
    best, left = 0.0, words
    while free.any():
        scores = np.where(free, sum(each.with_each() for each in orders), -1.0)
        number = int(scores.argmax())
        if scores[number] <= best:
            break
        best, left = float(scores[number]), left - int(sizes[number])
        found.append(number)
        for each in orders:
            each.take(number)
        free = free & (sizes <= left)
        free[number] = False
    return found


class _Overlap:
    """F1 of the n-grams of what is taken, of one length; those across parts are left out."""

    def __init__(self, parts: Sequence[Sequence[str]], reference: Sequence[str], length: int) -> None:
        wanted = Counter(_grams(reference, length))
        places = {gram: place for place, gram in enumerate(wanted)}
        self.wanted = np.array([*wanted.values()], dtype=np.int64)
        self.counts = np.zeros((len(parts), len(places)), dtype=np.int64)
        self.totals = np.zeros(len(parts), dtype=np.int64)
        for number, part in enumerate(parts):
            grams = _grams(part, length)
            self.totals[number] = len(grams)
            for gram in grams:
                if gram in places:
                    self.counts[number, places[gram]] += 1
        self.taken, self.total = np.zeros(len(places), dtype=np.int64), 0

    def with_each(self) -> np.ndarray:
        """Return F1 with each part added, (p,)."""
        shared = np.minimum(self.taken + self.counts, self.wanted).sum(1)
        found: np.ndarray = 2 * shared / np.maximum(1, self.total + self.totals + self.wanted.sum())
        return found

    def take(self, number: int) -> None:
        self.taken += self.counts[number]
        self.total += self.totals[number]


def _grams(tokens: Sequence[str], length: int) -> list[Any]:
    return list(tokens) if length == 1 else list(pairwise(tokens))
