"""Softmax attention over the edges of a graph, and the edges themselves: numbers of rows, sources and targets.

The plain operations are a pass over all edges for each step; `numba` has compiled loops for a CPU.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.ops.execution import accumulation_dtype, exporting, transformed
from longspan.ops.operators import empty, operator
from longspan.ops.scan import FLOOR


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    source: Tensor,
    target: Tensor,
    keep: Tensor,
    bias: Tensor,
    factor: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the outputs (n, h, v) and the weights (k, h) of the edges, before their factors.

    `keep` (k,), `bias` (k, h) and `factor` (k, h) are of length 0 where there are none.
    """
    scores = (query[target] * key[source]).sum(-1) / max(query.shape[2], 1) ** 0.5
    if bias.shape[0]:
        scores = scores + bias
    if keep.shape[0]:
        scores = scores.masked_fill(~keep.unsqueeze(1), FLOOR)
    # Only a shift, on which the result does not depend: its gradient is zero, and would be arbitrary at ties.
    largest = scores.new_full(query.shape[:2], FLOOR).scatter_reduce(
        0, target.unsqueeze(1).expand_as(scores), scores.detach(), "amax"
    )
    weights = (scores - largest[target]).exp()
    if keep.shape[0]:
        weights = weights * keep.unsqueeze(1)
    # A query with edges has a total of at least exp(0); one without edges has a sum of zero. Not clamped: releases of
    # PyTorch have different gradients at the bound.
    total = weights.new_zeros(query.shape[:2]).index_add(0, target, weights)
    total = total + (total == 0)
    weights = weights / total[target]
    weighed = weights * factor if factor.shape[0] else weights
    out = value.new_zeros(*query.shape[:2], value.shape[2])
    return out.index_add(0, target, weighed.unsqueeze(-1) * value[source]), weights


def plain_attention_gradient(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    source: Tensor,
    target: Tensor,
    bias: Tensor,
    factor: Tensor,
    out: Tensor,
    weights: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of query, key, value and bias, given that of the outputs.

    With the weights p, factors f and outputs o: dv_s = Σ p f do_t, ds = p (f (do_t·v_s) - do_t·o_t), and dq, dk follow
    from the scores s.
    """
    upstream = gradient[target]
    weighed = weights * factor if factor.shape[0] else weights
    to_value = torch.zeros_like(value).index_add(0, source, weighed.unsqueeze(-1) * upstream)
    to_weighed = (upstream * value[source]).sum(-1)
    to_weighed = to_weighed * factor if factor.shape[0] else to_weighed
    to_scores = weights * (to_weighed - (gradient * out).sum(-1)[target])
    scaled = (to_scores / max(query.shape[2], 1) ** 0.5).unsqueeze(-1)
    to_query = torch.zeros_like(query).index_add(0, target, scaled * key[source])
    to_key = torch.zeros_like(key).index_add(0, source, scaled * query[target])
    return to_query, to_key, to_value, to_scores if bias.shape[0] else torch.zeros_like(bias)


def plain_by_target(source: Tensor, target: Tensor, sources: int, targets: int) -> Tensor:
    """Return the order of edges by target, then by source, the first of equal edges first."""
    return (target * sources + source).argsort(stable=True)


@operator("longspan::edge_attention", plain_attention, loops="forward")
def edge_attention_operator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    source: Tensor,
    target: Tensor,
    keep: Tensor,
    bias: Tensor,
    factor: Tensor,
) -> tuple[Tensor, Tensor]:
    heads = query.shape[1]
    return value.new_zeros(query.shape[0], heads, value.shape[2]), query.new_empty(source.shape[0], heads)


@edge_attention_operator.gradient(("out", "weights"), plain_attention_gradient, loops="backward")
def edge_attention_gradient(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    source: Tensor,
    target: Tensor,
    bias: Tensor,
    factor: Tensor,
    out: Tensor,
    weights: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # The loops add to them.
    return empty(query).zero_(), empty(key).zero_(), empty(value).zero_(), empty(bias).zero_()


@operator("longspan::by_target", plain_by_target, loops="by_target")
def by_target_operator(source: Tensor, target: Tensor, sources: int, targets: int) -> Tensor:
    return empty(source)


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


def by_target(source: Int[Tensor, " k"], target: Int[Tensor, " k"], sources: int, targets: int) -> Int[Tensor, " k"]:
    """Return the order of edges by target, then by source; the first of equal edges stays the first.

    Sources lie below `sources`, targets below `targets`. Cost: k + sources + targets.
    """
    find = plain_by_target if exporting() or transformed() else by_target_operator
    return find(source, target, sources, targets)


def new_ones(source: Int[Tensor, " k"], target: Int[Tensor, " k"]) -> Bool[Tensor, " k"]:
    """Return, for edges in the order of `by_target`, which differ from the one before: the first of all equal ones."""
    new = torch.ones_like(source, dtype=torch.bool)
    new[1:] = (source.diff() != 0) | (target.diff() != 0)
    return new


def in_order(source: Int[Tensor, " k"], target: Int[Tensor, " k"]) -> bool:
    """Return whether edges are in the order of `by_target`, no two of them equal."""
    later = target.diff()
    return bool(((later > 0) | ((later == 0) & (source.diff() > 0))).all())


def edge_attention(
    query: Float[Tensor, "n h e"],
    key: Float[Tensor, "m h e"],
    value: Float[Tensor, "m h v"],
    source: Int[Tensor, " k"],
    target: Int[Tensor, " k"],
    keep: Bool[Tensor, " k"] | None = None,
    bias: Float[Tensor, "k h"] | None = None,
    factor: Float[Tensor, "k h"] | None = None,
) -> Float[Tensor, "n h v"]:
    """Return softmax(QKᵀ/√e + B)V where query `target[i]` sees key `source[i]` for each edge i, and nothing else.

    Edges where `keep` is False do not count; equal edges count each. A query without edges gives zeros. The `bias` of
    an edge is added to its score. Its `factor`, which has no gradient, multiplies its weight after the softmax: that is
    where weights are dropped. Queries and keys may have width 0, so that the bias is the score. Sums are computed in at
    least float32. On a CPU, edges in the order of their targets are read in one pass; others are sorted first.

    Cost: k·h·(e + v) time, k·h memory where loops are compiled (Numba), otherwise k·h·(e + v).
    """
    exact = accumulation_dtype(value.dtype)
    query, key, wide = query.to(exact), key.to(exact), value.to(exact)
    keep = source.new_empty(0, dtype=torch.bool) if keep is None else keep
    bias = wide.new_empty(0, wide.shape[1]) if bias is None else bias.to(exact)
    factor = wide.new_empty(0, wide.shape[1]) if factor is None else factor.to(exact)
    attend = plain_attention if exporting() or transformed() else edge_attention_operator
    return attend(query, key, wide, source, target, keep, bias, factor)[0].to(value.dtype)


def edge_weights(
    query: Float[Tensor, "n h e"],
    key: Float[Tensor, "m h e"],
    source: Int[Tensor, " k"],
    target: Int[Tensor, " k"],
    keep: Bool[Tensor, " k"] | None = None,
    bias: Float[Tensor, "k h"] | None = None,
) -> Float[Tensor, "k h"]:
    """Return the weights of the edges in `edge_attention`, in at least float32; 0 where `keep` is False.

    Cost: k·h·e time and memory.
    """
    exact = accumulation_dtype(key.dtype)
    nothing = key.new_empty(*key.shape[:2], 0, dtype=exact)
    keep = source.new_empty(0, dtype=torch.bool) if keep is None else keep
    bias = nothing.new_empty(0, key.shape[1]) if bias is None else bias.to(exact)
    factor = nothing.new_empty(0, key.shape[1])
    return plain_attention(query.to(exact), key.to(exact), nothing, source, target, keep, bias, factor)[1]


def edge_attention_naive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    source: Tensor,
    target: Tensor,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """Compute `edge_attention` query by query over the keys its edges come from."""
    out = query.new_zeros(*query.shape[:2], value.shape[2])
    for node in range(query.shape[0]):
        edges = target == node if keep is None else (target == node) & keep
        if edges.any():
            scores = (query[node] * key[source[edges]]).sum(-1) / max(query.shape[2], 1) ** 0.5
            weights = (scores if bias is None else scores + bias[edges]).softmax(0)
            weights = weights if factor is None else weights * factor[edges]
            out[node] = (weights.unsqueeze(-1) * value[source[edges]]).sum(0)
    return out
