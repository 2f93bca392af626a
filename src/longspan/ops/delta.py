"""The gated delta rule: a matrix per head from which each key's old value is taken before its new one is written.

S_t = e^{-f_t} S_{t-1} + β_t k_t (v_t - e^{-f_t} S_{t-1}ᵀ k_t)ᵀ is read as q_tᵀ S_t: one step of gradient descent on
|Sᵀ k_t - v_t|² / 2 after the matrix has decayed (Yang et al. 2024, https://arxiv.org/abs/2412.06464).
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch._higher_order_ops.scan import scan

from longspan.ops.blocks import carried_through_blocks
from longspan.ops.chunks import in_chunks, whole
from longspan.ops.decay import chunk_decay
from longspan.ops.execution import exporting
from longspan.ops.scan import accumulation_dtype

# Positions per chunk: scores take CHUNK numbers per position and head, and what goes from chunk to chunk, one chunk
# after the other, two products of e·v·CHUNK each.
CHUNK = 32


def gated_delta_rule(
    query: Float[Tensor, "b h t e"],
    key: Float[Tensor, "b h t e"],
    value: Float[Tensor, "b h t v"],
    strength: Float[Tensor, "b h t"],
    rates: Float[Tensor, "b h t"],
    state: Float[Tensor, "b h e v"],
) -> tuple[Float[Tensor, "b h t v"], Float[Tensor, "b h e v"]]:
    """Return q_tᵀ S_t at each position, and the last S; `state` is S before the first.

    With `strength` β from 0 to 1, `rates` f >= 0 and keys no longer than one, S stays bounded. Padding has keys and
    rates of zero. Within a chunk, what is written at each position, w_i = β_i (v_i - e^{-G_i} S_0ᵀ k_i - Σ_{j<i}
    e^{-(G_i - G_j)} (k_i·k_j) w_j), solves a triangular system (G adds up the chunk's rates): for all chunks at once,
    as its right-hand side is linear in S_0. No exponent is above zero. Cost: 4·t·e·(CHUNK + e) per head and value as
    wide as a key, half of the products with S one chunk after the other. Sums in at least float32.
    """
    with torch.autocast(query.device.type, enabled=False):
        tensors = (query, key, value, strength, rates)
        out, state = carried_through_blocks(_block, 2, state, *tensors, widening=4)
    return out.to(value.dtype), state


def _block(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, strength: Tensor, rates: Tensor
) -> tuple[Tensor, Tensor]:
    t = query.shape[2]
    if t == 0:
        return value, state
    dtype = accumulation_dtype(query.dtype)
    state, query, key, value, strength, rates = (x.to(dtype) for x in (state, query, key, value, strength, rates))
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


def gated_delta_rule_naive(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, rates: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute `gated_delta_rule` one position after the other, by the paper's S_t = α_t S_{t-1} (I - β_t k_t k_tᵀ) +
    β_t v_t k_tᵀ, here transposed."""
    out, identity = [], torch.eye(key.shape[-1], dtype=key.dtype)
    for i in range(query.shape[2]):
        k, v, b = key[:, :, i], value[:, :, i], strength[:, :, i, None, None]
        turned = identity - b * torch.einsum("bhe,bhf->bhef", k, k)
        kept = (-rates[:, :, i]).exp()[..., None, None]
        state = kept * turned @ state + b * torch.einsum("bhe,bhv->bhev", k, v)
        out.append(torch.einsum("bhe,bhev->bhv", query[:, :, i], state))
    return torch.stack(out, 2) if out else value, state
