"""Newest items."""

import numpy as np

from longspan.tasks.recommendation.baselines._ranking import Ranking, Scorer
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.recorded import Recorded
from longspan.tasks.recommendation.samples import Impressions


class Recent(Ranking):
    """Items by when they were first shown in training, the latest first and those not seen there before all others.

    Without times, what stands later in the training data is later.
    """

    def scorer(self, recorded: Recorded, training: Impressions, data: RecommendationData) -> Scorer:
        times = np.where(np.isnan(training.times), np.arange(len(training.times)), training.times)
        first = np.full(len(recorded.catalogue), np.inf)
        np.minimum.at(first, training.candidates.values, times[training.candidates.rows])

        def score(shown: Impressions) -> np.ndarray:
            # Infinity would be no finite score.
            return np.minimum(first, np.finfo(np.float64).max)[shown.candidates.values]

        return Scorer(score, len(first))
