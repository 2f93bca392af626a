"""Softmax attention over the edges of a graph, and the edges themselves: numbers of rows, sources and targets."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.ops.pooling import FLOOR, accumulation_dtype


def chain(rows: int, length: int, device: torch.device | str | None = None) -> Int[Tensor, "3 n"]:
    """Return the edges (row, source, target) that join each of `length` positions to itself and its neighbours."""
    position = torch.arange(length, device=device)
    source = torch.cat((position, position[:-1], position[1:]))
    target = torch.cat((position, position[1:], position[:-1]))
    row = torch.arange(rows, device=device).repeat_interleave(source.shape[0])
    return torch.stack((row, source.repeat(rows), target.repeat(rows)))


def chain_of_any_length(
    rows: int, length: int, device: torch.device | str | None = None
) -> tuple[Int[Tensor, " k"], Int[Tensor, " k"], Bool[Tensor, " k"]]:
    """Return sources and targets of the same edges, as numbers of positions through all rows, and which to keep.

    There are three edges to each position, so that no size depends on how many neighbours the ends lack.
    """
    position = torch.arange(length, device=device).unsqueeze(1)
    neighbour = position + torch.arange(-1, 2, device=device)
    keep = (neighbour >= 0) & (neighbour < length)
    first = (torch.arange(rows, device=device) * length).view(-1, 1, 1)
    source, target = first + neighbour.clamp(0, length - 1), first + position.expand_as(neighbour)
    return source.flatten(), target.flatten(), keep.expand_as(source).flatten()


def batch_edges(graphs: Sequence[Int[Tensor, "2 _"]]) -> Int[Tensor, "3 n"]:
    """Return the edges (row, source, target) of a batch whose row i is the graph with the edges `graphs[i]`."""
    return torch.cat([torch.cat((torch.full_like(graph[:1], row), graph)) for row, graph in enumerate(graphs)], 1)


def first_of_each(source: Int[Tensor, " k"], target: Int[Tensor, " k"]) -> Bool[Tensor, " k"]:
    """Return True at the first of all equal edges: a graph either has an edge or does not. Cost: k·log k."""
    # By target, then by source; a stable sort leaves the first of equals first.
    order = source.argsort(stable=True)
    order = order[target[order].argsort(stable=True)]
    new = torch.ones_like(order, dtype=torch.bool)
    new[1:] = (source[order].diff() != 0) | (target[order].diff() != 0)
    return torch.empty_like(new).index_put((order,), new)


def edge_attention(
    query: Float[Tensor, "n h e"],
    key: Float[Tensor, "m h e"],
    value: Float[Tensor, "m h v"],
    source: Int[Tensor, " k"],
    target: Int[Tensor, " k"],
    keep: Bool[Tensor, " k"] | None = None,
) -> Float[Tensor, "n h v"]:
    """Return softmax(QKᵀ/√e)V where query `target[i]` sees key `source[i]` for each edge i, and nothing else.

    Edges where `keep` is False do not count; equal edges count each. A query without edges gives zeros. Sums are
    computed in at least float32. Cost: k·h·(e + v) time and memory.
    """
    exact = accumulation_dtype(value.dtype)
    scores = (query.to(exact)[target] * key.to(exact)[source]).sum(-1) / query.shape[2] ** 0.5
    if keep is not None:
        scores = scores.masked_fill(~keep.unsqueeze(1), FLOOR)
    # Only a shift, on which the result does not depend: its gradient is zero, and would be arbitrary at ties.
    largest = scores.new_full(query.shape[:2], FLOOR).scatter_reduce(
        0, target.unsqueeze(1).expand_as(scores), scores.detach(), "amax"
    )
    weights = (scores - largest[target]).exp()
    if keep is not None:
        weights = weights * keep.unsqueeze(1)
    total = weights.new_zeros(query.shape[:2]).index_add(0, target, weights)
    out = weights.new_zeros(*query.shape[:2], value.shape[2])
    out = out.index_add(0, target, weights.unsqueeze(-1) * value.to(exact)[source])
    # A query with edges has a total of at least exp(0); one without edges has a sum of zero.
    return (out / total.clamp_min(1).unsqueeze(-1)).to(value.dtype)


def edge_attention_naive(
    query: Tensor, key: Tensor, value: Tensor, source: Tensor, target: Tensor, keep: Tensor | None = None
) -> Tensor:
    """Compute `edge_attention` query by query over the keys its edges come from."""
    out = query.new_zeros(*query.shape[:2], value.shape[2])
    for node in range(query.shape[0]):
        edges = target == node if keep is None else (target == node) & keep
        if edges.any():
            scores = (query[node] * key[source[edges]]).sum(-1) / query.shape[2] ** 0.5
            out[node] = (scores.softmax(0).unsqueeze(-1) * value[source[edges]]).sum(0)
    return out
