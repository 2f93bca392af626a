"""Rankings of the parts of a document by their words: BM25 and TF-IDF."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from longspan.data.columns.values import composed

#: Imports of `bm25` and `tfidf`.
BM25_PACKAGES, TFIDF_PACKAGES = ("bm25s", "sklearn"), ("sklearn",)


def bm25(parts: Sequence[str], questions: Sequence[str]) -> np.ndarray:
    """Return BM25 of each part for each question, without English stop words (bm25s), (q, p)."""
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


def tfidf(parts: Sequence[str]) -> tuple[Any, Any] | None:
    """Return a vectoriser fitted to the parts, and their TF-IDF vectors of length 1, sparse (p, words).

    English stop words are left out, and counts are logarithmic (scikit-learn). None if no part has a word.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    try:
        return vectorizer, vectorizer.fit_transform(map(composed, parts))
    except ValueError:
        return None


def smoothed(scores: np.ndarray, spread: float) -> np.ndarray:
    """Return Gaussian means of `scores`, `(p,)`, around each; beyond either end is 0, and 0 is no averaging."""
    if not spread:
        return scores
    reach = int(3 * spread)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / spread) ** 2)
    return np.convolve(np.pad(scores, reach), kernel / kernel.sum(), "valid")
