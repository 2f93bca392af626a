"""Linear models over the n-grams of the model's own tokens, by label: `Ngrams`."""

from longspan.tasks.base.ngrams.counts import NgramCounts
from longspan.tasks.base.ngrams.kinds import CountedLabels
from longspan.tasks.multi_label_classification.baselines._by_label import LabelThresholds
from longspan.tasks.multi_label_classification.scores import MultiLabelScores


class Ngrams(LabelThresholds, NgramCounts[MultiLabelScores]):
    """Linear models over n-grams of the recipe's tokens by label, averaged: naive-Bayes and TF-IDF weights."""

    documents = CountedLabels
