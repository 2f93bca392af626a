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
from longspan.models.settings import LARGEST
from longspan.options import FINITE, REQUIRED, Range, option, same_as

#: A feature that varies less than this is constant.
_SMALLEST = 1e-6


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
    normalize: str = same_as(GraphData, "normalize")
    mean: list[float] = option(REQUIRED, "what is subtracted from each feature, with normalize=columns", FINITE)
    scale: list[float] = option(REQUIRED, "what each is divided by", Range(above=0, below=math.inf))
    walk_positions: int = same_as(GraphData, "walk_positions")
    eigenvector_positions: int = same_as(GraphData, "eigenvector_positions")

    def check_values(self) -> None:
        wanted = self.width if self.normalize == "columns" else 0
        if not len(self.mean) == len(self.scale) == wanted:
            raise UserError(
                f"mean and scale must have {wanted:,} numbers, got {len(self.mean):,} and {len(self.scale):,}; correct "
                "them."
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
        """Return one for a graph, which learns the scales of features from the nodes to train on."""
        mean: list[float] = []
        scale: list[float] = []
        if data.normalize == "columns":
            known = graph.features.of(graph.splits["train"]).table().astype(np.float64)
            spread = known.std(0)
            mean, scale = known.mean(0).tolist(), np.where(spread > _SMALLEST, spread, 1).tolist()
        return cls(
            graph.features.width,
            graph.edge_features.shape[1],
            data.normalize,
            mean,
            scale,
            data.walk_positions,
            data.eigenvector_positions,
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
        return NodeInputs(self._scaled(graph.features), np.concatenate(places, 1), graph.edges, graph.edge_features)

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
