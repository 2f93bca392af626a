"""BM25: `Bm25`."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from longspan.tasks.base.baselines.retrieval import BM25_PACKAGES, bm25, tfidf
from longspan.tasks.summarisation.baselines._extraction import Ranking


class Bm25(Ranking):
    """The sentences or lines that match the question by BM25; without a question, those most like the whole document.

    The latter have the largest cosine with the sum of the TF-IDF vectors of all parts. That is also what decides
    between parts that match a question equally well.
    """

    packages: ClassVar[tuple[str, ...]] = BM25_PACKAGES

    def scores(self, parts: Sequence[str], questions: Sequence[str]) -> np.ndarray:
        fitted = tfidf(parts)
        if fitted is None:
            return np.zeros((len(questions), len(parts)))
        vectors = fitted[1]
        typical = vectors @ np.asarray(vectors.sum(0)).ravel()
        typical = typical / max(typical.max(), 1e-9)
        # Less than any difference between two sums of BM25.
        return bm25(parts, questions) + 1e-6 * typical
