"""Logistic regression on counts of nodes by their types and degrees."""

from collections import Counter
from typing import Any

import torch

from longspan.tasks.base.classes import ClassificationScores, classification_scores
from longspan.tasks.base.task import Baseline, Fitted, Recipe
from longspan.training.lengths import targets

STRENGTHS = (0.01, 0.1, 1.0, 10.0)
"""What validation chooses from as scikit-learn's C."""


class Degrees(Baseline[ClassificationScores]):
    """Logistic regression on how many nodes of each type and degree a graph has."""

    packages = ("sklearn",)

    def fit(self, recipe: Recipe) -> Fitted[ClassificationScores]:
        from sklearn.feature_extraction import DictVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        prepared = recipe.task.prepare(recipe)
        counts = {name: [_counts(row) for row in rows] for name, rows in prepared.splits.items()}
        labels = {name: targets(rows) for name, rows in prepared.splits.items()}
        names, tried = prepared.details["labels"], []
        for strength in STRENGTHS:
            model = make_pipeline(
                DictVectorizer(sparse=False),
                StandardScaler(),
                LogisticRegression(C=strength, max_iter=1000, random_state=recipe.training["seed"]),
            )
            model.fit(counts["train"], labels["train"].numpy())
            scores: dict[str, ClassificationScores] = {
                name: classification_scores(
                    torch.from_numpy(model.predict_log_proba(counts[name])).clamp_min(-50), labels[name], names
                )
                for name in ("validation", "test")
                if name in counts
            }
            tried.append(Fitted(scores, {"C": strength}, (len(model[0].vocabulary_) + 1) * len(names)))
        return max(tried, key=lambda fitted: fitted.scores["validation"].accuracy)


def _counts(row: dict[str, Any]) -> dict[str, float]:
    # One pair after the other.
    pairs = zip(row["edges"][::2], row["edges"][1::2], strict=True)
    degrees = Counter(target for source, target in pairs if source != target)
    found: Counter[str] = Counter(f"type {column}" for column in row["columns"])
    found.update(f"degree {degrees[node]}" for node in range(len(row["nodes"])))
    return dict(found)
