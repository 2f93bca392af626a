"""The gated delta rule and gated linear attention in plain operations, in chunks of positions, for every device."""

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

from longspan.ops.chunks import in_chunks, whole
from longspan.ops.decay import chunk_decay, running_sums
from longspan.ops.execution import exporting

# Positions per chunk: scores take CHUNK numbers per position and head, and what goes from chunk to chunk two products
# of e·v·CHUNK each. With a rate per channel, the products of all channels with all positions of a chunk are formed.
CHUNK, CHANNEL_CHUNK = 32, 8


def fast_weights(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor | None, rates: Tensor, state: Tensor, *, backwards: int
) -> tuple[Tensor, Tensor]:
    """Return `ops.fast_weights.fast_weights` of tensors (b, h, t, ...) in one type."""
    query, key, value, rates = (reversed_heads(x, backwards) for x in (query, key, value, rates))
    if strength is None:
        out, state = gated_linear_attention(state, query, key, value, rates)
    else:
        out, state = gated_delta_rule(state, query, key, value, reversed_heads(strength, backwards), rates)
    return reversed_heads(out, backwards), state


def reversed_heads(x: Tensor, backwards: int) -> Tensor:
    """Return x (b, h, t, ...) with the positions of the last `backwards` heads in reverse order; twice, it is x."""
    if not backwards:
        return x
    forward, backward = x.tensor_split((x.shape[1] - backwards,), 1)
    return torch.cat((forward, backward.flip(2)), 1)


def gated_delta_rule(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, strength: Tensor, rates: Tensor
) -> tuple[Tensor, Tensor]:
    """Within a chunk, what is written at each position, w_i = β_i (v_i - e^{-G_i} S_0ᵀ k_i - Σ_{j<i} e^{-(G_i - G_j)}
    (k_i·k_j) w_j), solves a triangular system (G adds up the chunk's rates): for all chunks at once, as its right-hand
    side is linear in S_0. No exponent is above zero. Cost: 4·t·e·(CHUNK + e) per head and value as wide as a key, half
    of the products with S one chunk after the other.
    """
    t = query.shape[2]
    if exporting():
        return _by_position(state, query, key, value, strength, rates)
    if t == 1:
        # A step of a stream: too short for chunks.
        state = _written(state, key[:, :, 0], value[:, :, 0], strength[:, :, 0], rates[:, :, 0])
        return query @ state, state
    size = min(CHUNK, t)
    query, key, value, strength, rates = (in_chunks(x, 2, size) for x in (query, key, value, strength, rates))
    decay = chunk_decay(rates)
    strength = strength.unsqueeze(-1)
    # Its diagonal is not read.
    overlaps = strength * (key @ key.mT) * decay.within
    late = decay.since_start.unsqueeze(-1)
    given = strength * torch.cat((value, late * key), -1)
    solved = torch.linalg.solve_triangular(overlaps, given, upper=False, unitriangular=True)
    new, old = solved.split((value.shape[-1], key.shape[-1]), -1)
    kept, written = (-decay.total).exp()[..., None, None], (key * decay.until_end.unsqueeze(-1)).mT
    before, changes = [], []
    for n in range(query.shape[2]):
        before.append(state)
        changes.append(new[:, :, n] - old[:, :, n] @ state)
        state = kept[:, :, n] * state + written[:, :, n] @ changes[-1]
    scores = query @ key.mT * decay.within
    out = (query * late) @ torch.stack(before, 2) + scores @ torch.stack(changes, 2)
    return whole(out, 2, t), state


def _written(state: Tensor, key: Tensor, value: Tensor, strength: Tensor, rate: Tensor) -> Tensor:
    """Return the matrices after one position, whose tensors are (b, h, ...)."""
    state = (-rate).exp()[..., None, None] * state
    change = strength.unsqueeze(-1) * (value - (key.unsqueeze(-2) @ state).squeeze(-2))
    return state + key.unsqueeze(-1) * change.unsqueeze(-2)


def _by_position(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, strength: Tensor, rates: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the same by one operation of a program for any number of positions."""

    def position(state: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        asked, *rest = inputs
        state = _written(state, *rest)
        return state, (asked.unsqueeze(-2) @ state).squeeze(-2)

    inputs = tuple(x.movedim(2, 0) for x in (query, key, value, strength, rates))
    state, out = scan(position, state, inputs)
    return out.movedim(0, 2), state


def gated_linear_attention(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, rates: Tensor
) -> tuple[Tensor, Tensor]:
    """Chunk by chunk, all chunks at once; no exponent is above zero. Cost: 2·t·e·(CHUNK + v) per head, with a rate per
    channel t·CHANNEL_CHUNK·e without matrix products besides.
    """
    t = query.shape[2]
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
