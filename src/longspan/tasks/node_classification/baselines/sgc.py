"""Simplified graph convolution."""

import functools

from longspan.ops.propagation import propagate
from longspan.tasks.base.classes import ClassificationScores
from longspan.tasks.base.task import Baseline, Fitted, Recipe
from longspan.tasks.node_classification.baselines._nodes import STRENGTHS, LabelledGraph, regression

HOPS = (1, 2, 3, 4)


class Sgc(Baseline[ClassificationScores]):
    """Logistic regression on features averaged over neighbours, as a simplified graph convolution.

    Wu et al. 2019, https://arxiv.org/abs/1902.07153.
    """

    packages = ("sklearn",)

    def fit(self, recipe: Recipe) -> Fitted[ClassificationScores]:
        known, seed = LabelledGraph.of(recipe), recipe.training["seed"]
        size = (known.features.shape[1] + 1) * len(known.classes)
        averaged = {hops: propagate(known.features, known.source, known.target, hops) for hops in HOPS}
        return known.best(
            (
                {"hops": hops, "C": strength},
                size,
                functools.partial(regression, known, averaged[hops], strength, seed),
            )
            for hops in HOPS
            for strength in STRENGTHS
        )
