"""TF-IDF."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from longspan.data.columns.values import composed
from longspan.tasks.evidence.baselines._retrieval import Retrieval


class Tfidf(Retrieval):
    """Cosine of TF-IDF vectors of each part and the question, without English stop words (scikit-learn)."""

    packages: ClassVar[tuple[str, ...]] = ("sklearn",)

    def scores(self, parts: Sequence[str], questions: Sequence[str], seed: int) -> np.ndarray:
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
        try:
            documents = vectorizer.fit_transform(map(composed, parts))
        except ValueError:
            # No part has a word.
            return np.zeros((len(questions), len(parts)))
        found: np.ndarray = (vectorizer.transform(map(composed, questions)) @ documents.T).toarray()
        return found
