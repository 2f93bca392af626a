"""Weighted n-grams: `Tfidf`."""

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from longspan.models import LongspanConfig
from longspan.tasks.bags import STRENGTHS, BagBaseline, Candidate, Documents, log_odds, tfidf
from longspan.tasks.multi_label_classification.scores import MultiLabelScores, best_thresholds


class Tfidf(BagBaseline[MultiLabelScores]):
    """TF-IDF of words and pairs of words, in few documents also of characters, with logistic regression by label.

    The thresholds of labels are chosen on the validation split, as those of models are.
    """

    def candidates(self, documents: Documents, seed: int) -> Iterator[Candidate]:
        truth = documents.targets["train"].numpy() > 0.5
        for features, found in tfidf(documents.texts):
            parameters = (found["train"].shape[1] + 1) * truth.shape[1]
            for strength in STRENGTHS:
                labels = [log_odds(found, has, strength, seed) for has in truth.T]
                outputs = {
                    split: torch.from_numpy(np.stack([odds[split] for odds in labels], -1)) for split in labels[0]
                }
                yield Candidate({"features": features, "C": strength}, outputs, parameters)

    def decided(self, config: LongspanConfig, outputs: Tensor, targets: Tensor) -> LongspanConfig:
        found = copy.deepcopy(config)
        found.head.thresholds = best_thresholds(outputs, targets)
        return found
