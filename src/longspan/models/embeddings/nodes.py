"""Nodes of graphs as vectors: of their features, and of where they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from longspan.models.embeddings.base import Embeddings
from longspan.models.settings import EmbeddingSettings, from_data
from longspan.ops.dropout import dropout
from longspan.options import Range, option


@strict
@dataclass
class NodeSettings(EmbeddingSettings):
    """Settings of embeddings of nodes."""

    feature_dropout: float | int = option(
        0.0, "probability with which a feature of a node is zeroed in training", Range(0, 1)
    )
    node_features: int = from_data(1, "number of features of a node", Range(0))
    place_features: int = from_data(0, "number of features of a place", Range(0))

    def build(self, config: Any) -> Embeddings:
        return Nodes(self.node_features, self.place_features, config.embedding_dim, self.feature_dropout)


class Nodes(Embeddings):
    """Features of nodes, most of them zero, times a matrix, and so are features of places.

    The streams are `nodes` (b, t), how many features of each node are not zero; `columns` (b, k), which these are, node
    after node; `values` (b, k), 0 at padding; and `places` (b, t, p). Cost: k·dim.

    Args:
        features: number of features of a node.
        places: number of features for their positions.
        dim: width of the vectors.
        feature_dropout: probability with which a feature is zeroed in training.
    """

    streams = ("nodes", "columns", "values", "places")

    def __init__(self, features: int, places: int, dim: int, feature_dropout: float) -> None:
        super().__init__()
        self.output_dim = dim
        self.feature_dropout = float(feature_dropout)
        # A layer whose input is never formed: of thousands of features, a node has a few.
        self.features = nn.Linear(max(features, 1), dim)
        self.places = nn.Linear(places, dim, bias=False) if places else None

    def embed(self, streams: Mapping[str, Tensor | None], mask: Tensor | None) -> Tensor:
        sizes, columns, values = (streams.get(name) for name in ("nodes", "columns", "values"))
        assert sizes is not None
        values = None if values is None else values.to(self.features.weight.dtype)
        if values is not None:
            values = dropout(values, self.feature_dropout, self.training)
        weight = self.features.weight
        # Transposing gives the gradient of a single column strides that autograd keeps, as they make no difference,
        # but DistributedDataParallel warns of.
        table = weight.view(1, -1) if weight.shape[1] == 1 else weight.T
        found = feature_sums(sizes, columns, values, table) + self.features.bias
        places = streams.get("places")
        if self.places is not None and places is not None:
            found = found + self.places(places.to(found.dtype))
        return found


def feature_sums(sizes: Tensor, columns: Tensor | None, values: Tensor | None, table: Tensor) -> Tensor:
    """Product of the features of nodes and a matrix, (b, t, d).

    Args:
        sizes: (b, t), how many features of each node are not zero.
        columns: (b, k), which these are, node after node.
        values: (b, k), 0 at padding.
        table: (features, d).
    """
    if columns is None or values is None or not columns.shape[1]:
        return table.new_zeros(*sizes.shape, table.shape[1])
    row = torch.arange(len(sizes), device=sizes.device).unsqueeze(1) * columns.shape[1]
    # Padding belongs to the last node of its row, and is zero.
    offsets = (row + sizes.cumsum(1) - sizes).flatten()
    weights = values.to(table.dtype).flatten()
    summed = nn.functional.embedding_bag(columns.flatten(), table, offsets, mode="sum", per_sample_weights=weights)
    return summed.view(*sizes.shape, -1)
