"""BM25 averaged over neighbours."""

from typing import ClassVar

from longspan.tasks.evidence.baselines.bm25 import Bm25


class Bm25Smoothed(Bm25):
    """BM25, averaged over neighbouring parts by a Gaussian whose width validation chooses.

    Layers over parts read it with weights of words that training changes, from the width `FIRST_SPREAD` on
    (`longspan.models.parts.matching.LexicalMatch`).
    """

    spreads: ClassVar[tuple[float, ...]] = (1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0)
