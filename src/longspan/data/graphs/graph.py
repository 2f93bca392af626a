"""Graphs in memory: `Graph`, whose nodes have features and labels and whose edges are in order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from longspan.errors import UserError

UNLABELLED = -1
"""The class of a node without a label."""


@dataclass(frozen=True)
class Features:
    """Features of nodes, of which only those that are not zero are kept, node after node.

    Attributes:
        starts: (n + 1,) where the features of each node begin.
        columns: (k,) which feature each one is, from 0.
        values: (k,) float32.
        width: Number of features.
    """

    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    width: int

    @classmethod
    def dense(cls, values: np.ndarray) -> "Features":
        """Return features from a table (n, width)."""
        row, column = np.nonzero(values)
        return cls.sparse(row, column, values[row, column], values.shape)

    @classmethod
    def sparse(cls, row: np.ndarray, column: np.ndarray, value: np.ndarray, shape: Sequence[int]) -> "Features":
        """Return features from the places of those that are not zero, in any order."""
        order = np.lexsort((column, row))
        starts = np.zeros(shape[0] + 1, np.int64)
        np.cumsum(np.bincount(row, minlength=shape[0]), out=starts[1:])
        return cls(starts, column[order].astype(np.int64), value[order].astype(np.float32), int(shape[1]))

    def of(self, nodes: np.ndarray) -> "Features":
        """Features of some nodes, in this order."""
        places, starts = ranges(self.starts, nodes)
        return Features(starts, self.columns[places], self.values[places], self.width)

    def table(self) -> np.ndarray:
        """Return all features, (n, width) float32."""
        found = np.zeros((len(self.starts) - 1, self.width), np.float32)
        found[np.repeat(np.arange(len(found)), np.diff(self.starts)), self.columns] = self.values
        return found


@dataclass(frozen=True)
class Graph:
    """A graph.

    Attributes:
        source: Its name in messages.
        names: The name of each node.
        features: Features of nodes.
        edges: (2, m) int64: the source and the target of each edge, which the target attends to, ordered by target,
            then by source; no edge is there twice. An undirected edge is two of them.
        edge_features: (m, f) float32.
        labels: (n,) int64: the class of each node, UNLABELLED where it has none.
        classes: The names of classes.
        splits: By name of a split, the numbers of its nodes. Empty where the source has none.
    """

    source: str
    names: Sequence[str]
    features: Features
    edges: np.ndarray
    edge_features: np.ndarray
    labels: np.ndarray
    classes: Sequence[str] = ()
    splits: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)


def in_order(
    source: np.ndarray,
    target: np.ndarray,
    features: np.ndarray | None = None,
    *,
    directed: bool,
    loops: bool,
    nodes: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return edges (2, m) in the order of a `Graph`, and their features (m, f), from edges in any order.

    Args:
        source: (k,) where each edge begins.
        target: (k,) where it ends.
        features: (k, f), if edges have any; of equal edges, the first one's count.
        directed: Whether an edge leads one way only; otherwise it is there in both.
        loops: Whether each node gets an edge to itself, with features of zeros unless it has one.
        nodes: Number of nodes.
    """
    features = np.zeros((len(source), 0), np.float32) if features is None else features
    if not directed:
        source, target = np.concatenate((source, target)), np.concatenate((target, source))
        features = np.concatenate((features, features))
    if loops:
        each = np.arange(nodes)
        source, target = np.concatenate((source, each)), np.concatenate((target, each))
        features = np.concatenate((features, np.zeros((nodes, features.shape[1]), np.float32)))
    else:
        others = source != target
        source, target, features = source[others], target[others], features[others]
    # The first of equal numbers is the one that `unique` returns.
    _, first = np.unique(target.astype(np.int64) * nodes + source, return_index=True)
    return np.stack((source[first], target[first])).astype(np.int64), features[first].astype(np.float32)


def numbered(names: Sequence[str], wanted: Sequence[str], where: str) -> np.ndarray:
    """Return the numbers of nodes that are `wanted` by name. Raises UserError for one that is not there."""
    known = {name: number for number, name in enumerate(names)}
    missing = next((name for name in wanted if name not in known), None)
    if missing is not None:
        raise UserError(f"{where}: expected names of nodes, got {missing!r}, which no node has; add the node.")
    return np.fromiter((known[name] for name in wanted), np.int64, len(wanted))


def ranges(starts: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of everything that `rows` have, one row after the other, and where each row's begin.

    `starts` (n + 1,) says where the things of each row begin.
    """
    sizes = starts[rows + 1] - starts[rows]
    begins = np.concatenate(([0], np.cumsum(sizes)))
    places = np.arange(begins[-1]) - np.repeat(begins[:-1] - starts[rows], sizes)
    return places, begins
