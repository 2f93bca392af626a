"""TF-IDF."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from longspan.data.columns.values import composed
from longspan.tasks.base.baselines.retrieval import TFIDF_PACKAGES, tfidf
from longspan.tasks.evidence.baselines._retrieval import Retrieval


class Tfidf(Retrieval):
    """Cosine of TF-IDF vectors of each part and the question, without English stop words (scikit-learn)."""

    packages: ClassVar[tuple[str, ...]] = TFIDF_PACKAGES

    def scores(self, parts: Sequence[str], questions: Sequence[str], seed: int) -> np.ndarray:
        fitted = tfidf(parts)
        if fitted is None:
            return np.zeros((len(questions), len(parts)))
        vectorizer, documents = fitted
        found: np.ndarray = (vectorizer.transform(map(composed, questions)) @ documents.T).toarray()
        return found
