"""Attention over edges in plain tensor operations, for every device: a pass over all edges for each step."""

import torch
from torch import Tensor

from longspan.ops.scan import FLOOR

Parts = tuple[Tensor, Tensor]


def edge_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    source: Tensor,
    target: Tensor,
    keep: Tensor,
    bias: Tensor,
    factor: Tensor,
) -> Parts:
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
    # A query with edges has a total of at least exp(0); one without edges has a sum of zero.
    total = weights.new_zeros(query.shape[:2]).index_add(0, target, weights).clamp_min(1)
    weights = weights / total[target]
    weighed = weights * factor if factor.shape[0] else weights
    out = value.new_zeros(*query.shape[:2], value.shape[2])
    return out.index_add(0, target, weighed.unsqueeze(-1) * value[source]), weights


def edge_attention_backward(
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


def by_target(source: Tensor, target: Tensor, sources: int, targets: int) -> Tensor:
    """Return the order of edges by target, then by source, the first of equal edges first."""
    return (target * sources + source).argsort(stable=True)
