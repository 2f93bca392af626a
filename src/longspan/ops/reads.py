"""Products of one tensor with rows, weights and a matrix, whose gradients with respect to it are one product.

Scores (a few numbers per position) and pooled sums (a few rows) are thin: computing them reads x (b, t, d), but writes
nothing of its size. Only the gradient of x is that large, and `joint_reads` writes it once.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from longspan.ops.execution import by_hand


class JointReads(NamedTuple):
    """Products of x (b, t, d) with a few rows or weights at a time, by `score` and `pool`, and with a matrix, by
    `transform`; `joint_reads` makes it.

    Scores of rows R, S = R xᵀ, add dSᵀ R to the gradient of x; sums with weights W, P = W x, add Wᵀ dP; a transform,
    y = x Mᵀ, adds dy M. Plain autograd forms each of these terms, all of them as large as x, and adds them up, which
    takes longer than all else. Here the factors are collected first, and the gradient is one product of them, to which
    the product of a transform is added in place:

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


def joint_reads(x: Float[Tensor, "b t d"], *widths: int) -> JointReads:
    """Return the reads of x; `widths` are the numbers of rows or of sets of weights of each read to come, in order.

    Reads that are announced and not used cost nothing.

    Raises:
        ValueError: from a read beyond those announced, or of another width.
    """
    joined = by_hand() and torch.is_grad_enabled()
    return JointReads(x, list(widths), list(_JoinedGradient.apply(x, *widths)) if joined else [])


def score(reads: JointReads, rows: Float[Tensor, "*b h d"]) -> Float[Tensor, "b h t"]:
    """Return the dot product of each row with each position of x, in the type of x. Cost: t·h·d.

    Rows without b apply to the whole batch.
    """
    return _apply_read(reads, _scores, rows.to(reads.x.dtype).expand(reads.x.shape[0], -1, -1))


def pool(reads: JointReads, weights: Float[Tensor, "b h t"]) -> Float[Tensor, "b h d"]:
    """Return the sum of the positions of x, each times its weight, in the type of x. Cost: t·h·d."""
    return _apply_read(reads, _sums, weights.to(reads.x.dtype))


def transform(
    reads: JointReads, matrix: Float[Tensor, "*#b out d"], constant: Float[Tensor, "#b 1 out"] | None = None
) -> Float[Tensor, "b t out"]:
    """Return matrix x_t + constant at each position, as autocast or else the type of x has it. Cost: t·out·d.

    A matrix or constant without b applies to the whole batch.
    """
    x = reads.x
    if torch.is_autocast_enabled(x.device.type):
        # It casts x to another type, of which the other reads know nothing.
        return _affine(x, matrix, constant)
    matrix = matrix.to(x.dtype).expand(x.shape[0], -1, -1)
    if constant is not None:
        constant = constant.to(x.dtype).expand(x.shape[0], 1, -1)
    return _apply_read(reads, _outputs, matrix, constant)


def _apply_read(
    reads: JointReads, product: Callable[..., Tensor], operand: Tensor, constant: Tensor | None = None
) -> Tensor:
    width = reads.announced.pop(0) if reads.announced else 0
    if operand.shape[1] != width:
        raise ValueError(f"expected a read of width {width}, as announced, got {operand.shape[1]}; announce it.")
    if not reads.placeholders:
        return product(reads.x, operand, constant)
    places = reads.placeholders.pop(0), reads.placeholders.pop(0)
    result: Tensor = _ReadFunction.apply(product, reads.x, operand, constant, *places)
    return result


def _scores(x: Tensor, rows: Tensor, constant: None = None) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        # In this order: rows @ xᵀ is up to twenty times slower on a CPU.
        return (x @ rows.mT).mT


def _sums(x: Tensor, weights: Tensor, constant: None = None) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return weights @ x


def _outputs(x: Tensor, matrix: Tensor, constant: Tensor | None) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return _affine(x, matrix, constant)


def _affine(x: Tensor, matrix: Tensor, constant: Tensor | None) -> Tensor:
    if constant is None:
        return x @ matrix.mT
    # In one pass: an addition after it would write another tensor of this size.
    return torch.baddbmm(constant, x, matrix.mT.expand(x.shape[0], -1, -1))


class _JoinedGradient(Function):
    """From x to placeholders (b, width, t) and (b, width, d) for each read; back from the factors of all to dx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *widths: int) -> tuple[Tensor, ...]:
        b, t, d = x.shape
        ctx.set_materialize_grads(False)
        # Expanded, it takes no memory.
        zero = x.new_zeros(())
        return tuple(zero.expand(b, width, length) for width in widths for length in (t, d))

    @staticmethod
    def backward(ctx: Any, *factors: Tensor | None) -> tuple[Tensor | None, ...]:
        pairs = list(_pairs(factors))
        # Joining factors copies them, which costs too much of those as wide as x.
        wide = [coefficients.mT @ rows for coefficients, rows in pairs if rows.shape[1] >= rows.shape[2]]
        thin = [pair for pair in pairs if pair[1].shape[1] < pair[1].shape[2]]
        gradient = sum(wide[1:], wide[0]) if wide else None
        if thin:
            coefficients = torch.cat([each.mT for each, _ in thin], 2)
            rows = torch.cat([each for _, each in thin], 1)
            if gradient is None:
                gradient = coefficients @ rows
            elif torch.is_grad_enabled():
                gradient = torch.baddbmm(gradient, coefficients, rows)
            else:
                gradient.baddbmm_(coefficients, rows)
        return gradient, *[None] * (len(factors) // 2)


def _pairs(factors: tuple[Tensor | None, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the coefficients and rows of the reads that were used."""
    for coefficients, rows in zip(factors[::2], factors[1::2], strict=True):
        if coefficients is not None and rows is not None:
            yield coefficients, rows


class _ReadFunction(Function):
    """`_scores`, `_sums` or `_outputs`; what it adds to the gradient of x goes to the placeholders, as two factors."""

    @staticmethod
    def forward(
        ctx: Any, product: Any, x: Tensor, operand: Tensor, constant: Tensor | None, coefficients: Tensor, rows: Tensor
    ) -> Tensor:
        ctx.product = product
        ctx.save_for_backward(x, operand)
        result: Tensor = product(x, operand, constant)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, operand = ctx.saved_tensors
        if ctx.product is _sums:
            return None, None, _scores(x, gradient), None, operand, gradient
        for_constant = gradient.sum(1, keepdim=True) if ctx.needs_input_grad[3] else None
        scores = gradient.mT if ctx.product is _outputs else gradient
        return None, None, _sums(x, scores) if ctx.needs_input_grad[2] else None, for_constant, scores, operand
