"""Words that go together in texts without labels: latent semantic analysis, `Latent`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from longspan.tasks.base.ngrams.bags import Bags

#: Texts that are read at most, evenly spread over all, and texts that a token is in at least.
TEXTS, RARE = 50_000, 3
#: Directions that are found besides those wanted, and passes over the texts.
_MORE, _PASSES = 20, 4


@dataclass(frozen=True)
class Latent:
    """Directions in which the TF-IDF vectors of texts differ most: their singular vectors (Deerwester et al. 1990).

    Attributes:
        idf: `(v,)` float64 inverse frequency of each token in the texts; 0 for rare ones.
        directions: `(v, k)` float32, orthonormal, that of the largest singular value first.
    """

    idf: np.ndarray
    directions: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[np.ndarray], words: np.ndarray, count: int) -> Self:
        """Directions of texts.

        Args:
            texts: Token ids of each, `(t,)`.
            words: `(v,)` bool, which tokens count. Punctuation would take directions of its own.
            count: Number of directions, fewer where texts or tokens are.
        """
        chosen = np.linspace(0, max(0, len(texts) - 1), min(len(texts), TEXTS)).astype(int)
        ids, times, sizes = [np.zeros(0, np.int64)], [np.zeros(0)], [0]
        for number in chosen:
            found, how_often = np.unique(texts[number], return_counts=True)
            ids.append(found)
            times.append(1 + np.log(how_often))
            sizes.append(len(found))
        columns, rows = np.concatenate(ids), np.repeat(np.arange(len(chosen)), sizes[1:])
        frequency = np.bincount(columns, minlength=len(words))
        known = words & (frequency >= min(RARE, max(1, len(chosen))))
        # Without the usual + 1, which lets words of nearly all texts set the first directions.
        idf = np.where(known, np.log((1 + len(chosen)) / (1 + frequency)), 0.0)
        values = np.concatenate(times) * idf[columns]
        length = np.sqrt(np.bincount(rows, values**2, len(chosen)))
        values = (values / (length[rows] + 1e-12)).astype(np.float32)
        count = min(count, len(chosen), int(known.sum()))
        return cls(idf, _singular(rows, columns, values, (len(chosen), len(words)), count))

    def among(self, tokens: np.ndarray, numbers: np.ndarray, size: int) -> Self:
        """The same by other numbers below `size`: `numbers`, (n,), of some `tokens`, (n,)."""
        idf, directions = np.zeros(size), np.zeros((size, self.directions.shape[1]), np.float32)
        idf[numbers], directions[numbers] = self.idf[tokens], self.directions[tokens]
        return replace(self, idf=idf, directions=directions)


def _singular(
    rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int], count: int
) -> np.ndarray:
    """Right singular vectors, (v, k), of a sparse matrix by subspace iteration (Halko et al. 2011)."""
    if not count:
        return np.zeros((shape[1], 0), np.float32)
    order = np.argsort(columns, kind="stable")
    matrix = Bags(columns.astype(np.int32), values, np.bincount(rows, minlength=shape[0]), shape[1])
    transposed = Bags(rows[order].astype(np.int32), values[order], np.bincount(columns, minlength=shape[1]), shape[0])
    size = min(count + _MORE, *shape)
    start = np.random.default_rng(0).standard_normal((shape[1], size)).astype(np.float32)
    basis = np.linalg.qr(start)[0]
    for _ in range(_PASSES):
        basis = np.linalg.qr(transposed.sums(np.linalg.qr(matrix.sums(basis))[0]))[0]
    _, _, turned = np.linalg.svd(matrix.sums(basis), full_matrices=False)
    return np.ascontiguousarray((basis @ turned.T)[:, :count], np.float32)
