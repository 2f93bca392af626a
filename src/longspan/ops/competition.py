"""Competition of positions by softmax, computed by thin products.

Scores (a few numbers per position) and pooled sums (a few rows) are thin. Computing them reads x (b, t, d), but writes
nothing of its size. Only the gradient of x is that large, and `thin_reads` writes it once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.autograd import Function

from longspan.ops.counts import counting, log_counts, present
from longspan.ops.execution import by_hand
from longspan.ops.scan import FLOOR, accumulation_dtype


class ThinReads(NamedTuple):
    """Products of x (b, t, d) with a few rows or weights at a time, by `score` and `pool`; `thin_reads` makes it.

    Scores of rows R, S = R xᵀ, add dSᵀ R to the gradient of x; sums with weights W, P = W x, add Wᵀ dP. Plain autograd
    forms each of these terms, all of them as large as x, and adds them up, which takes longer than everything else.
    Here the factors, which are thin, are collected first, and the gradient is a single product of them:

        forward                        backward
        x, R ──► score ──► S           dS ──► score ──► dR = dS x
                                                └─────► dS, R ──┐
        x, W ──► pool ───► P           dP ──► pool ───► dW = dP xᵀ
                                                └─────► W, dP ──┴──► _JoinedGradient ──► dx = [dS; W]ᵀ [R; dP]

    Autograd itself carries the factors. It delivers gradients to where a tensor came from, so each read takes two
    placeholders that came from `_JoinedGradient`, with the shapes of its factors. Their values are never used, and a
    read returns its factors as their gradients. Autograd runs `_JoinedGradient` backward when all reads have done so,
    whatever their order. No state is kept outside the graph, so second derivatives, backward passes through parts of
    it, and checkpointing work as with any other operation.
    """

    x: Tensor
    announced: list[int]
    placeholders: list[Tensor]


def thin_reads(x: Float[Tensor, "b t d"], *widths: int) -> ThinReads:
    """Return the reads of x; `widths` are the numbers of rows or of sets of weights of each `score` or `pool` to come.

    Raises:
        ValueError: from a read beyond those announced, or of another width.
    """
    return ThinReads(x, list(widths), list(_JoinedGradient.apply(x, *widths)) if by_hand() else [])


def score(reads: ThinReads, rows: Float[Tensor, "*b h d"]) -> Float[Tensor, "b h t"]:
    """Return the dot product of each row with each position of x, in the type of x. Cost: t·h·d.

    Rows without b apply to the whole batch.
    """
    return _read(reads, _scores, rows.to(reads.x.dtype).expand(reads.x.shape[0], -1, -1))


def pool(reads: ThinReads, weights: Float[Tensor, "b h t"]) -> Float[Tensor, "b h d"]:
    """Return the sum of the positions of x, each times its weight, in the type of x. Cost: t·h·d."""
    return _read(reads, _sums, weights.to(reads.x.dtype))


def _read(reads: ThinReads, product: Callable[[Tensor, Tensor], Tensor], operand: Tensor) -> Tensor:
    width = reads.announced.pop(0) if reads.announced else 0
    if operand.shape[1] != width:
        raise ValueError(f"expected a read of width {width}, as announced, got {operand.shape[1]}; announce it.")
    if not reads.placeholders:
        return product(reads.x, operand)
    result: Tensor = _Read.apply(product, reads.x, operand, reads.placeholders.pop(0), reads.placeholders.pop(0))
    return result


def _scores(x: Tensor, rows: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        # In this order: rows @ xᵀ is up to twenty times slower on a CPU.
        return (x @ rows.mT).mT


def _sums(x: Tensor, weights: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return weights @ x


class _JoinedGradient(Function):
    """From x to placeholders (b, width, t) and (b, width, d) for each read; back from the factors of all to dx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *widths: int) -> tuple[Tensor, ...]:
        b, t, d = x.shape
        # Expanded, it takes no memory.
        zero = x.new_zeros(())
        return tuple(zero.expand(b, width, length) for width in widths for length in (t, d))

    @staticmethod
    def backward(ctx: Any, *factors: Tensor) -> tuple[Tensor | None, ...]:
        coefficients = torch.cat([factor.mT for factor in factors[::2]], 2)
        rows = torch.cat(factors[1::2], 1)
        return coefficients @ rows, *[None] * (len(factors) // 2)


class _Read(Function):
    """`_scores` or `_sums`; their contribution to the gradient of x goes to the placeholders, as a pair of factors."""

    @staticmethod
    def forward(ctx: Any, product: Any, x: Tensor, operand: Tensor, coefficients: Tensor, rows: Tensor) -> Tensor:
        ctx.product = product
        ctx.save_for_backward(x, operand)
        result: Tensor = product(x, operand)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, operand = ctx.saved_tensors
        if ctx.product is _scores:
            return None, None, _sums(x, gradient), gradient, operand
        return None, None, _scores(x, gradient), operand, gradient


def position_softmax(
    logits: Float[Tensor, "b h t"], mask: Shaped[Tensor, "b t"] | None = None
) -> Float[Tensor, "b h t"]:
    """Return the softmax of `logits` over positions, in at least float32; counts of `mask` multiply weights.

    Positions where `mask` is False weigh exactly zero; a row without any real position has only zeros.
    """
    logits = logits.to(accumulation_dtype(logits.dtype))
    if mask is None:
        return logits.softmax(2)
    keep = present(mask).unsqueeze(1)
    if counting(mask):
        logits = logits + log_counts(mask).to(logits.dtype).unsqueeze(1)
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
