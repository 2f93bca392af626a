"""BM25 (Robertson and Zaragoza 2009)."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from longspan.tasks.base.baselines.retrieval import BM25_PACKAGES, bm25
from longspan.tasks.evidence.baselines._retrieval import Retrieval


class Bm25(Retrieval):
    """BM25 of each part by itself, without English stop words (bm25s)."""

    packages: ClassVar[tuple[str, ...]] = BM25_PACKAGES

    def scores(self, parts: Sequence[str], questions: Sequence[str], seed: int) -> np.ndarray:
        return bm25(parts, questions)
