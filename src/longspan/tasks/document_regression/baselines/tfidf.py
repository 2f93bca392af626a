"""Weighted n-grams: `Tfidf`."""

from collections.abc import Iterator

from longspan.tasks.base.baselines.bags import BagBaseline, Candidate, Documents, tfidf
from longspan.tasks.document_regression.baselines._ridge import ridge_outputs
from longspan.tasks.document_regression.scores import RegressionScores

#: Weights of the squared norm that validation chooses from, for targets with a standard deviation of one.
PENALTIES = (3.0, 1.0, 0.3, 0.1)


class Tfidf(BagBaseline[RegressionScores]):
    """TF-IDF of words and pairs of words, in few documents also of characters, with ridge regression."""

    def candidates(self, documents: Documents, seed: int) -> Iterator[Candidate]:
        for features, found in tfidf(documents.texts):
            for penalty in PENALTIES:
                outputs = ridge_outputs(found, documents, penalty, solver="sparse_cg", random_state=seed)
                yield Candidate({"features": features, "alpha": penalty}, outputs, found["train"].shape[1] + 1)
