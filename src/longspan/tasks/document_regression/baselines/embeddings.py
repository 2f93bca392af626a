"""Sentence embeddings: `Embeddings`."""

from collections.abc import Iterator

from longspan.tasks.base.baselines.bags import Candidate, Documents
from longspan.tasks.base.baselines.embeddings import EmbeddingBaseline
from longspan.tasks.document_regression.baselines._ridge import ridge_outputs
from longspan.tasks.document_regression.scores import RegressionScores

#: Weights of the squared norm that validation chooses from, for features and targets with a standard deviation
#: of one.
PENALTIES = (10_000.0, 3_000.0, 1_000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)


class Embeddings(EmbeddingBaseline[RegressionScores]):
    """Frozen sentence embeddings with ridge regression."""

    def candidates(self, documents: Documents, seed: int) -> Iterator[Candidate]:
        found = self.features(documents.texts)
        parameters = found["train"].shape[1] + 1
        for penalty in PENALTIES:
            outputs = ridge_outputs(found, documents, penalty, solver="cholesky")
            yield Candidate({"alpha": penalty}, outputs, parameters)
