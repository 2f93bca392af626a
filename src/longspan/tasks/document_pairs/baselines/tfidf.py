"""TF-IDF of both documents of a pair, compared: `Tfidf`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from longspan.tasks.base.baselines.bags import STRENGTHS, BagBaseline, Candidate, Documents, Matrices, candidates, tfidf
from longspan.tasks.base.classes import ClassificationScores


class Tfidf(BagBaseline[ClassificationScores]):
    """TF-IDF of both documents, compared by cosine, |u - v| and u * v, with logistic regression.

    Their words and pairs of words, in few documents also characters, are counted together. The validation split
    chooses among the cosine alone, the cosine with |u - v| and u * v, and all of these with u and v. Several classes
    are trained one against the rest.
    """

    def candidates(self, documents: Documents, seed: int) -> Iterator[Candidate]:
        first, second = documents.columns.values()
        both = {split: first[split] + second[split] for split in first}
        for name, found in tfidf(both):
            pairs = {
                split: (matrix[: len(first[split])], matrix[len(first[split]) :]) for split, matrix in found.items()
            }
            cosines = {split: _cosines(*pair) for split, pair in pairs.items()}
            yield from candidates(f"cosine of {name}", cosines, documents, STRENGTHS, seed, dense=True)
            for ordered in (False, True):
                told = f"{'u, v, ' if ordered else ''}|u - v|, u * v of {name}"
                features: Matrices = {split: _compared(*pair, ordered) for split, pair in pairs.items()}
                yield from candidates(told, features, documents, STRENGTHS, seed)


def _cosines(u: Any, v: Any) -> np.ndarray:
    """Return the cosines of TF-IDF vectors, which have length 1 or 0, `(n, 1)`."""
    return np.asarray(u.multiply(v).sum(1))


def _compared(u: Any, v: Any, ordered: bool) -> Any:
    """Return the features of pairs, sparse: cosine, |u - v| and u * v, and where they are `ordered` also u and v."""
    from scipy.sparse import csr_matrix, hstack

    alone = [u, v] if ordered else []
    return hstack([csr_matrix(_cosines(u, v)), *alone, abs(u - v), u.multiply(v)], format="csr")
