"""Graphs as sources give them, before edges are ordered and nodes are split: `RawGraph`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from longspan.data.columns.values import in_order as sorted_labels
from longspan.data.graphs.graph import UNLABELLED, Features, Graph, in_order
from longspan.data.graphs.options import GraphData
from longspan.errors import UserError


@dataclass(frozen=True)
class RawGraph:
    """A graph as its source has it.

    Attributes:
        where: Its name in messages.
        names: The name of each node.
        features: Features of nodes.
        source: (k,) the node that each edge begins at.
        target: (k,) the node that it ends at.
        edge_features: (k, f).
        labels: The class of each node; "" where it is unknown.
        splits: By split, the numbers of its nodes; empty where the source has none.
        directed: Whether edges lead one way; None where the source does not say.
    """

    where: str
    names: Sequence[str]
    features: Features
    source: np.ndarray
    target: np.ndarray
    edge_features: np.ndarray
    labels: Sequence[str]
    splits: Mapping[str, np.ndarray] = field(default_factory=dict)
    directed: bool | None = None

    def finished(self, data: GraphData, *, training: bool) -> Graph:
        """Return the graph that models read, its edges as `data` asks; nodes are split where labels are needed.

        Raises:
            UserError: There are no nodes or no edges, or in training too few labels or classes.
        """
        if not self.names:
            raise UserError(f"expected nodes in {self.where}, got none; give a graph with nodes.")
        if not len(self.source):
            raise UserError(f"expected edges in {self.where}, got none; give some, or classify rows of a table.")
        directed = bool(self.directed) if data.directed == "auto" else data.directed == "yes"
        edges, features = in_order(
            self.source,
            self.target,
            self.edge_features,
            directed=directed,
            loops=data.self_loops,
            nodes=len(self.names),
        )
        classes = sorted_labels({label for label in self.labels if label})
        number = {label: place for place, label in enumerate(classes)} | {"": UNLABELLED}
        labels = np.fromiter((number[label] for label in self.labels), np.int64, len(self.labels))
        if training and len(classes) < 2:
            raise UserError(
                f"expected nodes of at least two classes in {self.where}, got {len(classes)}; check data.label_column."
            )
        splits = self.splits or (_drawn(labels, data) if classes else {})
        kept = {name: nodes[labels[nodes] != UNLABELLED] for name, nodes in splits.items()}
        if training and not len(kept.get("train", ())):
            raise UserError(f"expected labelled nodes to train on in {self.where}, got none; check data.split_column.")
        return Graph(self.where, self.names, self.features, edges, features, labels, classes, kept)


def _drawn(labels: np.ndarray, data: GraphData) -> dict[str, np.ndarray]:
    """Return splits of the labelled nodes, of each class the same shares."""
    random = np.random.default_rng(data.split_seed)
    parts: dict[str, list[np.ndarray]] = {"train": [], "validation": [], "test": []}
    for label in range(int(labels.max()) + 1):
        nodes = random.permutation(np.flatnonzero(labels == label))
        validation = round(len(nodes) * data.validation_fraction)
        test = round(len(nodes) * data.test_fraction)
        parts["validation"].append(nodes[:validation])
        parts["test"].append(nodes[validation : validation + test])
        parts["train"].append(nodes[validation + test :])
    found = {name: np.sort(np.concatenate(some)) for name, some in parts.items()}
    return {name: nodes for name, nodes in found.items() if len(nodes)}
