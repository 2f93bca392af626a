"""Scores of the part of a split that a training run scores."""

import math

import numpy as np
from datasets import Dataset

from longspan.tasks.language_modelling.scores import LanguageScores, language_scores


def excerpt_scores(dataset: Dataset, scored: np.ndarray, losses: np.ndarray) -> LanguageScores:
    """Return the scores of an excerpt. Of a document that is cut, characters and bytes count in proportion.

    Args:
        dataset: Documents, of `longspan.data.text.long_documents.tokenize_documents`.
        scored: `(d,)` how many targets of each are scored.
        losses: Their losses in nats, one document after the other.
    """
    shares = np.minimum(1, scored / np.maximum(1, np.asarray(dataset["length"][:])))
    characters, size = (math.ceil(shares @ np.asarray(dataset[name][:])) for name in ("characters", "bytes"))
    return language_scores(np.split(losses, np.cumsum(scored)[:-1]), characters, size)
