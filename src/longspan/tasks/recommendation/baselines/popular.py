"""Items that others clicked most."""

import numpy as np

from longspan.tasks.recommendation.baselines._ranking import Ranking, Scorer
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.recorded import Recorded
from longspan.tasks.recommendation.samples import Impressions


class Popular(Ranking):
    """Items by how often they were clicked in training, those never clicked last."""

    def scorer(self, recorded: Recorded, training: Impressions, data: RecommendationData) -> Scorer:
        clicks = recorded.popularity()

        def score(shown: Impressions) -> np.ndarray:
            return clicks[shown.candidates.values]

        return Scorer(score, len(clicks))
