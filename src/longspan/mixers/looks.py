"""Weights for `Mixer.look_at`: of poolings, of pairs of positions and of memories that decay.

What a position gathers is linear in the values of all others. So the weights of a position are the gradient of what it
gathers with respect to values: they take the time and the memory of a forward and a backward pass, whatever the mixer
does to avoid a matrix of all pairs.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from longspan.mixers.base import Look, Mixer
from longspan.ops.alibi import key_numbers
from longspan.ops.heads import merge_heads, split_heads
from longspan.ops.pooling import prefix_softmax_mean, softmax_weights, window_softmax_mean
from longspan.ops.scan import FLOOR, accumulation_dtype
from longspan.ops.scan.plain import exact_dtype, logcumsumexp

#: Queries of a row, evenly spread, of which distances are known where the row has more.
SAMPLED = 31
#: The share of the weights that lies within `Look.reach`.
REACHED = 0.9


class Pairwise(Mixer):
    """A mixer whose outputs are `output` of each head's sums of `value`, with a weight for each pair of positions.

    Attributes:
        signed: whether weights may be negative. They are then shown as two, "adds" and "subtracts".
    """

    signed = False

    value: nn.Linear
    output: nn.Module
    heads: int

    def gather_values(self, x: Tensor, mask: Tensor | None, values: Float[Tensor, "b h t e"]) -> Tensor:
        """Return the sums (b, h, t, e) of any values, as x (b, t, dim), which is zero at padding, weighs them."""
        raise NotImplementedError(f"{self._name} declares that it shows looks, and must implement gather_values")

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y: Tensor = self.output(merge_heads(self.gather_values(x, mask, split_heads(self.value(x), self.heads))))
        return y

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        """ "attention": what `at` attends to. Of whole rows the mean over all queries; distances are those of some."""
        real = torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask
        places, chosen = _spread(real) if at is None else (at.unsqueeze(1), real.gather(1, at.unsqueeze(1)))
        queries = torch.cat((_queries(x, mask, at), nn.functional.one_hot(places, x.shape[1]).mT), 2)
        values = x.new_zeros(x.shape[0], self.heads, x.shape[1], self.dim // self.heads)
        taken = weights_of(partial(self.gather_values, x.detach(), mask), values, queries)
        taken = taken if mask is None else taken * mask[:, None, :, None]
        shown = taken[..., 0]
        weights = {"adds": shown.relu(), "subtracts": (-shown).relu()} if self.signed else {"attention": shown}
        numbers = key_numbers(x.shape[1], mask, x.device).expand_as(real)
        steps = (numbers.unsqueeze(2) - numbers.gather(1, places).unsqueeze(1)).abs().clamp_max(x.shape[1] - 1)
        shares = taken[..., 1:].abs()
        # Each query counts the same.
        shares = shares / shares.sum(2, keepdim=True).clamp_min(torch.finfo(shares.dtype).tiny)
        shares = (shares * chosen[:, None, None]).transpose(0, 1).flatten(1)
        mass = shares.new_zeros(self.heads, x.shape[1]).index_add_(1, steps.flatten(), shares)
        return Look(weights, *distances_of(mass / chosen.sum().clamp_min(1)))


def weights_of(
    gather: Callable[[Tensor], Tensor], values: Float[Tensor, "b h t e"], queries: Shaped[Tensor, "b t n"]
) -> Float[Tensor, "b h t n"]:
    """Return the weights of all positions in n means over queries, of `gather`, which is linear in values.

    Args:
        gather: from values (b, h, t, e) to what each position gathers, of the same shape.
        values: any, of which nothing but shape and type counts.
        queries: how often each query counts in each mean.
    """
    found: list[Tensor] = []
    # Values of the usual width: fused kernels take no others. Each channel has the weights of another mean.
    width = values.shape[3]
    for part in queries.to(values.dtype).split(width, 2):
        part = nn.functional.pad(part, (0, width - part.shape[2]))
        with torch.enable_grad():
            values = values.detach().requires_grad_()
            gathered = gather(values)
            found += torch.autograd.grad(gathered, values, part.unsqueeze(1).expand_as(gathered).to(gathered.dtype))
    weights = torch.cat(found, 3)[..., : queries.shape[2]].to(accumulation_dtype(values.dtype))
    return weights / queries.sum(1).clamp_min(1)[:, None, None]


def softmax_mean(
    values: Float[Tensor, "b t h e"],
    logits: Float[Tensor, "b t h"],
    mask: Bool[Tensor, "b t"] | None,
    rates: Float[Tensor, "b t h"] | None,
    causal: bool,
) -> Float[Tensor, "b t h e"]:
    """Return the softmax-weighted mean of the values at each position, as a mixer with these `rates` has it."""
    if causal:
        return prefix_softmax_mean(values, logits, mask, rates=rates)[0]
    if rates is not None:
        return window_softmax_mean(values, logits, mask, rates)
    mean = torch.einsum("bth,bthe->bhe", softmax_weights(logits, mask).to(values.dtype), values)
    return mean.unsqueeze(1).expand_as(values)


def weights_at(
    logits: Float[Tensor, "b t h"],
    mask: Bool[Tensor, "b t"] | None,
    at: Int[Tensor, " b"] | None,
    rates: Float[Tensor, "b t h"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "b h t"]:
    """Weights in `softmax_mean` at a position of each row, or without `at` their means over the real ones."""
    logits = logits.to(accumulation_dtype(logits.dtype))

    def gather(values: Tensor) -> Tensor:
        return softmax_mean(values.transpose(1, 2), logits, mask, rates, causal).transpose(1, 2)

    return weights_of(gather, logits.mT.unsqueeze(3), _queries(logits, mask, at)).squeeze(3)


def decay_weights(
    rates: Float[Tensor, "b h t"], mask: Bool[Tensor, "b t"] | None, at: Int[Tensor, " b"] | None
) -> Float[Tensor, "b h t"]:
    """Share of each position up to `at` that is left there, where all before it shrinks by exp(-rate) at each.

    Without `at`, the mean over the real positions; those before a position have nothing of it.
    """
    # In a type in which differences of sums keep their digits.
    passed = rates.mT.to(exact_dtype(rates.device)).cumsum(1)
    real = torch.ones_like(passed[..., 0], dtype=torch.bool) if mask is None else mask
    if at is None:
        # Σ_{i>=j} exp(-(F_i - F_j)) over the real i.
        later = logcumsumexp((-passed).masked_fill(~real.unsqueeze(2), FLOOR).flip(1)).flip(1)
        return ((later + passed).exp() / real.sum(1).clamp_min(1).view(-1, 1, 1)).to(rates.dtype).mT
    seen = torch.arange(passed.shape[1], device=rates.device) <= at.unsqueeze(1)
    left = (passed - passed[torch.arange(len(at), device=at.device), at].unsqueeze(1)).to(rates.dtype)
    return left.masked_fill(~seen.unsqueeze(2), -math.inf).exp().mT


def distances_of(mass: Float[Tensor, "h t"]) -> tuple[Tensor, Tensor]:
    """Return `Look.distances` and `Look.reach` from the shares of the weights at distances from 0 to t - 1."""
    t = mass.shape[1]
    edges = 2 ** torch.arange((t - 1).bit_length(), device=mass.device)
    buckets = torch.bucketize(torch.arange(t, device=mass.device), edges, right=True)
    distances = mass.new_zeros(mass.shape[0], len(edges) + 1).index_add_(1, buckets, mass)
    return distances, (mass.cumsum(1) < REACHED).sum(1)


def time_constants(
    rates: Float[Tensor, "b t h"] | None, mask: Bool[Tensor, "b t"] | None
) -> Float[Tensor, " h"] | None:
    """Return 1 over the mean rate of all real positions, which is zero at padding; None without decay."""
    if rates is None:
        return None
    number = rates[..., 0].numel() if mask is None else mask.sum()
    return number / rates.sum((0, 1))


def left_aligned_values(
    gather: Callable[[Tensor, Tensor | None, Tensor], Tensor], x: Tensor, mask: Tensor | None, values: Tensor
) -> Tensor:
    """Return `gather(x, mask, values)` with the real positions of each row moved to its start, and back."""
    if mask is None:
        return gather(x, None, values)
    order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)
    index = order[:, None, :, None].expand_as(values)
    found = gather(x.gather(1, order.unsqueeze(2).expand_as(x)), mask.gather(1, order), values.gather(2, index))
    return torch.zeros_like(found).scatter(2, index, found)


def _queries(x: Float[Tensor, "b t ..."], mask: Tensor | None, at: Tensor | None) -> Int[Tensor, "b t 1"]:
    """Positions of x that read: `at`, or all that are real."""
    if at is not None:
        return nn.functional.one_hot(at, x.shape[1]).unsqueeze(2)
    return torch.ones_like(x[:, :, :1], dtype=torch.long) if mask is None else mask.unsqueeze(2).long()


def _spread(real: Bool[Tensor, "b t"]) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]:
    """Return the places of real positions that are spread evenly over each row, and which of them exist."""
    count, number = real.sum(1, keepdim=True), min(SAMPLED, real.shape[1])
    ranks = torch.arange(number, device=real.device)
    order = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)
    return order.gather(1, torch.where(count > number, ranks * count // number, ranks)), ranks < count
