"""Linear attention without a normaliser, whose sums of keys and values decay: gated linear attention.

S_t = diag(exp(-f_t)) S_{t-1} + k_t v_tᵀ is read as q_tᵀ S_t. The rates f are one per head (RetNet, Mamba-2) or one per
channel of the keys (gated linear attention, Yang et al. 2024, https://arxiv.org/abs/2312.06635).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.ops import slices
from longspan.ops.decay import left_at_end
from longspan.ops.execution import accumulation_dtype
from longspan.ops.fast_weights import fast_weights
from longspan.ops.fast_weights.plain import reversed_heads


def gated_linear_attention(
    query: Float[Tensor, "b h t e"],
    key: Float[Tensor, "b h t e"],
    value: Float[Tensor, "b h t v"],
    rates: Float[Tensor, "b h t"] | Float[Tensor, "b h t e"],
    state: Float[Tensor, "b h e v"],
    *,
    backwards: int = 0,
) -> tuple[Float[Tensor, "b h t v"], Float[Tensor, "b h e v"]]:
    """Return q_tᵀ S_t at each position, and the last S; `state` is S before the first.

    S_t = exp(-f_t) S_{t-1} + k_t v_tᵀ, the rates f >= 0 being one per head or one per row of S. Padding has keys and
    rates of zero. The last `backwards` heads read from the end. Sums in at least float32. Cost on a CPU: 2·t·e·v per
    head, in one pass over the positions, and memory for a matrix for every 64 positions until the backward pass; on
    other devices, 2·t·e·(32 + v) in chunks, or kernels of flash-linear-attention (`ops.fast_weights`).
    """
    cut = slices.current()
    if cut is not None:
        parts = cut.gather(_slice_sum(key, value, rates, backwards))
        state = cut.before_heads(state, parts, _extend, backwards)
    return fast_weights(query, key, value, None, rates, state, backwards=backwards)


def _slice_sum(key: Tensor, value: Tensor, rates: Tensor, backwards: int) -> tuple[Tensor, Tensor]:
    """Return the matrices after a slice from nothing, and the totals of its rates."""
    key, value, rates = (reversed_heads(each, backwards) for each in (key, value, rates))
    left, passed = left_at_end(rates)
    dtype = accumulation_dtype(value.dtype)
    with torch.autocast(value.device.type, enabled=False):
        left = left if left.ndim == 4 else left.unsqueeze(-1)
        return (key.to(dtype) * left.to(dtype)).mT @ value.to(dtype), passed.to(dtype)


def _extend(state: Tensor, part: tuple[Tensor, Tensor]) -> Tensor:
    added, passed = part
    left = (-passed).exp()
    return state * (left.unsqueeze(-1) if left.ndim == 3 else left[..., None, None]) + added


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
