"""Softmax attention over the edges of a graph only."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.mixers._checks import check_documents, check_rows
from longspan.mixers.base import Capabilities, Mixer
from longspan.ops.edges import chain, chain_of_any_length, edge_attention, first_of_each
from longspan.ops.execution import by_hand, exporting
from longspan.ops.heads import head_width
from longspan.ops.packing import zero_padding


class Graph(Mixer):
    """Masked self-attention on a graph: a node sees the nodes that have edges to it.

    Equations:
        q_t = W_q x_t, k_t = W_k x_t, v_t = W_v x_t, split into heads of width e = dim / heads
        y_t = W_o concat_h( Σ_{s: s→t} softmax_s(q_t·k_s / √e) v_s )
        without edges, the sequence is a chain: s ∈ {t - 1, t, t + 1}

    Cost: edges·dim + 4·t·dim² time, (edges + t)·dim memory; sorting the edges adds edges·log(edges)
    Source: Veličković et al. 2018, "Graph Attention Networks" (masked self-attention), https://arxiv.org/abs/1710.10903
    Deviations: scores are scaled dot products where the paper has LeakyReLU(a·[W x_t; W x_s]), with separate queries,
        keys and values; no nonlinearity follows. No loops are added: a node sees itself only if an edge says so, and
        one without incoming edges has only zeros before W_o. An edge given twice counts once. Masked nodes neither
        send nor receive: a padding neighbour in the chain does not count, and nothing takes its place.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        bias: whether the four projections have biases.
        output_projection: whether heads are mixed by W_o; without it their concatenation is the output.

    Raises:
        UserError: when `heads` does not divide `dim`, and at call time when edges name rows or nodes that `x` lacks
            (not checked in compiled programs).
    """

    capabilities = Capabilities(edges=True)

    def __init__(self, dim: int, *, heads: int = 8, bias: bool = True, output_projection: bool = True) -> None:
        super().__init__(dim)
        head_width("graph", dim, heads)
        self.heads = heads
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias) if output_projection else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        mask: Bool[Tensor, "b t"] | None = None,
        *,
        document_ids: Int[Tensor, "b t"] | None = None,
        edges: Int[Tensor, "3 n"] | None = None,
        **others: Any,
    ) -> Float[Tensor, "b t d"] | tuple[Float[Tensor, "b t d"], Any]:
        """Mix along `edges`: for each its row in the batch, its source and its target, which attends to the source.

        Edges from one document of `document_ids` to another do not count. For everything else see `Mixer.forward`.
        """
        if edges is None or not x.shape[0] or not x.shape[1]:
            return super().forward(x, mask, document_ids=document_ids, **others)
        check_rows("graph", self.dim, x, mask)
        check_documents("graph", self.capabilities.packing, x, document_ids)
        if others:
            raise TypeError(f"graph takes no {', '.join(others)} together with edges")
        b, t, _ = x.shape
        if by_hand():
            _check_edges(edges, b, t)
        row, source, target = edges
        source, target = row * t + source, row * t + target
        keep = first_of_each(source, target)
        if document_ids is not None:
            keep = keep & (document_ids.flatten()[source] == document_ids.flatten()[target])
        return zero_padding(self._along(zero_padding(x, mask), mask, source, target, keep), mask)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rows, length = x.shape[:2]
        if exporting():
            source, target, keep = chain_of_any_length(rows, length, x.device)
            return self._along(x, mask, source, target, keep)
        row, source, target = chain(rows, length, x.device)
        return self._along(x, mask, row * length + source, row * length + target, None)

    def operations(self, length: int) -> int:
        # Along edges everything is elementwise.
        projections = 3 if isinstance(self.output, nn.Identity) else 4
        return 2 * projections * length * self.dim**2

    def _along(self, x: Tensor, mask: Tensor | None, source: Tensor, target: Tensor, keep: Tensor | None) -> Tensor:
        """Mix along the edges where `keep` is True, between positions that are numbered across all rows."""
        if mask is not None:
            real = mask.flatten()[source] & mask.flatten()[target]
            keep = real if keep is None else keep & real
        query, key, value = (
            projection(x).flatten(0, 1).unflatten(1, (self.heads, -1))
            for projection in (self.query, self.key, self.value)
        )
        y: Tensor = self.output(edge_attention(query, key, value, source, target, keep).view_as(x))
        return y


def _check_edges(edges: Tensor, rows: int, nodes: int) -> None:
    """Raise UserError when an edge's row, source or target is not there."""
    limits = torch.tensor([[rows], [nodes], [nodes]], device=edges.device)
    if bool(((edges < 0) | (edges >= limits)).any()):
        smallest, largest = (edges.min(1).values.tolist(), edges.max(1).values.tolist())
        raise UserError(
            f"graph expected edges of rows below {rows}, and sources and targets below {nodes}, none negative, got "
            f"rows {smallest[0]} to {largest[0]}, sources {smallest[1]} to {largest[1]} and targets {smallest[2]} to "
            f"{largest[2]}; number the nodes of each row from 0."
        )


def naive(mixer: Graph, x: Tensor, mask: Tensor | None = None, edges: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask, edges=edges)` from the equations, node by node."""
    query, key, value = (
        projection(x).unflatten(2, (mixer.heads, -1)) for projection in (mixer.query, mixer.key, mixer.value)
    )
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        for node in range(x.shape[1]):
            if edges is None:
                sources = {node - 1, node, node + 1} & set(range(x.shape[1]))
            else:
                sources = {s for r, s, t in edges.T.tolist() if (r, t) == (row, node)}
            seen = sorted(s for s in sources if mask is None or mask[row, s])
            if mask is not None and not mask[row, node]:
                continue
            mixed = torch.zeros_like(query[row, node])
            if seen:
                scores = (query[row, node] * key[row, seen]).sum(-1) / query.shape[3] ** 0.5
                mixed = (scores.softmax(0).unsqueeze(-1) * value[row, seen]).sum(0)
            y[row, node] = mixer.output(mixed.flatten())
    return y
