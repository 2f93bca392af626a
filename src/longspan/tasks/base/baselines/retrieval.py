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


#: Rows of a product of sparse matrices that are in memory at once.
_AT_ONCE = 256


def nearest(known: Sequence[str], texts: Sequence[str], characters: bool = False) -> list[int]:
    """Number of the known text that is nearest to each text, by the cosine of TF-IDF vectors; of equals the first.

    Args:
        known: At least one text.
        texts: Those to look up.
        characters: Whether features are n-grams of 1 to 4 characters within words, which suit languages without spaces,
            and not words and pairs of words.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = {"token_pattern": r"\w+|[^\w\s]", "ngram_range": (1, 2)}
    settings = {"analyzer": "char_wb", "ngram_range": (1, 4)} if characters else words
    vectorizer = TfidfVectorizer(sublinear_tf=True, **settings)
    table = vectorizer.fit_transform(map(composed, known)).T.tocsr()
    vectors = vectorizer.transform(map(composed, texts))
    found: list[int] = []
    for start in range(0, len(texts), _AT_ONCE):
        found += (vectors[start : start + _AT_ONCE] @ table).toarray().argmax(1).tolist()
    return found


def smoothed(scores: np.ndarray, spread: float) -> np.ndarray:
    """Return Gaussian means of `scores`, `(p,)`, around each; beyond either end is 0, and 0 is no averaging."""
    if not spread:
        return scores
    reach = int(3 * spread)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / spread) ** 2)
    return np.convolve(np.pad(scores, reach), kernel / kernel.sum(), "valid")
