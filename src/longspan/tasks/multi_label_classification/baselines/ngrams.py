"""Linear models over the n-grams of the model's own tokens, by label: `Ngrams`."""

import copy

from torch import Tensor

from longspan.models import LongspanConfig
from longspan.tasks.base.ngrams.counts import NgramCounts
from longspan.tasks.base.ngrams.kinds import CountedLabels
from longspan.tasks.multi_label_classification.scores import MultiLabelScores, best_thresholds


class Ngrams(NgramCounts[MultiLabelScores]):
    """Linear models over n-grams of the recipe's tokens by label, averaged: naive-Bayes and TF-IDF weights."""

    documents = CountedLabels

    def decision_config(self, config: LongspanConfig, outputs: Tensor, targets: Tensor) -> LongspanConfig:
        found = copy.deepcopy(config)
        found.head.thresholds = best_thresholds(outputs, targets)
        return found
