"""Items similar to those that the user clicked on."""

from typing import ClassVar

import numpy as np

from longspan.data.columns.values import composed
from longspan.tasks.recommendation.baselines._ranking import Ranking, Scorer
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.ragged import Ragged
from longspan.tasks.recommendation.recorded import Recorded
from longspan.tasks.recommendation.samples import Impressions

#: Number of impressions scored together.
_AT_ONCE = 4096


class Tfidf(Ranking):
    """Cosine of a candidate's title and the mean of the titles clicked before, as TF-IDF of words (scikit-learn)."""

    packages: ClassVar[tuple[str, ...]] = ("sklearn",)

    def scorer(self, recorded: Recorded, training: Impressions, data: RecommendationData) -> Scorer:
        from scipy import sparse
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.preprocessing import normalize

        vectorizer = TfidfVectorizer(sublinear_tf=True)
        try:
            titles = vectorizer.fit_transform(map(composed, recorded.catalogue["title"][:]))
        except ValueError:
            # No title has a word.
            titles = sparse.csr_matrix((len(recorded.catalogue), 1))

        def cosines(history: Ragged, candidates: Ragged) -> np.ndarray:
            shape = (len(history.sizes), titles.shape[0])
            clicked = sparse.csr_matrix((np.ones(len(history.values)), history.values, history.offsets), shape)
            users = normalize(clicked @ titles)
            found: np.ndarray = users[candidates.rows].multiply(titles[candidates.values]).sum(axis=1)
            return np.asarray(found).ravel()

        def score(shown: Impressions) -> np.ndarray:
            starts = range(0, len(shown.times), _AT_ONCE)
            parts = [np.arange(start, min(start + _AT_ONCE, len(shown.times))) for start in starts]
            return np.concatenate([cosines(shown.history.take(part), shown.candidates.take(part)) for part in parts])

        return Scorer(score, titles.shape[1])
