"""Linear attention without a normaliser, whose sums of keys and values decay: gated linear attention.

S_t = diag(exp(-f_t)) S_{t-1} + k_t v_tᵀ is read as q_tᵀ S_t. The rates f are one per head (RetNet, Mamba-2) or one per
channel of the keys (gated linear attention, Yang et al. 2024, https://arxiv.org/abs/2312.06635).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.ops.blocks import carried_through_blocks
from longspan.ops.chunks import in_chunks, whole
from longspan.ops.decay import chunk_decay, running_sums
from longspan.ops.execution import exporting
from longspan.ops.scan import accumulation_dtype

# Positions per chunk. With a rate per head, scores take CHUNK numbers per position and head, and the sums before each
# chunk e·e/CHUNK; with a rate per channel, the products of all channels with all positions of a chunk are formed.
CHUNK, CHANNEL_CHUNK = 32, 8


def gated_linear_attention(
    query: Float[Tensor, "b h t e"],
    key: Float[Tensor, "b h t e"],
    value: Float[Tensor, "b h t v"],
    rates: Float[Tensor, "b h t"] | Float[Tensor, "b h t e"],
    state: Float[Tensor, "b h e v"],
) -> tuple[Float[Tensor, "b h t v"], Float[Tensor, "b h e v"]]:
    """Return q_tᵀ S_t at each position, and the last S; `state` is S before the first.

    S_t = exp(-f_t) S_{t-1} + k_t v_tᵀ, the rates f >= 0 being one per head or one per row of S. Padding has keys and
    rates of zero. Chunk by chunk, all chunks of a block at once; no exponent is above zero. Cost: 2·t·e·(CHUNK + v) per
    head, with a rate per channel t·CHANNEL_CHUNK·e without matrix products besides. Sums in at least float32.
    """
    widening = 2 if rates.ndim == 3 else 4 * CHANNEL_CHUNK
    with torch.autocast(query.device.type, enabled=False):
        out, state = carried_through_blocks(_block, 2, state, query, key, value, rates, widening=widening)
    return out.to(value.dtype), state


def _block(state: Tensor, query: Tensor, key: Tensor, value: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    t = query.shape[2]
    if t == 0:
        return value, state
    dtype = accumulation_dtype(query.dtype)
    state, query, key, value, rates = (x.to(dtype) for x in (state, query, key, value, rates))
    per_channel = rates.ndim == 4
    if not exporting() and t == 1:
        # A step of a stream: too short for chunks.
        kept = (-rates[:, :, 0]).exp()
        state = state * (kept.unsqueeze(-1) if per_channel else kept[..., None, None]) + key.mT @ value
        return query @ state, state
    size = CHANNEL_CHUNK if per_channel else CHUNK
    size = size if exporting() else min(size, t)
    query, key, value, rates = (in_chunks(x, 2, size).contiguous() for x in (query, key, value, rates))
    if per_channel:
        decay = chunk_decay(rates.mT)
        # (b, h, chunks, e, i, j): exp(-f) does not factor into one part for i and one for j, neither above one.
        scores = (query.mT.unsqueeze(-1) * key.mT.unsqueeze(-2) * decay.within).sum(-3)
        since_start, until_end = decay.since_start.mT, decay.until_end.mT
    else:
        decay = chunk_decay(rates)
        scores = query @ key.mT * decay.within
        since_start, until_end = decay.since_start.unsqueeze(-1), decay.until_end.unsqueeze(-1)
    before, last = running_sums((key * until_end).mT @ value, state, decay.total)
    return whole((query * since_start) @ before + scores @ value, 2, t), last


def gated_linear_attention_naive(
    query: Tensor, key: Tensor, value: Tensor, rates: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute `gated_linear_attention` one position after the other."""
    out = []
    for i in range(query.shape[2]):
        kept = (-rates[:, :, i]).exp()
        kept = kept.unsqueeze(-1) if rates.ndim == 4 else kept[..., None, None]
        state = kept * state + torch.einsum("bhe,bhv->bhev", key[:, :, i], value[:, :, i])
        out.append(torch.einsum("bhe,bhev->bhv", query[:, :, i], state))
    return torch.stack(out, 2) if out else value, state
