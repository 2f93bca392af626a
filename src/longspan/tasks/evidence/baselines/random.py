"""A random order."""

from collections.abc import Sequence

import numpy as np

from longspan.tasks.evidence.baselines._retrieval import Retrieval


class Random(Retrieval):
    """Parts in a random order."""

    def scores(self, parts: Sequence[str], questions: Sequence[str], seed: int) -> np.ndarray:
        return np.random.default_rng(seed).normal(size=(len(questions), len(parts)))
