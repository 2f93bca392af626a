"""Sentence embeddings: `Embeddings`."""

from collections.abc import Iterator

from longspan.tasks.base.baselines.bags import Candidate, Documents
from longspan.tasks.base.baselines.embeddings import STRENGTHS, EmbeddingBaseline
from longspan.tasks.multi_label_classification.baselines._by_label import LabelBaseline, label_outputs
from longspan.tasks.multi_label_classification.scores import MultiLabelScores


class Embeddings(LabelBaseline, EmbeddingBaseline[MultiLabelScores]):
    """Frozen sentence embeddings with logistic regression by label."""

    def candidates(self, documents: Documents, seed: int) -> Iterator[Candidate]:
        found = self.features(documents.texts)
        truth = documents.targets["train"].numpy() > 0.5
        parameters = (found["train"].shape[1] + 1) * truth.shape[1]
        for strength in STRENGTHS:
            yield Candidate({"C": strength}, label_outputs(found, truth, strength, seed, dense=True), parameters)
