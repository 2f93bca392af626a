"""Sentence embeddings: `Embeddings`."""

from collections.abc import Iterator

import numpy as np
import torch

from longspan.tasks.base.baselines.bags import Candidate, Documents, decisions
from longspan.tasks.base.baselines.embeddings import STRENGTHS, EmbeddingBaseline
from longspan.tasks.base.classes import ClassificationScores


class Embeddings(EmbeddingBaseline[ClassificationScores]):
    """Frozen sentence embeddings with logistic regression."""

    def candidates(self, documents: Documents, seed: int) -> Iterator[Candidate]:
        from sklearn.linear_model import LogisticRegression

        found = self.features(documents.texts)
        labels, classes = documents.targets["train"].numpy(), documents.config.num_labels
        parameters = (found["train"].shape[1] + 1) * (1 if classes == 2 else classes)
        for strength in STRENGTHS:
            model = LogisticRegression(C=strength, max_iter=1000, random_state=seed)
            outputs = {split: _logits(odds) for split, odds in decisions(model, found, labels).items()}
            yield Candidate({"C": strength}, outputs, parameters)


def _logits(decided: np.ndarray) -> torch.Tensor:
    """Return the logits of all classes, `(n, classes)` float32; of two classes, scikit-learn gives the log-odds."""
    both = np.stack([np.zeros_like(decided), decided], -1) if decided.ndim == 1 else decided
    return torch.from_numpy(both).float()
