"""Sums over chunks of positions whose weights decay: factors within and between chunks, none of them above one."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.autograd import Function

from longspan.ops.execution import by_hand, exporting
from longspan.ops.scan import lerp_scan, softmax_gates
from longspan.ops.scan.plain import exact_dtype

# Chunks below which a product of all with all takes less time than a scan.
FEW = 64


class Decay(NamedTuple):
    """The remaining share of weights, at most 1, where the rates of later positions make them shrink by exp(-rate).

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
    end = passed[..., -1:]
    within: Tensor = _Within.apply(passed, rates.dtype) if by_hand() else _within(passed, rates.dtype)
    since_start, until_end = ((-lost).to(rates.dtype).exp() for lost in (passed, end - passed))
    return Decay(within, since_start, until_end, end.squeeze(-1).to(rates.dtype))


def left_at_end(rates: Float[Tensor, "b h t *e"]) -> tuple[Float[Tensor, "b h t *e"], Float[Tensor, "b h *e"]]:
    """Return the share of each position's weight that is left at the last one, and the total of the rates."""
    passed = rates.to(exact_dtype(rates.device)).cumsum(2)
    end = passed[:, :, -1:]
    return (passed - end).exp().to(rates.dtype), end.squeeze(2).to(rates.dtype)


def _within(passed: Tensor, dtype: torch.dtype) -> Tensor:
    size = passed.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=passed.device).triu(1)
    return (passed.unsqueeze(-2) - passed.unsqueeze(-1)).to(dtype).masked_fill(later, -torch.inf).exp()


class _Within(Function):
    """The same, whose gradient keeps to `dtype` where PyTorch's would go back through float64."""

    @staticmethod
    def forward(ctx: Any, passed: Tensor, dtype: torch.dtype) -> Tensor:
        left = (passed.unsqueeze(-2) - passed.unsqueeze(-1)).to(dtype).exp_().tril_()
        ctx.save_for_backward(left)
        ctx.exact = passed.dtype
        return left

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (left,) = ctx.saved_tensors
        change = gradient * left
        return (change.sum(-2) - change.sum(-1)).to(ctx.exact), None


def running_sums(
    chunks: Float[Tensor, "b h n *e"],
    start: Float[Tensor, "b h *e"],
    rates: Float[Tensor, "b h n"] | Float[Tensor, "b h n k"],
) -> tuple[Float[Tensor, "b h n *e"], Float[Tensor, "b h *e"]]:
    """Return all S_{n-1} and the last S of S_n = exp(-rates_n) S_{n-1} + chunks_n, S_0 being `start`.

    `rates` are one per head, or one per head and each of the first of the dimensions e. In an exported program, one
    operation goes from chunk to chunk. Elsewhere one product does it where chunks are few, and where they are many the
    scan of means, whose factors are at most 1: S_n is a decayed mean times a decayed count. The mean is of the start
    and all added terms, each counting as 1; the count is one over the last gate.
    """
    if exporting():
        kept = (-rates).exp()
        kept = kept[(..., *[None] * (chunks.ndim - kept.ndim))].to(chunks.dtype)
        # Contiguous, as what is carried on must lie in memory as it did before.
        inputs = tuple(x.movedim(2, 0).contiguous() for x in (chunks, kept))
        last, before = scan(_next, start.to(chunks.dtype).contiguous(), inputs)
        return before.movedim(0, 2), last
    if rates.ndim == 3 and chunks.shape[2] < FEW:
        # A product, in which what each chunk adds, and the start before them, decays to the end of each later one.
        together = torch.cat((start.unsqueeze(2).to(chunks.dtype), chunks), 2)
        kept = chunk_decay(nn.functional.pad(rates, (1, 0))).within.to(chunks.dtype)
        sums = (kept @ together.flatten(3)).view_as(together)
        return sums[:, :, :-1], sums[:, :, -1].clone()
    # Positions first, as scans have them: (b, n, heads, e), each channel a head where it has a rate of its own.
    rates = rates.transpose(1, 2).flatten(2)
    heads = rates.shape[2]
    added = chunks.transpose(1, 2).flatten(2).unflatten(2, (heads, -1))
    gates, _ = softmax_gates(torch.zeros_like(rates), rates.new_zeros(rates.shape[0], heads), None, rates)
    means, last = lerp_scan(added, gates, start.flatten(1).unflatten(1, (heads, -1)))
    sums = (means / gates.unsqueeze(-1).to(means.dtype)).flatten(2).unflatten(2, start.shape[1:]).transpose(1, 2)
    last = (last / gates[:, -1].unsqueeze(-1).to(last.dtype)).view_as(start)
    return torch.cat((start.unsqueeze(2).to(sums.dtype), sums), 2)[:, :, :-1], last


def _next(before: Tensor, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    added, kept = inputs
    # What is put out may not be the very tensor that is carried on.
    return kept * before + added, before.clone()
