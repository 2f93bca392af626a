"""Softmax-weighted means over positions: over the whole sequence, and over every prefix of it.

A softmax-weighted mean is a monoid: its state is the log of its normaliser and the mean itself, and two states merge
associatively. That lets prefixes be computed block by block, in parallel, and sequences be streamed.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Stands for minus infinity: finite, so that no difference of two of them is NaN, and so far below any logit that
# exp() of its distance to one is exactly zero.
FLOOR = -1e30
# Positions per block of the prefix mean: the t x BLOCK weights of all heads stay small next to the activations.
BLOCK = 32


class PrefixMean(NamedTuple):
    """What a softmax-weighted mean has seen so far: `normaliser` (b, h), a logsumexp, and `mean` (b, h, e)."""

    normaliser: Tensor
    mean: Tensor


def empty_prefix(batch_size: int, heads: int, width: int, like: Tensor) -> PrefixMean:
    """Return the state of a mean that has seen nothing, on the device of `like`, in at least float32."""
    dtype = accumulation_dtype(like.dtype)
    normaliser = torch.full((batch_size, heads), FLOOR, dtype=dtype, device=like.device)
    return PrefixMean(normaliser, torch.zeros(batch_size, heads, width, dtype=dtype, device=like.device))


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type sums are taken in: float32 for half precision, otherwise `dtype` itself."""
    return torch.promote_types(dtype, torch.float32)


def softmax_weights(logits: Float[Tensor, "b t h"], mask: Bool[Tensor, "b t"] | None = None) -> Float[Tensor, "b t h"]:
    """Return the softmax of `logits` over positions, in at least float32.

    Positions where `mask` is False weigh exactly zero; a row without any real position has only zeros.
    """
    logits = logits.to(accumulation_dtype(logits.dtype))
    if mask is None:
        return logits.softmax(1)
    keep = mask.unsqueeze(-1)
    return logits.masked_fill(~keep, FLOOR).softmax(1) * keep


def softmax_pool(
    values: Float[Tensor, "b t d"], logits: Float[Tensor, "b t h"], mask: Bool[Tensor, "b t"] | None = None
) -> Float[Tensor, "b h d"]:
    """Return, for each head, the mean of `values` over positions weighted by the softmax of that head's logits.

    A row without any real position gives zeros. Cost: t·h·d.
    """
    return softmax_weights(logits, mask).to(values.dtype).transpose(1, 2) @ values


def softmax_pool_naive(values: Tensor, logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `softmax_pool` row by row over the real positions only."""
    pooled = values.new_zeros(values.shape[0], logits.shape[2], values.shape[2])
    for row in range(values.shape[0]):
        real = slice(None) if mask is None else mask[row]
        if values[row, real].shape[0]:
            pooled[row] = logits[row, real].softmax(0).T @ values[row, real]
    return pooled


def prefix_softmax_mean(
    values: Float[Tensor, "b t h e"],
    logits: Float[Tensor, "b t h"],
    mask: Bool[Tensor, "b t"] | None = None,
    state: PrefixMean | None = None,
) -> tuple[Float[Tensor, "b t h e"], PrefixMean]:
    """Return at every position the softmax-weighted mean of the values up to it, and the state after the last.

    Positions where `mask` is False weigh nothing; before the first real position the mean is zero. `state` continues
    an earlier call. Cost: t·h·(BLOCK + e), in a parallel pass over blocks, with sums in at least float32.
    """
    b, _, h, e = values.shape
    dtype = accumulation_dtype(values.dtype)
    state = state or empty_prefix(b, h, e, values)
    logits = logits.to(dtype)
    if mask is not None:
        logits = logits.masked_fill(~mask.unsqueeze(-1), FLOOR)
    with torch.autocast(values.device.type, enabled=False):
        means, normalisers = _prefix_means(values.to(dtype), logits)
    normaliser = torch.logaddexp(normalisers, state.normaliser.unsqueeze(1))
    weight = (state.normaliser.unsqueeze(1) - normaliser).exp().unsqueeze(-1)
    # Before the first real position every weight compares one FLOOR with another: whatever came out is not a mean.
    seen = (normaliser > FLOOR / 2).unsqueeze(-1)
    means = torch.where(seen, torch.lerp(means, state.mean.unsqueeze(1), weight), 0.0)
    return means.to(values.dtype), PrefixMean(normaliser[:, -1], means[:, -1])


def _prefix_means(values: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return prefix means and their normalisers: within blocks by a masked product, across blocks by recursion."""
    b, t, h, e = values.shape
    block = min(BLOCK, t)
    blocks = -(-t // block)
    missing = blocks * block - t
    values = torch.nn.functional.pad(values, (0, 0, 0, 0, 0, missing))
    logits = torch.nn.functional.pad(logits, (0, 0, 0, missing), value=FLOOR)
    values = values.view(b, blocks, block, h, e).transpose(2, 3)
    logits = logits.view(b, blocks, block, h).transpose(2, 3)
    later = torch.ones(block, block, dtype=torch.bool, device=values.device).triu(1)
    scores = logits.unsqueeze(-2).masked_fill(later, 2 * FLOOR)
    normalisers = scores.logsumexp(-1)
    means = (scores - normalisers.unsqueeze(-1)).exp() @ values
    if blocks > 1:
        carried, before = _prefix_means(means[:, :, :, -1], normalisers[..., -1])
        # Shifted by one block: each block starts from what all blocks before it have seen.
        carried = torch.nn.functional.pad(carried[:, :-1], (0, 0, 0, 0, 1, 0)).unsqueeze(3)
        before = torch.nn.functional.pad(before[:, :-1], (0, 0, 1, 0), value=2 * FLOOR).unsqueeze(3)
        total = torch.logaddexp(normalisers, before)
        means = torch.lerp(means, carried.expand_as(means), (before - total).exp().unsqueeze(-1))
        normalisers = total
    means = means.transpose(2, 3).reshape(b, blocks * block, h, e)
    return means[:, :t], normalisers.transpose(2, 3).reshape(b, blocks * block, h)[:, :t]


def prefix_softmax_mean_naive(
    values: Tensor, logits: Tensor, mask: Tensor | None = None, state: PrefixMean | None = None
) -> tuple[Tensor, PrefixMean]:
    """Compute `prefix_softmax_mean` one position after the other, as the gated recurrence it is."""
    b, t, h, e = values.shape
    normaliser, mean = state or empty_prefix(b, h, e, values)
    means = []
    for i in range(t):
        new = torch.logaddexp(normaliser, logits[:, i])
        moved = mean + (logits[:, i] - new).exp().unsqueeze(-1) * (values[:, i] - mean)
        real = torch.ones(b, 1, dtype=torch.bool) if mask is None else mask[:, i : i + 1]
        normaliser = torch.where(real, new, normaliser)
        mean = torch.where(real.unsqueeze(-1), moved, mean)
        means.append(mean)
    return torch.stack(means, 1), PrefixMean(normaliser, mean)
