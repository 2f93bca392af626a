"""Sums over chunks of positions whose weights decay: factors within and between chunks, none of them above one."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.ops.scan import lerp_scan, softmax_gates
from longspan.ops.scan.plain import exact_dtype


class Decay(NamedTuple):
    """What is left of weights, at most 1, where the rates of later positions make them shrink by exp(-rate).

    Attributes:
        within: from position j of a chunk to i, (..., i, j); 0 where j is later.
        since_start: from before the chunk to a position of it, (..., size).
        until_end: from a position to the chunk's last, (..., size).
        total: what the rates of each chunk add up to, (...).
    """

    within: Tensor
    since_start: Tensor
    until_end: Tensor
    total: Tensor


def chunk_decay(rates: Float[Tensor, "*b size"]) -> Decay:
    """Return the factors of chunks with these rates, in their type."""
    # In float64, as a large rate leaves no digits to those after it.
    passed = rates.to(exact_dtype(rates.device)).cumsum(-1)
    size, end = rates.shape[-1], passed[..., -1:]
    later = torch.ones(size, size, dtype=torch.bool, device=rates.device).triu(1)
    apart = (passed.unsqueeze(-2) - passed.unsqueeze(-1)).to(rates.dtype).masked_fill(later, -torch.inf)
    since_start, until_end = ((-lost).to(rates.dtype).exp() for lost in (passed, end - passed))
    return Decay(apart.exp(), since_start, until_end, end.squeeze(-1).to(rates.dtype))


def decayed_sums(
    added: Float[Tensor, "b n e"], rates: Float[Tensor, "b n"], start: Float[Tensor, "b e"]
) -> tuple[Float[Tensor, "b n e"], Float[Tensor, "b e"]]:
    """Return all S_{n-1} and the last S of S_n = exp(-rates_n) S_{n-1} + added_n, S_0 being `start`.

    S_n is the decayed mean of the start and all that was added, each counting as 1, times the decayed number of them:
    one over the last gate.
    """
    gates, _ = softmax_gates(
        torch.zeros_like(rates).unsqueeze(-1), rates.new_zeros(rates.shape[0], 1), None, rates.unsqueeze(-1)
    )
    means, last = lerp_scan(added.unsqueeze(2), gates, start.unsqueeze(1))
    sums = means.squeeze(2) / gates.to(means.dtype)
    last = last.squeeze(1) / gates[:, -1].to(last.dtype)
    return torch.cat((start.unsqueeze(1).to(sums.dtype), sums), 1)[:, :-1], last
