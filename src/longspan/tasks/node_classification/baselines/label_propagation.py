"""Labels that spread along edges."""

import functools

import torch

from longspan.ops.propagation import propagate
from longspan.tasks.base.classes import ClassificationScores
from longspan.tasks.base.task import Baseline, Fitted, Recipe
from longspan.tasks.node_classification.baselines._nodes import LabelledGraph

SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)
"""What validation chooses from as the share that neighbours have in a node's labels."""
STEPS = 50


class LabelPropagation(Baseline[ClassificationScores]):
    """Labels of training nodes that spread along edges, without features.

    Local and global consistency (Zhou et al. 2003): F ← a·D^(-1/2) A D^(-1/2) F + (1 - a)·Y.
    """

    def fit(self, recipe: Recipe) -> Fitted[ClassificationScores]:
        known = LabelledGraph.of(recipe)
        given = torch.zeros(len(known.features), len(known.classes))
        given[known.nodes["train"], known.labels["train"]] = 1

        def spread(share: float) -> torch.Tensor:
            found = propagate(given, known.source, known.target, STEPS, 1 - share)
            # Where no label arrives, all classes are alike.
            return (found + 1e-9).log()

        return known.best(({"share": share}, 0, functools.partial(spread, share)) for share in SHARES)
