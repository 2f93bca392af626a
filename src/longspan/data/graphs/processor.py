"""The processor of graphs: features of nodes, scaled, and where nodes are, as streams."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.data.batches.streams import Stream
from longspan.data.columns.kinds import Column, Label
from longspan.data.graphs.graph import Features, Graph
from longspan.data.graphs.options import GraphData
from longspan.data.graphs.positions import eigenvector_positions, walk_positions
from longspan.data.processor import Encoded, Processor
from longspan.errors import UserError
from longspan.machine.printing import note
from longspan.models.settings import LARGEST
from longspan.options import FINITE, REQUIRED, Range, option, same_as

#: A sum that is smaller than this divides nothing.
_SMALLEST = 1e-6
#: A feature that varies less than this share of its mean is constant: the rounding of float32.
_CONSTANT = float(np.finfo(np.float32).eps)
#: Counts of words have more features; a few numbers with units, many of them 0, do not share a sum.
_COUNTS = 16


@dataclass(frozen=True)
class NodeInputs:
    """Model inputs of a graph.

    Attributes:
        features: Those of nodes, scaled.
        positions: (n, p) float32.
        edges: (2, m), in the order of a `Graph`.
        edge_features: (m, f) float32.
    """

    features: Features
    positions: np.ndarray
    edges: np.ndarray
    edge_features: np.ndarray

    def part(self, nodes: np.ndarray, edges: np.ndarray, which: np.ndarray) -> "NodeInputs":
        """Inputs of a part: some nodes, edges with their numbers in it, and the numbers of these edges."""
        return NodeInputs(self.features.of(nodes), self.positions[nodes], edges, self.edge_features[which])

    def streams(self) -> dict[str, np.ndarray]:
        """Return the streams of an example."""
        return {
            "nodes": np.diff(self.features.starts),
            "columns": self.features.columns,
            "values": self.features.values,
            "places": self.positions,
            "edges": self.edges.T,
            "edge_features": self.edge_features,
        }

    def batch(self) -> dict[str, Tensor]:
        """Return a batch of this graph alone."""
        streams = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in self.streams().items()}
        edges = streams.pop("edges").T
        features = streams.pop("edge_features")
        found = {name: stream.unsqueeze(0) for name, stream in streams.items() if stream.shape[-1:] != (0,)}
        found["nodes"] = streams["nodes"].unsqueeze(0)
        if features.shape[1]:
            found["edge_features"] = features
        return {**found, "edges": torch.cat((torch.zeros_like(edges[:1]), edges)).contiguous()}


@dataclass(frozen=True)
class GraphProcessor(Processor):
    """Graphs whose nodes have features."""

    width: int = option(REQUIRED, "how many features nodes have", Range(0, LARGEST))
    edge_width: int = option(REQUIRED, "how many features edges have", Range(0, LARGEST))
    normalize: str = option(REQUIRED, "scaling of features of nodes", ("rows", "columns", "none"))
    mean: list[float] = option(REQUIRED, "what is subtracted from each feature, with normalize=columns", FINITE)
    scale: list[float] = option(REQUIRED, "what each is divided by", Range(above=0, below=math.inf))
    walk_positions: int = same_as(GraphData, "walk_positions")
    eigenvector_positions: int = same_as(GraphData, "eigenvector_positions")
    edge_mean: list[float] = option([], "what is subtracted from each feature of edges", FINITE)
    edge_scale: list[float] = option(
        [], "what each is divided by; none where they are not scaled", Range(above=0, below=math.inf)
    )

    def check_values(self) -> None:
        nodes, edges = (self.width if self.normalize == "columns" else 0,), (0, self.edge_width)
        for name, mean, scale, wanted in (
            ("mean and scale", self.mean, self.scale, nodes),
            ("edge_mean and edge_scale", self.edge_mean, self.edge_scale, edges),
        ):
            if len(mean) != len(scale) or len(mean) not in wanted:
                raise UserError(
                    f"{name} must have {wanted[-1]:,} numbers, got {len(mean):,} and {len(scale):,}; correct them."
                )

    @property
    def streams(self) -> Mapping[str, Stream]:
        return {
            "nodes": Stream("int64", mask="attention_mask"),
            "columns": Stream("int64"),
            "values": Stream("float32"),
            "places": Stream("float32", width=self.walk_positions + self.eigenvector_positions),
            "edges": Stream("int64", width=2, joined=True),
        }

    @classmethod
    def columns(cls, data: Any) -> Sequence[Column]:
        return [Label("node", "node_column", target=False)]

    @classmethod
    def of(cls, graph: Graph, data: GraphData) -> "GraphProcessor":
        """Processor of a graph, which learns the scales of features from the nodes to train on and from all edges."""
        features = graph.features
        normalize = _normalize(features) if data.normalize == "auto" else data.normalize
        if data.normalize == "auto" and features.width:
            what = "each node's to a sum of 1" if normalize == "rows" else "each to mean 0 and spread 1"
            note(f"features of nodes are scaled, {what} (data.normalize={normalize})")
        scales: tuple[list[float], list[float]] = ([], [])
        if normalize == "columns":
            scales = _mean_and_spread(features.of(graph.splits["train"]).table())
        of_edges: tuple[list[float], list[float]] = ([], [])
        if graph.edge_features.shape[1] and normalize != "none":
            others = graph.edge_features[~_plain_loops(graph)]
            of_edges = _mean_and_spread(others if len(others) else graph.edge_features)
        return cls(
            features.width,
            graph.edge_features.shape[1],
            normalize,
            *scales,
            data.walk_positions,
            data.eigenvector_positions,
            *of_edges,
        )

    def inputs(self, graph: Graph) -> NodeInputs:
        """Model inputs of a graph.

        Raises:
            UserError: Its nodes or edges have another number of features than those of training.
        """
        for what, found, wanted in (
            ("nodes", graph.features.width, self.width),
            ("edges", graph.edge_features.shape[1], self.edge_width),
        ):
            if found != wanted:
                raise UserError(
                    f"expected {wanted:,} features of {what} in {graph.source}, as in training, got {found:,}; give "
                    "the same features."
                )
        places = [np.zeros((len(graph), 0), np.float32)]
        if self.walk_positions:
            places.append(walk_positions(graph.edges, len(graph), self.walk_positions))
        if self.eigenvector_positions:
            places.append(eigenvector_positions(graph.edges, len(graph), self.eigenvector_positions))
        edge_features = graph.edge_features
        if self.edge_scale:
            scaled = (edge_features - np.array(self.edge_mean)) / np.array(self.edge_scale)
            # A loop that was added says nothing, which is 0 before and after.
            edge_features = np.where(_plain_loops(graph)[:, None], 0, scaled).astype(np.float32)
        return NodeInputs(self._scaled(graph.features), np.concatenate(places, 1), graph.edges, edge_features)

    def encode(self, rows: Mapping[str, Sequence[Any]], data: Any) -> list[Encoded]:
        return [Encoded(self.inputs(graph).streams()) for graph in rows["graph"]]

    def settings(self, model: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "node_features": self.width,
            "place_features": self.walk_positions + self.eigenvector_positions,
        }
        if self.edge_width and "graph" in (model.get("mixers") or ["graph"]):
            options = dict(model.get("mixer_options") or {})
            options["graph"] = {**(options.get("graph") or {}), "edge_width": self.edge_width}
            found["mixer_options"] = options
        return found

    def _scaled(self, features: Features) -> Features:
        if self.normalize == "columns":
            return Features.dense((features.table() - np.array(self.mean)) / np.array(self.scale))
        if self.normalize == "none":
            return features
        sums = np.add.reduceat(np.append(features.values, 0), features.starts[:-1]) if len(features.values) else 0
        sums = np.where(np.diff(features.starts) > 0, sums, 1)
        sums = np.where(np.abs(sums) > _SMALLEST, sums, 1)
        return replace(
            features, values=(features.values / np.repeat(sums, np.diff(features.starts))).astype(np.float32)
        )


def _normalize(features: Features) -> str:
    """Scaling that suits features: by rows where they are like counts of words, else by columns."""
    entries = (len(features.starts) - 1) * features.width
    counts = features.width >= _COUNTS and 2 * len(features.values) < entries
    return "rows" if counts and (features.values >= 0).all() else "columns"


def _mean_and_spread(table: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean of each column, and its standard deviation, or 1 where it is constant."""
    table = table.astype(np.float64)
    mean, spread = table.mean(0), table.std(0)
    return mean.tolist(), np.where(spread > _CONSTANT * np.abs(mean), spread, 1).tolist()


def _plain_loops(graph: Graph) -> np.ndarray:
    """Whether each edge (m,) leads from a node to itself and has no features."""
    return (graph.edges[0] == graph.edges[1]) & ~graph.edge_features.any(1)
