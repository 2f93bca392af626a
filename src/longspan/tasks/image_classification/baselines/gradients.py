"""Histograms of gradients and colours of parts of an image: `Gradients`."""

from longspan.tasks.base.linear import ClassCounts


class Gradients(ClassCounts):
    """Histograms of gradients, means and deviations of colours in cells of an image, with logistic regression.

    With `model.wide`, models contain it (`longspan.models.wide.pictures.PicturePart`).
    """
