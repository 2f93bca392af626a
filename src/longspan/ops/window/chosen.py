"""Attention of blocks of queries to chosen blocks of keys."""

import itertools

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.ops.execution import exporting
from longspan.ops.window import engines
from longspan.ops.window.portions import plain_attention
from longspan.ops.window.windows import Chosen


def block_attention(
    query: Float[Tensor, "b h n q e"],
    key: Float[Tensor, "b h m k e"],
    value: Float[Tensor, "b h m k v"],
    chosen: Int[Tensor, "b h n s"],
    mask: Bool[Tensor, "b m k"],
) -> Float[Tensor, "b h n q v"]:
    """Return softmax(QKᵀ/√e)V of each block of queries over the keys of the blocks that `chosen` names.

    A negative number names no block, and keys where `mask` is False are not seen. A block that sees no key gives zeros.
    Cost: n·q·s·k·(e + v).
    """
    b, h, m, size, _ = key.shape
    numbers = chosen.clamp(min=0)
    row, head = torch.arange(b, device=key.device).view(b, 1, 1, 1), torch.arange(h, device=key.device).view(h, 1, 1)
    visible = (mask[row, numbers] & (chosen >= 0).unsqueeze(-1)).flatten(3)
    if exporting():
        keys, values = (x[row, head, numbers].flatten(3, 4) for x in (key, value))
        out = plain_attention(query, keys, values, visible.unsqueeze(3))[0]
        return out * visible.any(-1)[..., None, None]
    source = Chosen((row * h + head) * m + numbers, size)
    out = engines.attend(query, key.flatten(2, 3), value.flatten(2, 3), visible, source)
    return out * visible.any(-1)[..., None, None]


def block_attention_naive(query: Tensor, key: Tensor, value: Tensor, chosen: Tensor, mask: Tensor) -> Tensor:
    """Compute `block_attention` block by block over the keys each sees."""
    out = query.new_zeros(*query.shape[:4], value.shape[4])
    for row, head, i in itertools.product(*map(range, query.shape[:3])):
        named = [j for j in chosen[row, head, i].tolist() if j >= 0]
        if mask[row, named].any():
            keys, values = (torch.cat([x[row, head, j][mask[row, j]] for j in named]) for x in (key, value))
            scores = query[row, head, i] @ keys.T / query.shape[4] ** 0.5
            out[row, head, i] = scores.softmax(-1) @ values
    return out
