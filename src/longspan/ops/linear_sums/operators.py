"""The sums of linear attention, and what queries read from them, as PyTorch operators of a GPU.

Tensors have heads after positions, (b, t, h, ...), which are those of a mixer without a copy.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.utils.flop_counter import register_flop_formula

from longspan.ops.execution import differentiated_further, plain_gradients
from longspan.ops.linear_sums import plain
from longspan.ops.scan import accumulation_dtype


def sums(key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return Σ φ(k) vᵀ (b, h, e, v) and Σ φ(k) (b, h, e) over keys (b, h, m, e) where `mask` (b, m) is True."""
    mask = key.new_empty(key.shape[0], 0, dtype=torch.bool) if mask is None else mask
    return summed(key.transpose(1, 2), value.transpose(1, 2), mask)


def answers(sums: Tensor, weights: Tensor, query: Tensor) -> Tensor:
    """Return what queries (b, h, n, e) read from them, (b, h, n, v) in their type."""
    return read(query.transpose(1, 2), sums, weights)[0].transpose(1, 2)


@custom_op("longspan::linear_sums", mutates_args=(), device_types="cuda")
def summed(key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    made = _made_of_keys(key, value)
    _kernels().sum_up(key.contiguous(), value.contiguous(), mask.contiguous(), *made)
    return made


@custom_op("longspan::linear_sums_backward", mutates_args=(), device_types="cuda")
def summed_backward(
    grad_sums: Tensor, grad_weights: Tensor, key: Tensor, value: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    made = _new(key), _new(value)
    given = (grad_sums, grad_weights, key, value, mask)
    _kernels().sum_up_backward(*(x.contiguous() for x in given), *made)
    return made


@custom_op("longspan::linear_read", mutates_args=(), device_types="cuda")
def read(query: Tensor, sums: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is read, and the normalisers (b, t, h)."""
    made = _made_of_queries(query, sums)
    _kernels().read(*(x.contiguous() for x in (query, sums, weights)), *made, plain.TINY)
    return made


@custom_op("longspan::linear_read_backward", mutates_args=(), device_types="cuda")
def read_backward(
    gradient: Tensor, query: Tensor, sums: Tensor, weights: Tensor, out: Tensor, normaliser: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    made = _new(query), _new(sums), _new(weights)
    inverse = plain.inverse(normaliser)
    to_normaliser = -(gradient * out).sum(-1) * inverse * (normaliser >= plain.TINY)
    given = (gradient, to_normaliser, inverse, query, sums, weights)
    _kernels().read_backward(*(x.contiguous() for x in given), *made)
    return made


def _new(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _made_of_keys(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    b, _, h, e = key.shape
    dtype = accumulation_dtype(key.dtype)
    return key.new_empty(b, h, e, value.shape[3], dtype=dtype), key.new_empty(b, h, e, dtype=dtype)


def _made_of_queries(query: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    b, t, h, _ = query.shape
    return sums.new_empty(b, t, h, sums.shape[3]), sums.new_empty(b, t, h)


@summed.register_fake
def _(key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return _made_of_keys(key, value)


@summed_backward.register_fake
def _(grad_sums: Tensor, grad_weights: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return _new(key), _new(value)


@read.register_fake
def _(query: Tensor, sums: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    return _made_of_queries(query, sums)


@read_backward.register_fake
def _(
    gradient: Tensor, query: Tensor, sums: Tensor, weights: Tensor, out: Tensor, normaliser: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return _new(query), _new(sums), _new(weights)


def _save_keys(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs)


def _key_gradients(ctx: Any, grad_sums: Tensor, grad_weights: Tensor) -> tuple[Tensor | None, ...]:
    if differentiated_further():
        return plain_gradients(_plain_sums, ctx.saved_tensors, (grad_sums, grad_weights))
    return *summed_backward(grad_sums, grad_weights, *ctx.saved_tensors), None


def _plain_sums(key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    real = mask[:, None, :, None] if mask.shape[1] else None
    return plain.sums(key.transpose(1, 2), value.transpose(1, 2), real, None)


def _save_queries(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _query_gradients(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    if differentiated_further():
        return plain_gradients(_plain_answers, ctx.saved_tensors[:3], (gradient,))
    return read_backward(gradient, *ctx.saved_tensors)


def _plain_answers(query: Tensor, sums: Tensor, weights: Tensor) -> Tensor:
    return plain.answers(sums, weights, query.transpose(1, 2), None).transpose(1, 2)


summed.register_autograd(_key_gradients, setup_context=_save_keys)
# Nothing but the backward pass gets the normalisers, so that they need no gradient of their own.
read.register_autograd(_query_gradients, setup_context=_save_queries)


@register_flop_formula([torch.ops.longspan.linear_sums, torch.ops.longspan.linear_read])
def _(x: Sequence[int], other: Sequence[int], *_: Any, **__: Any) -> int:
    """A product of each feature with each column of the values."""
    b, t, h, e = x
    return 2 * b * t * h * e * other[3]


def _kernels() -> ModuleType:
    # Triton is slow to import: the first call waits for it, and nothing else does.
    from longspan.ops.linear_sums import triton

    return triton
