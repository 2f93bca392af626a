"""Many small graphs as examples: their columns, and the processor that makes streams of them."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from longspan.data.batches.streams import Stream
from longspan.data.columns.kinds import Column, Numbers, Words
from longspan.data.columns.literals import list_in
from longspan.data.config import SourceData
from longspan.data.graphs.graph import in_order
from longspan.data.graphs.positions import walk_positions
from longspan.data.processor import Encoded, Places, Processor, Unreadable
from longspan.machine.printing import note
from longspan.options import Range, option, same_as

#: Degrees from here on are one feature.
_LARGEST_DEGREE = 32


@dataclass(frozen=True)
class GraphsData(SourceData):
    """Graphs, a row of a table for each."""

    nodes_column: str = option("nodes", 'column with the types of a graph\'s nodes, a list of texts: `["C", "C", "O"]`')
    edges_column: str = option(
        "edges", "column with its edges, a list of pairs of numbers of nodes, from 0: `[[0, 1], [1, 2]]`"
    )
    label_column: str = option("label", "column with its class")
    directed: bool = option(
        False, "whether a node sees only the nodes that have edges to it; otherwise edges lead both ways"
    )
    self_loops: bool = option(True, "whether each node has an edge to itself")
    walk_positions: int = option(
        0,
        "steps of a random walk, for each of which a node has its probability of return as a feature",
        Range(0, 256),
    )


@dataclass(frozen=True)
class Pairs(Numbers):
    """The edges of a graph: a list of pairs of numbers of nodes, or the same as JSON; none is fine.

    Its values are these numbers one after the other.
    """

    required: bool = field(default=False, kw_only=True)
    kind = "a list of pairs of numbers of nodes"

    def parse(self, cell: Any, folder: Path) -> list[float]:
        items = list_in(cell) if isinstance(cell, str) else cell
        if not isinstance(items, list) or not all(isinstance(one, list | tuple) and len(one) == 2 for one in items):
            raise self._bad_cell("something else")
        return super().parse([number for pair in items for number in pair], folder)

    def is_missing(self, value: Any) -> bool:
        return value is None


@dataclass(frozen=True)
class GraphsProcessor(Processor):
    """Graphs whose nodes have types.

    Attributes:
        types: The types of nodes in the training graphs. Nodes of others have no features.
    """

    types: list[str]
    walk_positions: int = same_as(GraphsData, "walk_positions")
    degrees: int = option(0, "degrees that are features, the last of which stands for larger ones too", Range(0, 256))

    @property
    def streams(self) -> Mapping[str, Stream]:
        places = {"places": Stream("float32", width=self.walk_positions)} if self.walk_positions else {}
        return {
            "nodes": Stream("int64", mask="attention_mask"),
            "columns": Stream("int64"),
            "values": Stream("float32"),
            **places,
            "edges": Stream("int64", width=2, joined=True),
        }

    @classmethod
    def columns(cls, data: Any) -> Sequence[Column]:
        return [Words("nodes", "nodes_column"), Pairs("edges", "edges_column")]

    @classmethod
    def learned(cls, training: Dataset, data: Any) -> "GraphsProcessor":
        found = cls(sorted({kind for types in training["nodes"][:] for kind in types}), data.walk_positions)
        if len(found.types) > 1 or data.walk_positions:
            return found
        note("nodes have one type only: how many neighbours each has is its feature")
        largest = 0
        for types, flat in zip(training["nodes"][:], training["edges"][:], strict=True):
            # `encode` reports the rows whose edges cannot be read.
            with contextlib.suppress(Unreadable):
                largest = max(largest, int(_degrees(found.read_edges(types, flat, data), len(types)).max(initial=0)))
        return replace(found, degrees=min(largest, _LARGEST_DEGREE) + 1)

    def encode(self, rows: Mapping[str, Sequence[Any]], data: Any) -> list[Encoded]:
        number = {kind: place for place, kind in enumerate(self.types)}
        return [self._graph(*row, number, data) for row in zip(rows["nodes"], rows["edges"], strict=True)]

    def places(self, values: Mapping[str, Any], encoded: Encoded, data: Any) -> Places:
        first = np.arange(len(values["nodes"]))
        return Places("nodes", np.stack([first, first + 1], 1), names=values["nodes"])

    def settings(self, model: Mapping[str, Any]) -> dict[str, Any]:
        return {"node_features": len(self.types) + self.degrees, "place_features": self.walk_positions}

    def _graph(
        self, types: Sequence[str], flat: Sequence[float] | None, number: Mapping[str, int], data: Any
    ) -> Encoded:
        edges = self.read_edges(types, flat, data)
        features = [[number[kind]] if kind in number else [] for kind in types]
        if self.degrees:
            degrees = np.minimum(_degrees(edges, len(types)), self.degrees - 1)
            features = [
                [*own, len(self.types) + degree] for own, degree in zip(features, degrees.tolist(), strict=True)
            ]
        columns = [column for own in features for column in own]
        streams: dict[str, Any] = {
            "nodes": np.array([len(own) for own in features], np.int64),
            "columns": np.array(columns or [0], np.int64),
            "values": np.ones(len(columns), np.float32) if columns else np.zeros(1, np.float32),
            "edges": edges.T,
        }
        if self.walk_positions:
            streams["places"] = walk_positions(edges, len(types), self.walk_positions)
        return Encoded(streams)

    def read_edges(self, types: Sequence[str], flat: Sequence[float] | None, data: Any) -> np.ndarray:
        """Edges of a graph (2, m), in order. Raises Unreadable for one of a node that is not there."""
        ends = np.asarray(flat or [], np.float64)
        wrong = ends[(ends < 0) | (ends >= len(types)) | (ends != np.floor(ends))]
        if len(wrong):
            raise Unreadable(
                f"expected edges between nodes 0 to {len(types) - 1:,} of a graph, got one of node {wrong[0]:g}; "
                "correct it."
            )
        source, target = ends.astype(np.int64).reshape(-1, 2).T
        edges, _ = in_order(source, target, directed=data.directed, loops=data.self_loops, nodes=len(types))
        return edges


def _degrees(edges: np.ndarray, nodes: int) -> np.ndarray:
    """Number of edges from other nodes that each node has."""
    return np.bincount(edges[1, edges[0] != edges[1]], minlength=nodes)
