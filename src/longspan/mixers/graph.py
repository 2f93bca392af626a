"""Softmax attention over the edges of a graph only."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan.errors import UserError, check_choice
from longspan.mixers.base import Capabilities, Look, Mixer
from longspan.ops.counts import counting, log_counts, present
from longspan.ops.dropout import dropout
from longspan.ops.edges import (
    by_target,
    chain,
    chain_of_any_length,
    edge_attention,
    edge_weights,
    in_order,
    new_ones,
)
from longspan.ops.execution import by_hand, exporting
from longspan.ops.heads import head_width

SCORES = ("dot", "additive")
SLOPE = 0.2
"""That of negative numbers in the scores of the paper."""


class Edges(NamedTuple):
    """The edges of a batch of graphs.

    Attributes:
        ends: (3, n), for each edge its row in the batch, its source and its target, which attends to the source. Nodes
            are numbered from 0 in each row, padding included.
        features: (n, f), numbers of each edge; None for edges that are all alike.
    """

    ends: Int[Tensor, "3 n"]
    features: Float[Tensor, "n f"] | None = None


class Graph(Mixer):
    """Masked self-attention on a graph: a node sees the nodes that have edges to it.

    Equations:
        q_t = W_q x_t, k_t = W_k x_t, v_t = W_v x_t, split into heads of width e = dim / heads
        score "dot": z_st = q_t·k_s / √e; score "additive": z_st = LeakyReLU(a_h·v_t + b_h·v_s), slope 0.2, no q and k
        with features f of edges: z_st + (W_f f_st)_h
        y_t = W_o concat_h( Σ_{s: s→t} softmax_s(z_st) v_s )
        without edges, the sequence is a chain: s ∈ {t - 1, t, t + 1}

    Cost: edges·dim + 4·t·dim² time, edges·heads + t·dim memory on a CPU with Numba, otherwise (edges + t)·dim. Edges
        that are not in the order of targets, then sources, are sorted first
    Source: Veličković et al. 2018, "Graph Attention Networks" (masked self-attention), https://arxiv.org/abs/1710.10903
    Deviations: scores are scaled dot products by default; with score="additive", bias=False and
        output_projection=False, it is a layer of the paper with concatenated heads. With value_projection=False, too,
        vectors are averaged as they are: the propagation of Wu et al. 2019 (https://arxiv.org/abs/1902.07153) with
        learned weights. It suits graphs with few labelled nodes. No nonlinearity follows. No loops
        are added: a node sees itself only if an edge says so, and one without incoming edges has only zeros before W_o.
        An edge given twice counts once, with the features given first. Masked nodes neither send nor receive: a padding
        neighbour in the chain does not count, and nothing takes its place.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        bias: whether the projections of nodes have biases.
        value_projection: whether W_v makes the values; without it v_t = x_t.
        output_projection: whether heads are mixed by W_o; without it their concatenation is the output.
        score: "dot" or "additive": what the weights of edges are computed from.
        attention_dropout: probability with which weights of edges are zeroed in training.
        edge_width: number of features of each edge (`Edges.features`); 0 for none.

    Raises:
        UserError: when `heads` does not divide `dim`, for an unknown score, and at call time when edges name rows or
            nodes that `x` lacks (not checked in compiled programs), or features that do not fit.
    """

    capabilities = Capabilities(structure=Edges, counts=True, looks=True)

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        bias: bool = True,
        value_projection: bool = True,
        output_projection: bool = True,
        score: str = "dot",
        attention_dropout: float = 0.0,
        edge_width: int = 0,
    ) -> None:
        super().__init__(dim)
        width = head_width("graph", dim, heads)
        check_choice("score", score, SCORES)
        if not 0 <= attention_dropout < 1:
            raise UserError(
                f"graph expected attention_dropout of at least 0 and below 1, got {attention_dropout}; change it."
            )
        self.heads = heads
        self.score = score
        self.attention_dropout = attention_dropout
        self.edge_width = edge_width
        if score == "dot":
            self.query = nn.Linear(dim, dim, bias=bias)
            self.key = nn.Linear(dim, dim, bias=bias)
        else:
            self.target_score = nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, width)))
            self.source_score = nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, width)))
        self.value = nn.Linear(dim, dim, bias=bias) if value_projection else nn.Identity()
        self.output = nn.Linear(dim, dim, bias=bias) if output_projection else nn.Identity()
        self.edge_bias = nn.Linear(edge_width, heads, bias=False) if edge_width else None

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rows, length = x.shape[:2]
        if exporting():
            source, target, keep = chain_of_any_length(rows, length, x.device)
            return self._attend(x, mask, source, target, keep)
        row, source, target = chain(rows, length, x.device)
        return self._attend(x, mask, row * length + source, row * length + target, None)

    def mix_along(self, x: Tensor, mask: Tensor | None, structure: Edges, document_ids: Tensor | None) -> Tensor:
        """Edges from one document to another do not count."""
        source, target, keep, features = self._ordered(x, structure)
        if document_ids is not None:
            within = document_ids.flatten()[source] == document_ids.flatten()[target]
            keep = within if keep is None else keep & within
        return self._attend(x, mask, source, target, keep, features)

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None, structure: Edges | None = None) -> Look:
        """ "attention": what the node `at` attends to; of whole rows the mean over all nodes.

        Memory: that of `forward`, and a number for each edge and head.
        """
        b, t, _ = x.shape
        edges = Edges(chain(b, t, x.device)) if structure is None else structure
        source, target, keep, features = self._ordered(x, edges)
        query, key, _, keep, bias = self._scored(x, mask, source, target, keep, features)
        weights = edge_weights(query, key, source, target, keep, bias)
        if at is None:
            number = torch.full((b,), t, device=x.device) if mask is None else mask.sum(1).clamp_min(1)
            weights = weights / number[source // t].unsqueeze(1)
        else:
            weights = weights * (target % t == at[target // t]).unsqueeze(1)
        return Look({"attention": weights.new_zeros(b * t, self.heads).index_add(0, source, weights).view(b, t, -1).mT})

    def operations(self, length: int) -> int:
        # Along edges everything is elementwise.
        both = (self.value, self.output)
        projections = 2 * (self.score == "dot") + sum(isinstance(each, nn.Linear) for each in both)
        scores = 0 if self.score == "dot" else 4 * length * self.dim
        return 2 * projections * length * self.dim**2 + scores

    def _attend(
        self,
        x: Tensor,
        mask: Tensor | None,
        source: Tensor,
        target: Tensor,
        keep: Tensor | None,
        features: Tensor | None = None,
    ) -> Tensor:
        """Mix along the edges where `keep` is True, between positions that are numbered across all rows."""
        query, key, value, keep, bias = self._scored(x, mask, source, target, keep, features)
        factor = None
        if self.training and self.attention_dropout:
            factor = dropout(value.new_ones(source.shape[0], self.heads), self.attention_dropout)
        mixed = edge_attention(query, key, value, source, target, keep, bias, factor)
        y: Tensor = self.output(mixed.view_as(x))
        return y

    def _scored(
        self,
        x: Tensor,
        mask: Tensor | None,
        source: Tensor,
        target: Tensor,
        keep: Tensor | None,
        features: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return queries, keys, values, which edges count and what is added to their scores, as `edge_attention` takes
        them."""
        if mask is not None:
            seen = present(mask).flatten()
            real = seen[source] & seen[target]
            keep = real if keep is None else keep & real
        value = self._heads(self.value(x))
        bias = None if self.edge_bias is None or features is None else self.edge_bias(features.to(x.dtype))
        if self.score == "dot":
            query, key = self._heads(self.query(x)), self._heads(self.key(x))
        else:
            query = key = value[..., :0]
            to, of = (value * self.target_score).sum(-1), (value * self.source_score).sum(-1)
            additive = nn.functional.leaky_relu(to[target] + of[source], SLOPE)
            bias = additive if bias is None else additive + bias
        if counting(mask):
            logs = torch.where(seen, log_counts(mask).flatten(), 0)[source].to(value.dtype)
            counted = logs.unsqueeze(-1).expand(-1, self.heads)
            bias = counted if bias is None else bias + counted
        return query, key, value, keep, bias

    def _ordered(self, x: Tensor, edges: Edges) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return sources and targets in order, numbered across all rows, which edges count, and their features.

        Raises UserError for edges of nodes that are not there, and for features that do not fit.
        """
        (b, t, _), (row, source, target), features = x.shape, edges.ends, edges.features
        if features is not None and features.shape != (len(row), self.edge_width):
            raise UserError(
                f"graph expected features of {self.edge_width} numbers for each of {len(row)} edges, got the shape "
                f"{tuple(features.shape)}; give as many, and build the mixer with edge_width."
            )
        if by_hand():
            _check_nodes(edges.ends, b, t)
        source, target = row * t + source, row * t + target
        if by_hand() and in_order(source, target):
            return source, target, None, features
        order = by_target(source, target, b * t, b * t)
        source, target = source[order], target[order]
        return source, target, new_ones(source, target), None if features is None else features[order]

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.flatten(0, 1).unflatten(1, (self.heads, -1))


def _check_nodes(edges: Tensor, rows: int, nodes: int) -> None:
    """Raise UserError when an edge's row, source or target is not there."""
    limits = torch.tensor([[rows], [nodes], [nodes]], device=edges.device)
    if bool(((edges < 0) | (edges >= limits)).any()):
        smallest, largest = (edges.min(1).values.tolist(), edges.max(1).values.tolist())
        raise UserError(
            f"graph expected edges of rows below {rows}, and sources and targets below {nodes}, none negative, got "
            f"rows {smallest[0]} to {largest[0]}, sources {smallest[1]} to {largest[1]} and targets {smallest[2]} to "
            f"{largest[2]}; number the nodes of each row from 0."
        )


def naive(mixer: Graph, x: Tensor, mask: Tensor | None = None, edges: Edges | None = None) -> Tensor:
    """Compute `mixer(x, mask, structure=edges)` from the equations, node by node."""
    value = mixer.value(x).unflatten(2, (mixer.heads, -1))
    edge_bias = None
    if edges is not None and edges.features is not None:
        assert mixer.edge_bias is not None
        edge_bias = mixer.edge_bias(edges.features)
    if mixer.score == "dot":
        query, key = (part(x).unflatten(2, (mixer.heads, -1)) for part in (mixer.query, mixer.key))
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        for node in range(x.shape[1]):
            if edges is None:
                numbers = {other: 0 for other in (node - 1, node, node + 1) if 0 <= other < x.shape[1]}
            else:
                here = [(s, i) for i, (r, s, t) in enumerate(edges.ends.T.tolist()) if (r, t) == (row, node)]
                # Of equal edges the first counts.
                numbers = dict(reversed(here))
            seen = sorted(s for s in numbers if mask is None or mask[row, s])
            if mask is not None and not mask[row, node]:
                continue
            mixed = torch.zeros_like(value[row, node])
            if seen:
                if mixer.score == "dot":
                    scores = (query[row, node] * key[row, seen]).sum(-1) / key.shape[3] ** 0.5
                else:
                    own = (value[row, node] * mixer.target_score).sum(-1)
                    added = own + (value[row, seen] * mixer.source_score).sum(-1)
                    scores = torch.where(added > 0, added, SLOPE * added)
                if edge_bias is not None:
                    scores = scores + edge_bias[[numbers[s] for s in seen]]
                mixed = (scores.softmax(0).unsqueeze(-1) * value[row, seen]).sum(0)
            y[row, node] = mixer.output(mixed.flatten())
    return y
