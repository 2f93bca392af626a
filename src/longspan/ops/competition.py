"""Positions that compete by softmax: scored, pooled and served through thin products.

Scores (a few numbers per position) and pooled sums (a few rows) are thin: x (b, t, d) is read for them and nothing of
its size is written. Only its gradient is wide, and a sum of thin products. Plain autograd writes out each of them at
the width of x and adds them up, which costs more than all the rest. Here their factors are collected and multiplied
once.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function

from longspan.ops.execution import by_hand
from longspan.ops.scan import FLOOR, accumulation_dtype

# What `score` and `pool` owe to the gradient of x is a product of coefficients (b, h, t) and rows (b, h, d). They hand
# its factors back as the gradients of two links, zeros that own no memory, and _Collect multiplies all of them at once.


class Read(NamedTuple):
    """The sequence x (b, t, d) for one call of `score` or `pool`, with the two links that collect its gradient."""

    x: Tensor
    links: tuple[Tensor, ...] | None


def reads(x: Float[Tensor, "b t d"], *widths: int) -> tuple[Read, ...]:
    """Return one read of x for each call of `score` or `pool` to come, `widths` being the numbers of rows of each.

    The gradient with respect to x is then one product for all of them, of cost t·Σwidths·d.
    """
    if not by_hand():
        return tuple(Read(x, None) for _ in widths)
    links = _Collect.apply(x, *widths)
    return tuple(Read(x, pair) for pair in zip(links[::2], links[1::2], strict=True))


def score(read: Read, rows: Float[Tensor, "*b h d"]) -> Float[Tensor, "b h t"]:
    """Return the dot product of each row with each position of x, in the type of x. Cost: t·h·d.

    Rows without b serve the whole batch.
    """
    rows = rows.to(read.x.dtype).expand(read.x.shape[0], -1, -1)
    scores: Tensor = _scores(read.x, rows) if read.links is None else _Score.apply(read.x, *read.links, rows)
    return scores


def pool(read: Read, weights: Float[Tensor, "b h t"]) -> Float[Tensor, "b h d"]:
    """Return the sum of the positions of x, each times its weight, in the type of x. Cost: t·h·d."""
    weights = weights.to(read.x.dtype)
    pooled: Tensor = _sums(read.x, weights) if read.links is None else _Pool.apply(read.x, *read.links, weights)
    return pooled


def _scores(x: Tensor, rows: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        # In this order: rows @ xᵀ is up to twenty times slower on a CPU.
        return (x @ rows.mT).mT


def _sums(x: Tensor, weights: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return weights @ x


class _Collect(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *widths: int) -> tuple[Tensor, ...]:
        b, t, d = x.shape
        zero = x.new_zeros(())
        return tuple(zero.expand(b, width, length) for width in widths for length in (t, d))

    @staticmethod
    def backward(ctx: Any, *factors: Tensor) -> tuple[Tensor | None, ...]:
        coefficients = torch.cat([factor.mT for factor in factors[::2]], 2)
        rows = torch.cat(factors[1::2], 1)
        return coefficients @ rows, *[None] * (len(factors) // 2)


class _Score(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, coefficient_link: Tensor, row_link: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(x, rows)
        return _scores(x, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, rows = ctx.saved_tensors
        return None, gradient, rows, _sums(x, gradient)


class _Pool(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, coefficient_link: Tensor, row_link: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, weights)
        return _sums(x, weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weights = ctx.saved_tensors
        return None, weights, gradient, _scores(x, gradient)


def position_softmax(logits: Float[Tensor, "b h t"], mask: Bool[Tensor, "b t"] | None = None) -> Float[Tensor, "b h t"]:
    """Return the softmax of `logits` over positions, in at least float32.

    Positions where `mask` is False weigh exactly zero; a row without any real position has only zeros.
    """
    logits = logits.to(accumulation_dtype(logits.dtype))
    if mask is None:
        return logits.softmax(2)
    keep = mask.unsqueeze(1)
    return logits.masked_fill(~keep, FLOOR).softmax(2) * keep


def project_heads(
    pooled: Float[Tensor, "b h d"], weight: Float[Tensor, "out d"], bias: Float[Tensor, " out"] | None = None
) -> Float[Tensor, "b h e"]:
    """Return each head's row times that head's part of a projection, e = out / h rows of `weight`. Cost: out·d."""
    h = pooled.shape[1]
    projected = torch.einsum("bhd,hed->bhe", pooled, weight.unflatten(0, (h, -1)))
    return projected if bias is None else projected + bias.view(h, -1)


def against_keys(query: Float[Tensor, "b h e"], weight: Float[Tensor, "out d"]) -> Float[Tensor, "b h d"]:
    """Return rows r with r·x = query·(weight x)_h, so that keys need not be formed. Cost: out·d."""
    return torch.einsum("bhe,hed->bhd", query, weight.unflatten(0, (query.shape[1], -1)))


def hand_out(
    weights: Float[Tensor, "b h t"], answers: Float[Tensor, "b h e"], weight: Float[Tensor, "out d"] | None
) -> Float[Tensor, "b t out"]:
    """Return `weight` times the concatenation over heads of weights_t·answers, d = h·e; no `weight` is the identity.

    Cost: t·h·out + out·d.
    """
    h = answers.shape[1]
    if weight is None:
        own = torch.eye(h, dtype=answers.dtype, device=answers.device).unsqueeze(-1)
        rows = (answers.unsqueeze(2) * own).flatten(2)
    else:
        rows = torch.einsum("bhe,ohe->bho", answers, weight.unflatten(1, (h, -1)))
    return weights.to(rows.dtype).mT @ rows
