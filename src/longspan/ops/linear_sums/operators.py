"""The sums of linear attention, and what queries read from them, as PyTorch operators: torch.compile sees them as such.
A CPU has compiled loops; a GPU has kernels where Triton is installed.

Tensors have heads after positions, (b, t, h, ...), which are those of a mixer without a copy.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.utils.flop_counter import register_flop_formula

from longspan.ops.execution import TRITON, differentiated_further, plain_gradients
from longspan.ops.linear_sums import plain
from longspan.ops.scan import accumulation_dtype


def sums(key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return Σ φ(k) vᵀ (b, h, e, v) and Σ φ(k) (b, h, e) over keys (b, h, m, e) where `mask` (b, m) is True."""
    return summed(key.transpose(1, 2), value.transpose(1, 2), _or_none(mask, key))


def answers(sums: Tensor, weights: Tensor, query: Tensor) -> Tensor:
    """Return what queries (b, h, n, e) read from them, (b, h, n, v) in their type."""
    return read(query.transpose(1, 2), sums, weights)[0].transpose(1, 2)


def features(x: Tensor, mask: Tensor | None, shifted: bool) -> Tensor:
    """Return what `plain.query_features` does if `shifted`, otherwise `plain.key_features`, of a CPU's tensor."""
    x = x.to(accumulation_dtype(x.dtype))
    found: Tensor = featured(x.transpose(1, 2), _or_none(mask, x), shifted)
    return found.transpose(1, 2)


def _or_none(mask: Tensor | None, x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], 0, dtype=torch.bool) if mask is None else mask


@custom_op("longspan::linear_features", mutates_args=(), device_types="cpu")
def featured(x: Tensor, mask: Tensor, shifted: bool) -> Tensor:
    made = _new(x)
    _loops().features(*_arrays(x.dtype, x), _flags(mask), shifted, made.numpy(), torch.get_num_threads())
    return made


@custom_op("longspan::linear_sums", mutates_args=(), device_types="cpu")
def summed(key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    made = _made_of_keys(key, value)
    given = _arrays(made[0].dtype, key, value)
    _loops().sum_up(*given, _flags(mask), *_arrays(made[0].dtype, *made), torch.get_num_threads())
    return made


@custom_op("longspan::linear_sums_backward", mutates_args=(), device_types="cpu")
def summed_backward(
    grad_sums: Tensor, grad_weights: Tensor, key: Tensor, value: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    dtype = grad_sums.dtype
    made = _new(key, dtype), _new(value, dtype)
    given = _arrays(dtype, grad_sums, grad_weights, key, value)
    _loops().sum_up_backward(*given, _flags(mask), *_arrays(dtype, *made), torch.get_num_threads())
    return made[0].to(key.dtype), made[1].to(value.dtype)


@custom_op("longspan::linear_read", mutates_args=(), device_types="cpu")
def read(query: Tensor, sums: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is read, and the normalisers (b, t, h)."""
    made = _made_of_queries(query, sums)
    given = _arrays(sums.dtype, query, sums, weights, *made)
    _loops().read(*given, plain.TINY, torch.get_num_threads())
    return made


@custom_op("longspan::linear_read_backward", mutates_args=(), device_types="cpu")
def read_backward(
    gradient: Tensor, query: Tensor, sums: Tensor, weights: Tensor, out: Tensor, normaliser: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = sums.dtype
    made = _new(query, dtype), _new(sums), _new(weights)
    given = (gradient, *_of_normaliser(gradient, out, normaliser), query, sums, weights)
    _loops().read_backward(*_arrays(dtype, *given, *made), torch.get_num_threads())
    return made[0].to(query.dtype), made[1], made[2]


def _of_normaliser(gradient: Tensor, out: Tensor, normaliser: Tensor) -> tuple[Tensor, Tensor]:
    """Return its gradient and its inverse."""
    inverse = plain.inverse(normaliser)
    return -(gradient * out).sum(-1) * inverse * (normaliser >= plain.TINY), inverse


def _new(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return tensor.new_empty(tensor.shape, dtype=dtype)


def _made_of_keys(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    b, _, h, e = key.shape
    dtype = accumulation_dtype(key.dtype)
    return key.new_empty(b, h, e, value.shape[3], dtype=dtype), key.new_empty(b, h, e, dtype=dtype)


def _made_of_queries(query: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    b, t, h, _ = query.shape
    return sums.new_empty(b, t, h, sums.shape[3]), sums.new_empty(b, t, h)


@featured.register_fake
def _(x: Tensor, mask: Tensor, shifted: bool) -> Tensor:
    return _new(x)


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


def _save_features(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _features_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    (found,) = ctx.saved_tensors
    # The features are all that it needs, and it is that of any order.
    return gradient * found.clamp_max(1), None, None


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


featured.register_autograd(_features_gradient, setup_context=_save_features)
summed.register_autograd(_key_gradients, setup_context=_save_keys)
# Nothing but the backward pass gets the normalisers, so that they need no gradient of their own.
read.register_autograd(_query_gradients, setup_context=_save_queries)


@register_flop_formula([torch.ops.longspan.linear_sums, torch.ops.longspan.linear_read])
def _(x: Sequence[int], other: Sequence[int], *_: Any, **__: Any) -> int:
    """A product of each feature with each column of the values."""
    b, t, h, e = x
    return 2 * b * t * h * e * other[3]


def _loops() -> ModuleType:
    # Numba is slow to import: the first call waits for it, and nothing else does.
    from longspan.ops.linear_sums import numba

    return numba


def _kernels() -> ModuleType:
    # As slow.
    from longspan.ops.linear_sums import triton

    return triton


def _arrays(dtype: torch.dtype, *tensors: Tensor) -> list[Any]:
    return [tensor.to(dtype).contiguous().numpy() for tensor in tensors]


def _flags(mask: Tensor) -> Any:
    return mask.contiguous().numpy()


if TRITON:

    @summed.register_kernel("cuda")
    def _(key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        made = _made_of_keys(key, value)
        _kernels().sum_up(key.contiguous(), value.contiguous(), mask.contiguous(), *made)
        return made

    @summed_backward.register_kernel("cuda")
    def _(grad_sums: Tensor, grad_weights: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        made = _new(key), _new(value)
        given = (grad_sums, grad_weights, key, value, mask)
        _kernels().sum_up_backward(*(x.contiguous() for x in given), *made)
        return made

    @read.register_kernel("cuda")
    def _(query: Tensor, sums: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        made = _made_of_queries(query, sums)
        _kernels().read(*(x.contiguous() for x in (query, sums, weights)), *made, plain.TINY)
        return made

    @read_backward.register_kernel("cuda")
    def _(
        gradient: Tensor, query: Tensor, sums: Tensor, weights: Tensor, out: Tensor, normaliser: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        made = _new(query), _new(sums), _new(weights)
        to_normaliser, inverse = _of_normaliser(gradient, out, normaliser)
        given = (gradient, to_normaliser, inverse, query, sums, weights)
        _kernels().read_backward(*(x.contiguous() for x in given), *made)
        return made
