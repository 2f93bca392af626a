"""Scans of a length that is not known when their operations are written down: for torch.export and what follows it.

The scans of `plain` halve the length until one position is left, which takes another program for each length. Here,
chunks of CHUNK positions are scanned in parallel, each by one triangular matrix. Their totals are scanned likewise, in
chunks of chunks, and the totals of these by one matrix for all. So few operations do for any length, and nothing is
larger than CHUNK times the input up to about CHUNK^3 positions.
"""

import torch
from torch import Tensor

from longspan.ops.chunks import in_chunks, whole

# Stands for minus infinity: finite, so that no difference of two of them is NaN, and so far below any logit that
# exp() of its distance to one is exactly zero. Whatever is nearer to it than to zero counts as hidden.
FLOOR = -1e30


# With a gate of its own for each channel, matrices are as many as channels: smaller ones, on one level more.
CHUNK, LEVELS = 32, 2
CHANNEL_CHUNK, CHANNEL_LEVELS = 8, 3


def lerp_scan(kept: Tensor, added: Tensor, initial: Tensor) -> Tensor:
    """Return all o_t = kept_t·o_{t-1} + added_t (b, t, h, e), from kept (b, t, h, 1 or e) in [0, 1] and o_0 (b, h, e).

    The product of what is kept from j to i is exp(L_i - L_j), L being the running sum of logarithms.
    """
    # The logarithm of zero is one whose exponential is: sums of it must have differences.
    logs = kept.log().clamp_min(-700)
    if kept.shape[3] == added.shape[3] > 1:
        added = added.movedim(1, 3).flatten(1, 2).unsqueeze(-1)
        found = _recurrence(logs.movedim(1, 3).flatten(1, 2), added, initial.flatten(1).unsqueeze(-1), CHANNEL_LEVELS)
        return found.squeeze(-1).unflatten(1, initial.shape[1:]).movedim(3, 1)
    return _recurrence(logs.squeeze(3).transpose(1, 2), added.transpose(1, 2), initial, LEVELS).transpose(1, 2)


def logcumsumexp(x: Tensor) -> Tensor:
    """Return log Σ_{j<=t} exp(x_j) of numbers (b, t, h)."""
    return _log_sums(x.transpose(1, 2), LEVELS).transpose(1, 2)


def logaddexp(one: Tensor, other: Tensor) -> Tensor:
    """Return log(exp(one) + exp(other)), whose second derivatives are right near FLOOR, where torch's are NaN."""
    # Only a shift, which the result does not depend on.
    largest = torch.maximum(one, other).detach()
    return largest + ((one - largest).exp() + (other - largest).exp()).log()


def _recurrence(logs: Tensor, added: Tensor, initial: Tensor, levels: int) -> Tensor:
    """Return o_t (b, h, t, e) from logs (b, h, t), added (b, h, t, e) and initial (b, h, e)."""
    t = logs.shape[2]
    size = CHUNK if added.shape[3] > 1 else CHANNEL_CHUNK
    if levels:
        logs, added = in_chunks(logs, 2, size), in_chunks(added, 2, size)
    total = logs.cumsum(-1)
    along = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(_later(total), FLOOR).exp()
    inside = along.to(added.dtype) @ added
    before = initial.unsqueeze(2)
    if levels:
        ends = _recurrence(total[..., -1], inside[..., -1, :], initial, levels - 1)
        before = torch.cat((before, ends), 2)[:, :, :-1].unsqueeze(3)
    found = inside + total.exp().unsqueeze(-1).to(added.dtype) * before
    return whole(found, 2, t) if levels else found


def _log_sums(x: Tensor, levels: int) -> Tensor:
    """Return the same for x (b, h, t)."""
    t = x.shape[2]
    if levels:
        x = in_chunks(x, 2, CHUNK, FLOOR)
    inside = x.unsqueeze(-2).masked_fill(_later(x), FLOOR).logsumexp(-1)
    if not levels:
        return inside
    ends = _log_sums(inside[..., -1], levels - 1)
    before = torch.cat((torch.full_like(ends[..., :1], FLOOR), ends), 2)[:, :, :-1]
    return whole(logaddexp(before.unsqueeze(-1), inside), 2, t)


def _later(x: Tensor) -> Tensor:
    """Return where column j is after row i, for x (..., n)."""
    return torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).triu(1)
