"""Depthwise convolution: each channel of a position is a weighted sum of that channel at a few neighbours.

A convolution changes the layout, which costs more than a few multiply-adds per number. Milliseconds on one thread (Zen
4), for `(64, 256, 256)` float32 and width 4:

                                        forward  backward
    this module                                6        17
    `conv1d` with a group for each channel    14        41
    the same sums through autograd            30        92
    `Linear(256, 256)`, for comparison        26        23
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function

from longspan.ops.execution import by_hand, differentiated_further, on_cpu, plain_gradients
from longspan.ops.pooling import accumulation_dtype

#: Bytes of rows whose sums are finished before those of other rows are begun: they stay in a core's own cache.
_BLOCK = 1 << 19


def depthwise_convolution(
    x: Float[Tensor, "b m d"], weight: Float[Tensor, "k d"], together: Bool[Tensor, "b n k"] | None = None
) -> Float[Tensor, "b n d"]:
    """Return y_t = Σ_i w_i ⊙ x_{t+i} over i < k, for the n = m - k + 1 outputs whose neighbours are all in x.

    Where `together[t, i]` is False, x_{t+i} does not count for y_t: another document. Sums are in at least float32, and
    the result has the type of x. Cost: 2·k·n·d.
    """
    dtype = accumulation_dtype(x.dtype)
    wide, weight = x.to(dtype), weight.to(dtype)
    y: Tensor = (_ByHand.apply if by_hand() else _plain)(wide, weight, together)
    return y.to(x.dtype)


def _plain(x: Tensor, weight: Tensor, together: Tensor | None) -> Tensor:
    size = weight.shape[0]
    n = x.shape[1] - size + 1
    y = _counted(x[:, :n], together, 0) * weight[0]
    for i in range(1, size):
        y = y + _counted(x[:, i : i + n], together, i) * weight[i]
    return y


def _counted(x: Tensor, together: Tensor | None, i: int) -> Tensor:
    return x if together is None else x * together[:, :, i : i + 1]


class _ByHand(Function):
    """The same in place, a few rows after the others."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, together: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, together)
        size = weight.shape[0]
        n = x.shape[1] - size + 1
        y = x.new_zeros(x.shape[0], n, x.shape[2])
        for rows in _blocks(x):
            part, there = x[rows], None if together is None else together[rows]
            for i in range(size):
                y[rows].addcmul_(_counted(part[:, i : i + n], there, i), weight[i])
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, together = ctx.saved_tensors
        if differentiated_further():
            return plain_gradients(_plain, (x, weight, together), (gradient,))
        n = gradient.shape[1]
        grad_x, grad_weight = torch.zeros_like(x), torch.zeros_like(weight)
        for rows in _blocks(x):
            there = None if together is None else together[rows]
            for i in range(len(weight)):
                upstream = _counted(gradient[rows], there, i)
                grad_x[rows, i : i + n].addcmul_(upstream, weight[i])
                grad_weight[i] += (x[rows, i : i + n] * upstream).sum((0, 1))
        return grad_x, grad_weight, None


def _blocks(x: Tensor) -> list[slice]:
    rows = max(1, _BLOCK * len(x) // max(1, x.nbytes)) if on_cpu(x) else len(x)
    return [slice(first, first + rows) for first in range(0, len(x), max(1, rows))]


def depthwise_convolution_naive(x: Tensor, weight: Tensor, together: Tensor | None = None) -> Tensor:
    """Compute the same output by output."""
    n = x.shape[1] - len(weight) + 1
    y = x.new_zeros(x.shape[0], n, x.shape[2])
    for row in range(len(x)):
        for t in range(n):
            for i in range(len(weight)):
                if together is None or together[row, t, i]:
                    y[row, t] += weight[i] * x[row, t + i]
    return y
