"""Weighted n-grams: `Tfidf`."""

from collections.abc import Iterator

from longspan.tasks.base.baselines.bags import STRENGTHS, Candidate, Documents, tfidf
from longspan.tasks.multi_label_classification.baselines._by_label import LabelBaseline, label_outputs


class Tfidf(LabelBaseline):
    """TF-IDF of words and pairs of words, in few documents also of characters, with logistic regression by label.

    The thresholds of labels are chosen on the validation split, as those of models are.
    """

    def candidates(self, documents: Documents, seed: int) -> Iterator[Candidate]:
        truth = documents.targets["train"].numpy() > 0.5
        for features, found in tfidf(documents.texts):
            parameters = (found["train"].shape[1] + 1) * truth.shape[1]
            for strength in STRENGTHS:
                outputs = label_outputs(found, truth, strength, seed)
                yield Candidate({"features": features, "C": strength}, outputs, parameters)
