"""Shared parts of node classification baselines: the graph of a recipe, and logistic regression."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.tasks.base.classes import ClassificationScores, classification_scores
from longspan.tasks.base.task import Fitted, Recipe
from longspan.training.lengths import targets

#: Values of scikit-learn's C that validation chooses from.
STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)


@dataclass(frozen=True)
class LabelledGraph:
    """A recipe's graph, as a model reads it, and the labels of each split.

    Attributes:
        features: (n, width) float32.
        source: Where each edge begins.
        target: Where it ends.
        nodes: By split, the numbers of its nodes.
        labels: By split, their classes.
        classes: The names of classes.
    """

    features: Tensor
    source: Tensor
    target: Tensor
    nodes: dict[str, Tensor]
    labels: dict[str, Tensor]
    classes: list[str]

    @classmethod
    def of(cls, recipe: Recipe) -> "LabelledGraph":
        """Read the graph of a recipe. Raises UserError for whatever is wrong with it."""
        return cls.prepared(recipe.task.prepare(recipe))

    @classmethod
    def prepared(cls, prepared: Any) -> "LabelledGraph":
        """Graph that was prepared for a model, a `PreparedGraph`."""
        inputs = prepared.inputs
        table = np.concatenate((inputs.features.table(), inputs.positions), 1)
        source, target = torch.from_numpy(inputs.edges)
        nodes = {name: torch.as_tensor(rows["node"][:]) for name, rows in prepared.splits.items()}
        labels = {name: targets(rows) for name, rows in prepared.splits.items()}
        return cls(torch.from_numpy(table), source, target, nodes, labels, prepared.details["labels"])

    def scores(self, logits: Tensor) -> dict[str, ClassificationScores]:
        """Return the scores of held-out splits, given the logits (n, classes) of all nodes."""
        return {
            name: classification_scores(logits[self.nodes[name]], self.labels[name], self.classes)
            for name in ("validation", "test")
            if name in self.nodes
        }

    def best(self, candidates: Iterable[tuple[dict[str, Any], int, Callable[[], Tensor]]]) -> Fitted:
        """Return the candidate with the highest accuracy on the validation split, the first of equals.

        Each has its settings, how many numbers it learns, and what returns its logits (n, classes).
        """
        tried = (Fitted(self.scores(fitted()), chosen, parameters) for chosen, parameters, fitted in candidates)

        def rank(found: Fitted) -> tuple[float, float]:
            own = found.scores["validation"]
            return own.accuracy, -own.loss

        return max(tried, key=rank)


def regression(known: LabelledGraph, features: Tensor, strength: float, seed: int) -> Tensor:
    """Return the logits (n, classes) of logistic regression that is fitted to the training nodes."""
    from sklearn.linear_model import LogisticRegression

    # Through a pipeline the scale of features would be learned, too; rows are scaled already.
    fitted = LogisticRegression(C=strength, max_iter=1000, random_state=seed)
    fitted.fit(features[known.nodes["train"]].numpy(), known.labels["train"].numpy())
    return torch.from_numpy(fitted.predict_log_proba(features.numpy())).float().clamp_min(-50)
