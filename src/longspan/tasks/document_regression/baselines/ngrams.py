"""Ridge regression over the n-grams of the model's own tokens: `Ngrams`."""

from longspan.tasks.base.ngrams.counts import NgramCounts
from longspan.tasks.base.ngrams.kinds import CountedNumbers
from longspan.tasks.document_regression.scores import RegressionScores


class Ngrams(NgramCounts[RegressionScores]):
    """Ridge regression of TF-IDF vectors of n-grams of the recipe's tokens."""

    documents = CountedNumbers
