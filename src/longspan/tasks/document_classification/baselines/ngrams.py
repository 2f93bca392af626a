"""Linear models over the n-grams of the model's own tokens, averaged: `Ngrams`."""

from longspan.tasks.base.classes import ClassificationScores
from longspan.tasks.base.ngrams.counts import NgramCounts


class Ngrams(NgramCounts[ClassificationScores]):
    """Linear models over n-grams of the recipe's tokens, averaged: naive-Bayes and TF-IDF weights.

    Documents are cut to `data.max_length`, as for a model. With `model.wide`, models contain it (`Wide`).

    Source: Wang and Manning 2012, https://aclanthology.org/P12-2018, in part (`longspan.tasks.base.ngrams.fitting`).
    """
