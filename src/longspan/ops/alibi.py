"""Attention with linear biases: a key counts for less the farther away it is, at a rate of its head."""

import functools

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from longspan.ops.attention import counted, scaled_products
from longspan.ops.blocks import block_by_block
from longspan.ops.counts import counting, present


def slopes(heads: int) -> list[float]:
    """Return the rates of the heads, from `2^(-8/heads)` to `2^-8` (https://arxiv.org/abs/2108.12409)."""
    return [2 ** (-8 * (head + 1) / heads) for head in range(heads)]


def key_numbers(length: int, mask: Shaped[Tensor, "b m"] | None, device: torch.device) -> Int[Tensor, "c m"]:
    """Return the number of each key among the real ones of its row: distances count no others."""
    return torch.arange(length, device=device).unsqueeze(0) if mask is None else present(mask).cumsum(1) - 1


def biases(
    query_numbers: Int[Tensor, "*c q"], key_numbers: Int[Tensor, "*c k"], like: Float[Tensor, "b h ..."]
) -> Float[Tensor, "*d q k"]:
    """Return -slope·|i - j| for each head, the second dimension, in the type of `like` but computed in float32."""
    distances = (query_numbers.unsqueeze(-1) - key_numbers.unsqueeze(-2)).abs()
    rates = torch.tensor(slopes(like.shape[1]), device=like.device).view(-1, *[1] * (like.ndim - 2))
    return (distances * -rates).to(like.dtype)


def alibi_attention(
    query: Float[Tensor, "b h n e"],
    key: Float[Tensor, "b h m e"],
    value: Float[Tensor, "b h m v"],
    mask: Shaped[Tensor, "b m"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "b h n v"]:
    """Return softmax(QKᵀ/√e - slope·|i - j|)V over the keys where `mask` is True, as `ops.attention.attention` does.

    The last query is at the position of the last key. Distances count real keys only. Cost: n·m·(e + v); biases are
    made for a few queries at a time, and again in the backward pass.
    """
    if counting(mask):
        return alibi_attention(*counted(query, key, value, mask), causal)
    n, m = query.shape[2], key.shape[2]
    if not m:
        return query @ query.new_zeros(query.shape[3], value.shape[3])
    keys = key_numbers(m, mask, query.device).unsqueeze(1)
    places = torch.arange(m - n, m, device=query.device)
    if mask is not None and mask.shape[0] != query.shape[0]:
        mask = mask.expand(query.shape[0], -1)
    at = keys[:, :, m - n :].unsqueeze(-1)
    attend = functools.partial(_attend, key, value, keys, mask, causal)
    parts = block_by_block(attend, 2, query, at, places.view(1, 1, n, 1), widening=max(1, m // query.shape[3]))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _attend(
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    mask: Tensor | None,
    causal: bool,
    query: Tensor,
    at: Tensor,
    places: Tensor,
) -> Tensor:
    """Attend from queries with the numbers `at` and the places `places` (b or 1, 1, n, 1) to all keys."""
    visible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=query.device)
    if mask is not None:
        visible = mask[:, None, None, :]
    if causal:
        visible = visible & (torch.arange(key.shape[2], device=query.device) <= places)
    sees = visible.any(-1, keepdim=True)
    bias = biases(at.squeeze(-1), keys, query).masked_fill(~(visible | ~sees), -torch.inf)
    return scaled_products(query, key, value, bias.expand(query.shape[0], -1, -1, -1)) * sees


def alibi_attention_naive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    radius: int | None = None,
) -> Tensor:
    """Compute the same query by query over the keys each may see, by default all, with their distances counted."""
    n, m = query.shape[2], key.shape[2]
    out = query.new_zeros(*query.shape[:3], value.shape[3])
    for row in range(query.shape[0]):
        real = [j for j in range(m) if mask is None or mask[row, j]]
        for i in range(n):
            at = i + m - n
            seen = [j for j in real if (j <= at or not causal) and (radius is None or abs(j - at) <= radius)]
            for head, slope in enumerate(slopes(query.shape[1])):
                if not seen:
                    continue
                between = [sum(min(at, j) < other <= max(at, j) for other in real) for j in seen]
                scores = key[row, head, seen] @ query[row, head, i] / query.shape[3] ** 0.5
                weights = (scores - slope * torch.tensor(between, dtype=scores.dtype)).softmax(0)
                out[row, head, i] = weights @ value[row, head, seen]
    return out
