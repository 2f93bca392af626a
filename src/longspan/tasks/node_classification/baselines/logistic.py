"""Logistic regression on the features of nodes."""

import functools

from longspan.tasks.base.classes import ClassificationScores
from longspan.tasks.base.task import Baseline, Fitted, Recipe
from longspan.tasks.node_classification.baselines._nodes import STRENGTHS, LabelledGraph, regression


class Logistic(Baseline[ClassificationScores]):
    """Logistic regression on a node's own features."""

    packages = ("sklearn",)

    def fit(self, recipe: Recipe) -> Fitted[ClassificationScores]:
        known, seed = LabelledGraph.of(recipe), recipe.training["seed"]
        size = (known.features.shape[1] + 1) * len(known.classes)
        return known.best(
            ({"C": strength}, size, functools.partial(regression, known, known.features, strength, seed))
            for strength in STRENGTHS
        )
