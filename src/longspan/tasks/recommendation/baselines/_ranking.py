"""What rankings of candidates share."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from datasets import Dataset

from longspan.tasks.base import Baseline, Fitted, check_validation
from longspan.tasks.recipe import Recipe
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.ragged import Ragged, ragged
from longspan.tasks.recommendation.reading import Recorded, read
from longspan.tasks.recommendation.scores import RecommendationScores, recommendation_scores


@dataclass(frozen=True)
class Impressions:
    """The impressions of a split that say what was clicked.

    Attributes:
        history: Catalogue numbers of what was clicked before.
        candidates: Those of what was shown.
        clicked: 1 or 0 for each of `candidates.values`.
        time: When, NaN where it is not known, `(impressions,)`.
        user: Names, `(impressions,)`.
    """

    history: Ragged
    candidates: Ragged
    clicked: np.ndarray
    time: np.ndarray
    user: np.ndarray


def impressions(rows: Dataset) -> Impressions:
    """Return the impressions of a split whose clicks are known."""
    clicked = ragged(rows, "clicked")
    known = np.flatnonzero(clicked.sizes > 0)
    columns = rows.select_columns(["time", "user"]).with_format("arrow")[:]
    return Impressions(
        history=ragged(rows, "history").take(known),
        candidates=ragged(rows, "candidates").take(known),
        clicked=clicked.values,
        time=columns["time"].cast("float64").fill_null(np.nan).to_numpy()[known],
        user=columns["user"].to_numpy()[known],
    )


class Scorer(NamedTuple):
    """How candidates are scored: `score` gives each of `Impressions.candidates.values` a number, `(n,)`, higher where a
    click is likelier; `parameters` is how many numbers were learned."""

    score: Callable[[Impressions], np.ndarray]
    parameters: int


class Ranking(Baseline[RecommendationScores]):
    """A score for each candidate of an impression."""

    @abc.abstractmethod
    def scorer(self, recorded: Recorded, training: Impressions) -> Scorer:
        """Learn from the training split."""

    def fit(self, recipe: Recipe) -> Fitted[RecommendationScores]:
        assert isinstance(recipe.data, RecommendationData)
        recorded = read(recipe.data)
        check_validation(recorded.splits)
        learned = self.scorer(recorded, impressions(recorded.splits["train"]))
        popularity = recorded.popularity()
        scores = {}
        for name in [name for name in recorded.splits if name != "train"]:
            shown = impressions(recorded.splits[name])
            scores[name] = recommendation_scores(
                learned.score(shown),
                shown.clicked,
                shown.candidates.offsets,
                users=shown.user,
                items=shown.candidates.values,
                popularity=popularity,
            )
        return Fitted(scores, {}, learned.parameters)
