"""Statistics of cepstral coefficients: `Cepstra`."""

from longspan.tasks.base.linear import ClassCounts


class Cepstra(ClassCounts):
    """Means and deviations of cepstral coefficients, of recordings and of their fifths, with logistic regression.

    With `model.wide`, models contain it (`longspan.models.wide.linear.RecordingPart`).
    """
