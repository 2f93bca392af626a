"""Numbers of nodes and edges: `Linear`."""

from longspan.tasks.base.linear import ClassCounts


class Linear(ClassCounts):
    """Logistic regression on how many nodes of each type and degree a graph has, and edges between two types.

    With `model.wide`, models contain it (`longspan.models.wide.linear.GraphPart`).
    """
