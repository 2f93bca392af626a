"""Shared parts of baselines that rank candidates."""

import abc
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from longspan.tasks.base.task import Baseline, Fitted, Recipe, check_validation
from longspan.tasks.recommendation.options import RecommendationData, TrainingOptions
from longspan.tasks.recommendation.ranking import measured
from longspan.tasks.recommendation.recorded import Recorded, read_recorded
from longspan.tasks.recommendation.samples import Impressions, labelled
from longspan.tasks.recommendation.scores import RecommendationScores


class Scorer(NamedTuple):
    """Scores of candidates.

    Attributes:
        score: Gives each of `Impressions.candidates.values` a number, `(n,)`, higher where a click is likelier.
        parameters: Number of learned parameters.
        chosen: The settings that were chosen on held-out impressions, as JSON.
    """

    score: Callable[[Impressions], np.ndarray]
    parameters: int
    chosen: Mapping[str, Any] = MappingProxyType({})


class Ranking(Baseline[RecommendationScores]):
    """A score for each candidate of an impression."""

    @abc.abstractmethod
    def scorer(self, recorded: Recorded, training: Impressions, data: RecommendationData) -> Scorer:
        """Learn from the training split, whose titles are read as `data` says."""

    def fit(self, recipe: Recipe[RecommendationData, TrainingOptions]) -> Fitted[RecommendationScores]:
        recorded = read_recorded(recipe.data)
        check_validation(recorded.splits)
        learned = self.scorer(recorded, Impressions(labelled(recorded.splits["train"])), recipe.data)
        popularity = recorded.popularity()
        scores = {}
        for name, rows in recorded.scored().items():
            if name == "train":
                continue
            shown = Impressions(labelled(rows))
            scores[name] = measured(shown, learned.score(shown), popularity)
        return Fitted(scores, dict(learned.chosen), learned.parameters)
