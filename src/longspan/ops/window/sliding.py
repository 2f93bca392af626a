"""Attention to the keys within a given distance, and to a few that every query sees."""

import itertools

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import pad

from longspan.ops.alibi import alibi_attention, key_numbers
from longspan.ops.attention import attention, counted
from longspan.ops.chunks import chunks, in_chunks, whole
from longspan.ops.counts import counting
from longspan.ops.execution import exporting
from longspan.ops.window import engines
from longspan.ops.window.engines import Shared
from longspan.ops.window.windows import Sliding, cut

# Queries per block, half of it for narrow windows. More of them share a window, with more keys that are not theirs.
BLOCK = 64


def window_attention(
    query: Float[Tensor, "b h n e"],
    key: Float[Tensor, "b h m e"],
    value: Float[Tensor, "b h m v"],
    radius: int,
    mask: Shaped[Tensor, "b m"] | None = None,
    causal: bool = False,
    shared: Shared | None = None,
    alibi: bool = False,
) -> Float[Tensor, "b h n v"]:
    """Return softmax(QKᵀ/√e)V over the keys at most `radius` positions away (causal: none ahead) where `mask` is True.

    The last query is at the position of the last key, so that fewer queries than keys continue a sequence. A query that
    sees no key gives zeros. With `alibi`, and nothing `shared`, scores fall with the distance among real keys, as those
    of `ops.alibi`. Cost: n·(2·radius + BLOCK)·(e + v); causal n·(radius + BLOCK)·(e + v).
    """
    if counting(mask) and shared is None:
        query, key, value, mask = counted(query, key, value, mask)
    n, m = query.shape[2], key.shape[2]
    if not exporting():
        m = min(m, n + radius)
        key, value = key[:, :, key.shape[2] - m :], value[:, :, value.shape[2] - m :]
        mask = None if mask is None else mask[:, mask.shape[1] - m :]
        radius = min(radius, m - 1)
    if not exporting() and radius == m - 1:
        if shared is not None:
            real = key.new_ones(key.shape[0], m, dtype=torch.bool) if mask is None else mask
            key, value = torch.cat((shared.key, key), 2), torch.cat((shared.value, value), 2)
            mask = torch.cat((shared.mask, real), 1)
        return alibi_attention(query, key, value, mask, causal) if alibi else attention(query, key, value, mask, causal)
    behind, ahead = radius, 0 if causal else radius
    block = BLOCK if behind + ahead >= 2 * BLOCK else BLOCK // 2
    block = block if exporting() else min(n, block)
    blocks = chunks(n, block)
    width = behind + block + ahead
    # The first window starts `behind` positions before the first query, the last ends `ahead` after its block.
    before, after = behind - (m - n), blocks * block - n + ahead
    numbers = key_numbers(m, mask, query.device).unsqueeze(1) if alibi else None
    query = in_chunks(query, 2, block)
    key, value = pad(key, (0, 0, before, after)), pad(value, (0, 0, before, after))
    real = torch.ones(1, m, dtype=torch.bool, device=query.device) if mask is None else mask
    visible = cut(pad(real, (before, after)), 1, Sliding(width, block, blocks)).unsqueeze(1)
    source = Sliding(width, block, blocks)
    if numbers is None:
        out = engines.attend(query, key, value, visible, source, shared)
    else:
        at = in_chunks(numbers[:, :, m - n :], 2, block)
        out = engines.attend_by_distance(
            query, key, value, visible, source, at, cut(pad(numbers, (before, after)), 2, source)
        )
    out = whole(out, 2, n)
    if mask is None:
        return out
    sees = _count(mask, n, behind, ahead) > 0
    if shared is not None:
        sees = sees | shared.mask.any(1, keepdim=True)
    return out * sees[:, None, :, None]


def window_attention_naive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    radius: int,
    mask: Tensor | None = None,
    causal: bool = False,
    shared: Shared | None = None,
) -> Tensor:
    """Compute `window_attention` query by query over the keys each may see."""
    n, m = query.shape[2], key.shape[2]
    out = query.new_zeros(*query.shape[:3], value.shape[3])
    for row, i in itertools.product(range(query.shape[0]), range(n)):
        at = i + m - n
        seen = [j for j in range(m) if -radius <= j - at <= (0 if causal else radius)]
        seen = [j for j in seen if mask is None or mask[row, j]]
        keys, values = key[row][:, seen], value[row][:, seen]
        if shared is not None:
            keys = torch.cat((shared.key[row][:, shared.mask[row]], keys), 1)
            values = torch.cat((shared.value[row][:, shared.mask[row]], values), 1)
        if keys.shape[1]:
            scores = query[row, :, i : i + 1] @ keys.transpose(1, 2) / query.shape[3] ** 0.5
            out[row, :, i] = (scores.softmax(-1) @ values)[:, 0]
    return out


def _count(mask: Tensor, n: int, behind: int, ahead: int) -> Tensor:
    """Number of real keys that each of the last `n` positions sees."""
    m = mask.shape[1]
    before = pad(mask.cumsum(1), (1, 0))
    at = torch.arange(m - n, m, device=mask.device)
    return before[:, (at + ahead + 1).clamp(max=m)] - before[:, (at - behind).clamp(min=0)]
