"""Naive Bayes as weights of n-grams: `Nb`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from longspan.tasks.base.baselines.bags import (
    BagBaseline,
    Candidate,
    Documents,
    class_logits,
    classes_against_the_rest,
    log_odds,
    presence,
)
from longspan.tasks.base.classes import ClassificationScores

#: Settings that validation chooses from: the longest n-grams in words, and scikit-learn's C.
LONGEST = (2, 3)
STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0)


class Nb(BagBaseline[ClassificationScores]):
    """Occurrence of word n-grams, weighted by naive Bayes, with logistic regression; several classes one by one.

    The weight of an n-gram is r = log((p / |p|) / (q / |q|)), where p and q count the training documents with it, and
    one more, of the class and of the rest.

    Source: Wang and Manning 2012, https://aclanthology.org/P12-2018, with logistic regression for their SVM.
    """

    def candidates(self, documents: Documents, seed: int) -> Iterator[Candidate]:
        wanted = classes_against_the_rest(documents.targets["train"], documents.config.num_labels)
        all_grams, sizes = presence(documents.texts, max(LONGEST))
        for longest in LONGEST:
            grams = {name: matrix[:, sizes <= longest] for name, matrix in all_grams.items()}
            # Class by class, as each weighs all n-grams differently.
            odds: dict[float, list[dict[str, np.ndarray]]] = {strength: [] for strength in STRENGTHS}
            for truth in wanted:
                ratio = _log_ratio(grams["train"], truth)
                weighted = {name: matrix.multiply(ratio).tocsr() for name, matrix in grams.items()}
                for strength in STRENGTHS:
                    odds[strength].append(log_odds(weighted, truth, strength, seed))
            parameters = (grams["train"].shape[1] + 1) * len(wanted)
            for strength in STRENGTHS:
                yield Candidate({"words": f"1 to {longest}", "C": strength}, class_logits(odds[strength]), parameters)


def _log_ratio(grams: Any, truth: np.ndarray) -> np.ndarray:
    """Return r of each column, float32, given which documents are of the class."""
    inside, outside = (1 + np.asarray(grams[rows].sum(0)).ravel() for rows in (truth, ~truth))
    found: np.ndarray = np.log(inside / inside.sum()) - np.log(outside / outside.sum())
    return found.astype(np.float32)
