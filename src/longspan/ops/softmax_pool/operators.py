"""Softmax-weighted means over all positions as a PyTorch operator of a GPU: torch.compile sees it as such."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.utils.flop_counter import register_flop_formula

from longspan.ops.execution import differentiated_further, plain_gradients
from longspan.ops.scan import FLOOR, accumulation_dtype


def softmax_pool(values: Tensor, logits: Tensor) -> Tensor:
    """Return the means (b, h, d) of values (b, t, d) weighted by the softmax of logits (b, t, h); those that are FLOOR
    weigh nothing."""
    kind = values.device.type
    if torch.is_autocast_enabled(kind):
        # As it does with the operands of a product.
        values = values.to(torch.get_autocast_dtype(kind))
    return pool(values, logits.to(accumulation_dtype(values.dtype)))[0].to(values.dtype)


@custom_op("longspan::softmax_pool", mutates_args=(), device_types="cuda")
def pool(values: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the means, and of each head the largest logit and Σ exp(z - largest), all in the type of the logits."""
    made = _made(values, logits)
    _kernels().forward(values.contiguous(), logits.contiguous(), *made, FLOOR / 2)
    return made


@custom_op("longspan::softmax_pool_backward", mutates_args=(), device_types="cuda")
def pool_backward(
    gradient: Tensor, values: Tensor, logits: Tensor, pooled: Tensor, largest: Tensor, total: Tensor
) -> tuple[Tensor, Tensor]:
    made = _new(values), _new(logits)
    along = (gradient * pooled).sum(-1)
    given = (gradient, along, values, logits, largest, total)
    _kernels().backward(*(x.contiguous() for x in given), *made, FLOOR / 2)
    return made


def _new(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _made(values: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    b, _, h = logits.shape
    return logits.new_empty(b, h, values.shape[2]), logits.new_empty(b, h), logits.new_empty(b, h)


@pool.register_fake
def _(values: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _made(values, logits)


@pool_backward.register_fake
def _(
    gradient: Tensor, values: Tensor, logits: Tensor, pooled: Tensor, largest: Tensor, total: Tensor
) -> tuple[Tensor, Tensor]:
    return _new(values), _new(logits)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _gradients(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    if differentiated_further():
        return plain_gradients(_plainly, ctx.saved_tensors[:2], (gradient,))
    return pool_backward(gradient, *ctx.saved_tensors)


def _plainly(values: Tensor, logits: Tensor) -> Tensor:
    weights = logits.softmax(1) * (logits > FLOOR / 2)
    return weights.transpose(1, 2) @ values.to(weights.dtype)


# Nothing but the backward pass gets the largest logits and the sums, so that they need no gradient of their own.
pool.register_autograd(_gradients, setup_context=_save)


@register_flop_formula(torch.ops.longspan.softmax_pool)
def _(values: Sequence[int], logits: Sequence[int], *_: Any, **__: Any) -> int:
    b, t, d = values
    return 2 * b * t * d * logits[2]


def _kernels() -> ModuleType:
    # Triton is slow to import: the first call waits for it, and nothing else does.
    from longspan.ops.softmax_pool import triton

    return triton
