"""Softmax-weighted means over positions: over the whole sequence, and over every prefix of it.

A softmax-weighted mean is a monoid: its state is the log of its normaliser and the mean itself, and two states merge
associatively. So sequences can be streamed, split anywhere, and distributed over machines.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from longspan.ops import slices
from longspan.ops import softmax_pool as kernels
from longspan.ops.counts import counting, log_counts, present
from longspan.ops.execution import exporting, has_kernels, transformed
from longspan.ops.scan import FLOOR, accumulation_dtype, lerp_scan, plain, softmax_gates
from longspan.ops.scan.plain import logaddexp


class PrefixMean(NamedTuple):
    """The state of a softmax-weighted mean: `normaliser` (b, h), a logsumexp, and `mean` (b, h, e)."""

    normaliser: Tensor
    mean: Tensor


def empty_prefix(
    batch_size: int,
    heads: int,
    width: int,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> PrefixMean:
    """Return the state of a mean over no positions, in at least float32."""
    dtype = accumulation_dtype(dtype or torch.get_default_dtype())
    normaliser = torch.full((batch_size, heads), FLOOR, dtype=dtype, device=device)
    return PrefixMean(normaliser, torch.zeros(batch_size, heads, width, dtype=dtype, device=device))


def merge(one: PrefixMean, other: PrefixMean) -> PrefixMean:
    """Return the state of a mean over the positions of both; `empty_prefix` changes nothing."""
    normaliser = logaddexp(one.normaliser, other.normaliser)
    # The difference of FLOOR and FLOOR is not a weight.
    weight = (other.normaliser - normaliser).exp() * (other.normaliser > FLOOR / 2)
    return PrefixMean(normaliser, torch.lerp(one.mean, other.mean, weight.to(one.mean.dtype).unsqueeze(-1)))


class SliceMean(NamedTuple):
    """Sum of a slice of a row: the state of its mean from nothing, and the `passed` (b, h) total of its rates.

    Without rates, `passed` is (b, 0).
    """

    normaliser: Tensor
    mean: Tensor
    passed: Tensor


def extend(state: PrefixMean, part: SliceMean) -> PrefixMean:
    """Return the state after a slice, given that before it."""
    before = PrefixMean(after_rates(state.normaliser, part.passed), state.mean)
    after = PrefixMean(part.normaliser.to(before.normaliser.dtype), part.mean.to(before.mean.dtype))
    return merge(before, after)


def after_rates(normaliser: Float[Tensor, "b h"], passed: Float[Tensor, "b _"]) -> Float[Tensor, "b h"]:
    """Return the normaliser after the rates of a slice."""
    return normaliser - passed.to(normaliser.dtype) if passed.shape[1] else normaliser


def end_logits(
    logits: Float[Tensor, "b t h"], mask: Shaped[Tensor, "b t"] | None, rates: Float[Tensor, "b t h"] | None
) -> tuple[Float[Tensor, "b t h"], Float[Tensor, "b h"], Float[Tensor, "b _"]]:
    """Return logits as they are at the last position, their logsumexp, and the total of the rates (`SliceMean`)."""
    dtype = accumulation_dtype(logits.dtype)
    if rates is not None:
        # In float64, as a large rate leaves no digits to those after it.
        passed = rates.to(plain.exact_dtype(logits.device)).cumsum(1)
        logits = logits.to(passed.dtype) + (passed - passed[:, -1:])
    wide = masked_logits(logits, mask)
    total = wide.new_zeros(wide.shape[0], 0) if rates is None else passed[:, -1]
    return wide, wide.logsumexp(1).clamp_min(FLOOR).to(dtype), total.to(dtype)


def slice_mean(
    logits: Float[Tensor, "b t h"],
    *values: Shaped[Tensor, "b t h _"],
    mask: Shaped[Tensor, "b t"] | None = None,
    rates: Float[Tensor, "b t h"] | None = None,
) -> SliceMean:
    """Return the sum of a slice, whose `extend` of a state is that after `prefix_softmax_mean`. Cost: t·h·e.

    The means of several values, weighted alike, are concatenated.
    """
    wide, normaliser, passed = end_logits(logits, mask, rates)
    dtype, weights = accumulation_dtype(values[0].dtype), wide.softmax(1)
    weights = (weights if mask is None else weights * present(mask).unsqueeze(-1)).to(dtype)
    with torch.autocast(logits.device.type, enabled=False):
        means = [torch.einsum("bth,bthe->bhe", weights, each.to(dtype)) for each in values]
    return SliceMean(normaliser, torch.cat(means, -1), passed)


def mean_of_all(
    mean: Float[Tensor, "b h e"], logits: Float[Tensor, "b h t"], mask: Shaped[Tensor, "b t"] | None
) -> Float[Tensor, "b h e"]:
    """Return the mean over all slices of a row, given that of this slice and its logits."""
    return mean_and_share(mean, logits, mask)[0]


def mean_and_share(
    mean: Float[Tensor, "b h e"], logits: Float[Tensor, "b h t"], mask: Shaped[Tensor, "b t"] | None
) -> tuple[Float[Tensor, "b h e"], Float[Tensor, "b h"] | None]:
    """Return the same, and the share of this slice in the weights of all; None where rows are whole."""
    if slices.current() is None:
        return mean, None
    wide = accumulation_dtype(mean.dtype)
    own = PrefixMean(end_logits(logits.mT, mask, None)[1].to(wide), mean.to(wide))
    every = slices.state_of_all(own, merge)
    return every.mean.to(mean.dtype), (own.normaliser - every.normaliser).exp()


def masked_logits(logits: Float[Tensor, "b t h"], mask: Shaped[Tensor, "b t"] | None) -> Float[Tensor, "b t h"]:
    """Return `logits` in at least float32, those where `mask` is False far below all others: FLOOR.

    Counts instead of True and False add their logarithms (`ops.counts`).
    """
    logits = logits.to(accumulation_dtype(logits.dtype))
    if mask is None:
        return logits
    hidden = ~present(mask).unsqueeze(-1)
    if counting(mask):
        logits = logits + log_counts(mask).to(logits.dtype).unsqueeze(-1)
    return logits.masked_fill(hidden, FLOOR)


def softmax_weights(
    logits: Float[Tensor, "b t h"], mask: Shaped[Tensor, "b t"] | None = None
) -> Float[Tensor, "b t h"]:
    """Return the softmax of `logits` over positions, in at least float32; counts of `mask` multiply weights.

    Positions where `mask` is False weigh exactly zero; a row without any real position has only zeros.
    """
    weights = masked_logits(logits, mask).softmax(1)
    return weights if mask is None else weights * present(mask).unsqueeze(-1)


def softmax_pool(
    values: Float[Tensor, "b t d"], logits: Float[Tensor, "b t h"], mask: Shaped[Tensor, "b t"] | None = None
) -> Float[Tensor, "b h d"]:
    """Return, for each head, the mean of `values` over positions weighted by the softmax of that head's logits.

    A row without any real position gives zeros. Cost: t·h·d, and on a GPU with Triton one pass over the values forward
    and one backward.
    """
    if has_kernels(values) and not (exporting() or transformed()):
        return kernels.softmax_pool(values, masked_logits(logits, mask))
    return softmax_weights(logits, mask).to(values.dtype).transpose(1, 2) @ values


def softmax_pool_state(
    values: Float[Tensor, "b t d"], logits: Float[Tensor, "b t h"], mask: Shaped[Tensor, "b t"] | None = None
) -> PrefixMean:
    """Return `softmax_pool` as a state (mean (b, h, d)) that merges with those of other parts of the sequence."""
    dtype = accumulation_dtype(values.dtype)
    wide = masked_logits(logits.to(dtype), mask)
    with torch.autocast(values.device.type, enabled=False):
        # Without any positions, it would be minus infinity.
        return PrefixMean(wide.logsumexp(1).clamp_min(FLOOR), softmax_pool(values.to(dtype), logits, mask))


def slice_slots(values: Tensor, logits: Tensor, passed: Tensor | None) -> SliceMean:
    """Means of values (b, t, d) of a slice in slots, (b, slots, d), with their log-normalisers (b, slots).

    `passed` (b, t, slots) are running totals of rates, which `logits` (b, t, slots) contain.
    """
    last = logits.new_zeros(logits.shape[0], 0) if passed is None else passed[:, -1]
    normaliser, mean = softmax_pool_state(values, logits if passed is None else logits - last.unsqueeze(1))
    return SliceMean(normaliser, mean, last.to(mean.dtype))


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
    mask: Shaped[Tensor, "b t"] | None = None,
    state: PrefixMean | None = None,
    starts: Bool[Tensor, "b t"] | None = None,
    rates: Float[Tensor, "b t h"] | None = None,
) -> tuple[Float[Tensor, "b t h e"], PrefixMean]:
    """Return at every position the softmax-weighted mean of the values up to it, and the state after the last.

    Positions where `mask` is False weigh nothing; before the first real position the mean is zero. `state` continues
    an earlier call. Where `starts` is True, a packed document begins and everything before is forgotten. At position t
    the weights of all positions before it shrink by exp(-rates_t): `rates` are at least zero, and zero where `mask` is
    False. Cost: t·h·e, in one pass, with sums in at least float32.
    """
    b, t, h, e = values.shape
    state = state or empty_prefix(b, h, e, values.dtype, values.device)
    logits = masked_logits(logits, mask)
    if mask is not None and starts is not None:
        # A document that begins with padding begins with the mean of nothing.
        values = values.masked_fill((starts & ~present(mask)).view(b, t, 1, 1), 0)
    if not exporting() and t == 1 and starts is None:
        # A step of a stream: too short for a kernel.
        if rates is not None:
            state = state._replace(normaliser=state.normaliser - rates[:, 0].to(state.normaliser.dtype))
        state = merge(state, PrefixMean(logits[:, 0].to(state.normaliser.dtype), values[:, 0].to(state.mean.dtype)))
        return state.mean.unsqueeze(1).to(values.dtype), state
    gates, normaliser = softmax_gates(logits, state.normaliser, starts, rates)
    means, mean = lerp_scan(values, gates, state.mean, starts)
    return means, PrefixMean(normaliser, mean)


def window_softmax_mean(
    values: Float[Tensor, "b t h e"],
    logits: Float[Tensor, "b t h"],
    mask: Shaped[Tensor, "b t"] | None,
    rates: Float[Tensor, "b t h"],
) -> Float[Tensor, "b t h e"]:
    """Return at every position i the mean of all values, in a window of soft reach: j weighs exp(z_j - |F_i - F_j|).

    F adds up the `rates` f >= 0, which are zero where `mask` is False; such positions weigh nothing. The means over all
    positions up to i and over all after it merge as states do. Cost: that of two `prefix_softmax_mean`.
    """
    if values.shape[1] == 0:
        return values
    logits = masked_logits(logits, mask)
    rates = rates.to(logits.dtype)
    # Backwards, what lies between i and i + 1 fades when i is reached, not i + 1.
    next_rates = _next(rates, 0.0)
    weight, mean = _means_so_far(values, logits, rates)
    from_here = (x.flip(1) for x in _means_so_far(values.flip(1), logits.flip(1), next_rates.flip(1)))
    # Of the positions after each, as seen from it.
    weight_after, mean_after = (_next(x, nothing) for x, nothing in zip(from_here, (FLOOR, 0.0), strict=True))
    weight_after = weight_after - next_rates
    share = (weight_after - weight).sigmoid().unsqueeze(-1)
    return torch.lerp(mean, mean_after, share.to(mean.dtype))


def _next(x: Tensor, last: float) -> Tensor:
    """Values of x (b, t, ...) at the next position, and `last` at the last."""
    return torch.cat((x, torch.full_like(x[:, :1], last)), 1)[:, 1:]


def _means_so_far(values: Tensor, logits: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-normaliser and the mean of every prefix."""
    b, _, h = logits.shape
    no_starts = logits.new_empty(b, 0, dtype=torch.bool)
    found = plain.normalisers(logits, logits.new_full((b, h), FLOOR), no_starts, rates)
    gates = (logits - found).exp().masked_fill(logits <= FLOOR / 2, 0)
    return found, lerp_scan(values, gates)[0]


def prefix_softmax_mean_naive(
    values: Tensor,
    logits: Tensor,
    mask: Tensor | None = None,
    state: PrefixMean | None = None,
    starts: Tensor | None = None,
    rates: Tensor | None = None,
) -> tuple[Tensor, PrefixMean]:
    """Compute `prefix_softmax_mean` one position after the other, as the gated recurrence it is."""
    b, t, h, e = values.shape
    normaliser, mean = state or empty_prefix(b, h, e, values.dtype, values.device)
    means = []
    for i in range(t):
        if starts is not None:
            normaliser = normaliser.masked_fill(starts[:, i, None], FLOOR)
            mean = mean.masked_fill(starts[:, i, None, None], 0)
        if rates is not None:
            normaliser = normaliser - rates[:, i]
        new = torch.logaddexp(normaliser, logits[:, i])
        moved = mean + (logits[:, i] - new).exp().unsqueeze(-1) * (values[:, i] - mean)
        real = torch.ones(b, 1, dtype=torch.bool) if mask is None else mask[:, i : i + 1]
        normaliser = torch.where(real, new, normaliser)
        mean = torch.where(real.unsqueeze(-1), moved, mean)
        means.append(mean)
    return torch.stack(means, 1) if means else values, PrefixMean(normaliser, mean)
