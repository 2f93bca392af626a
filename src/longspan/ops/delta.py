"""The gated delta rule: a matrix per head from which each key's old value is taken before its new one is written.

S_t = e^{-f_t} S_{t-1} + β_t k_t (v_t - e^{-f_t} S_{t-1}ᵀ k_t)ᵀ is read as q_tᵀ S_t: one step of gradient descent on
|Sᵀ k_t - v_t|² / 2 after the matrix has decayed (Yang et al. 2024, https://arxiv.org/abs/2412.06464).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.ops import slices
from longspan.ops.fast_weights import fast_weights


def gated_delta_rule(
    query: Float[Tensor, "b h t e"],
    key: Float[Tensor, "b h t e"],
    value: Float[Tensor, "b h t v"],
    strength: Float[Tensor, "b h t"],
    rates: Float[Tensor, "b h t"],
    state: Float[Tensor, "b h e v"],
    *,
    backwards: int = 0,
) -> tuple[Float[Tensor, "b h t v"], Float[Tensor, "b h e v"]]:
    """Return q_tᵀ S_t at each position, and the last S; `state` is S before the first.

    With `strength` β from 0 to 1, `rates` f >= 0 and keys no longer than one, S stays bounded. Padding has keys and
    rates of zero. The last `backwards` heads read from the end. Sums in at least float32. Cost on a CPU: 3·t·e·v per
    head, in one pass over the positions, and memory for a matrix for every 64 positions until the backward pass; on
    other devices, 4·t·e·(32 + e) in chunks, or kernels of flash-linear-attention (`ops.fast_weights`).
    """
    cut = slices.current()
    if cut is None:
        return fast_weights(query, key, value, strength, rates, state, backwards=backwards)
    # Outputs and the last matrix are affine in the matrix before: their slopes are read as further values, which are
    # zeros written over an identity.
    b, h, e, v = state.shape
    wide = torch.cat((value, value.new_zeros(*value.shape[:3], e)), 3)
    slope = torch.eye(e, dtype=state.dtype, device=state.device).expand(b, h, e, e)
    start = torch.cat((torch.zeros_like(state), slope), 3)
    out, last = fast_weights(query, key, wide, strength, rates, start, backwards=backwards)
    part = (last[..., :v], last[..., v:])
    before = cut.before_heads(state, cut.gather(part), _extend, backwards)
    with torch.autocast(value.device.type, enabled=False):
        return out[..., :v] + (out[..., v:].to(before.dtype) @ before).to(value.dtype), _extend(before, part)


def _extend(state: Tensor, part: tuple[Tensor, Tensor]) -> Tensor:
    return part[1] @ state + part[0]


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
