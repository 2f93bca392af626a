"""Weighted n-grams: `Tfidf`."""

from collections.abc import Iterator

from longspan.tasks.bags import STRENGTHS, BagBaseline, Candidate, Documents, log_odds, tfidf
from longspan.tasks.class_scores import ClassificationScores
from longspan.tasks.document_classification.baselines._one_vs_rest import class_logits, classes_against_the_rest


class Tfidf(BagBaseline[ClassificationScores]):
    """TF-IDF of words and pairs of words, in few documents also of characters, with logistic regression.

    Several classes are trained one against the rest.
    """

    def candidates(self, documents: Documents, seed: int) -> Iterator[Candidate]:
        wanted = classes_against_the_rest(documents.targets["train"], documents.config.num_labels)
        for features, found in tfidf(documents.texts):
            for strength in STRENGTHS:
                outputs = class_logits([log_odds(found, truth, strength, seed) for truth in wanted])
                parameters = (found["train"].shape[1] + 1) * len(wanted)
                yield Candidate({"features": features, "C": strength}, outputs, parameters)
