"""BM25 (Robertson and Zaragoza 2009)."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from longspan.tasks.evidence.baselines._retrieval import Retrieval


class Bm25(Retrieval):
    """BM25 of each part by itself, without English stop words (bm25s)."""

    packages: ClassVar[tuple[str, ...]] = ("bm25s", "sklearn")

    def scores(self, parts: Sequence[str], questions: Sequence[str], seed: int) -> np.ndarray:
        import bm25s
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        # The words of questions are among them, which those of bm25s lack: smoothed, that is five points of recall.
        settings = {"stopwords": sorted(ENGLISH_STOP_WORDS), "return_ids": False, "show_progress": False}
        corpus = bm25s.tokenize(list(parts), **settings)
        words = {word for part in corpus for word in part}
        found = np.zeros((len(questions), len(parts)))
        if words:
            index = bm25s.BM25()
            index.index(corpus, show_progress=False)
            for row, question in zip(found, bm25s.tokenize(list(questions), **settings), strict=True):
                known = [word for word in question if word in words]
                if known:
                    row[:] = index.get_scores(known)
        return found
