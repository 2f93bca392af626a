"""Weighted n-grams: `Tfidf`."""

from collections.abc import Iterator

from longspan.tasks.base.baselines.bags import STRENGTHS, BagBaseline, Candidate, Documents, candidates, tfidf
from longspan.tasks.base.classes import ClassificationScores


class Tfidf(BagBaseline[ClassificationScores]):
    """TF-IDF of words and pairs of words, in few documents also of characters, with logistic regression.

    Several classes are trained one against the rest.
    """

    def candidates(self, documents: Documents, seed: int) -> Iterator[Candidate]:
        for features, found in tfidf(documents.texts):
            yield from candidates(features, found, documents, STRENGTHS, seed)
