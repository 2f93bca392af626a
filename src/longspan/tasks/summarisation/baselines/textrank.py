"""TextRank: `Textrank`."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from longspan.tasks.base.baselines.retrieval import TFIDF_PACKAGES, tfidf
from longspan.tasks.summarisation.baselines._extraction import Ranking

_DAMPING, _STEPS, _ENOUGH = 0.85, 100, 1e-8


class Textrank(Ranking):
    """The sentences or lines that are most like the others: TextRank over cosines of TF-IDF vectors.

    The rank of a part is its probability in a random walk over parts (Mihalcea and Tarau 2004,
    https://aclanthology.org/W04-3252), with the similarity of LexRank (Erkan and Radev 2004). Questions are not read.
    """

    packages: ClassVar[tuple[str, ...]] = TFIDF_PACKAGES

    def scores(self, parts: Sequence[str], questions: Sequence[str]) -> np.ndarray:
        return np.tile(ranks(parts), (len(questions), 1))


def ranks(parts: Sequence[str]) -> np.ndarray:
    """Return the rank of each part, (p,), which add up to 1, in memory linear in the document.

    With X the TF-IDF vectors of length 1, similarities are W = X Xᵀ without its diagonal, and ranks the fixed point of
        r = (1 - d) / p + d W D⁻¹ r,   D = diag(W 1).
    W is never formed: W v = X (Xᵀ v) - v where a part has words. A part without neighbours hands its rank to all.
    """
    count = len(parts)
    fitted = tfidf(parts)
    if fitted is None:
        return np.full(count, 1 / max(1, count))
    vectors = fitted[1]
    own = np.asarray(vectors.multiply(vectors).sum(1)).ravel()

    def similar(values: np.ndarray) -> np.ndarray:
        found: np.ndarray = vectors @ (vectors.T @ values) - own * values
        # Rounding must not make a neighbour of a part that has none.
        return np.where(found > 1e-12, found, 0)

    degrees = similar(np.ones(count))
    alone = degrees == 0
    rank = np.full(count, 1 / count)
    for _ in range(_STEPS):
        handed = np.where(alone, 0, rank / np.where(alone, 1, degrees))
        new = (1 - _DAMPING) / count + _DAMPING * (similar(handed) + rank[alone].sum() / count)
        change, rank = np.abs(new - rank).sum(), new
        if change < _ENOUGH:
            break
    return rank
