"""Vectors scaled to a length as a PyTorch operator of a CPU: torch.compile sees it as such."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from longspan.ops.execution import differentiated_further, plain_gradients
from longspan.ops.normalised import plain


@custom_op("longspan::normalised", mutates_args=(), device_types="cpu")
def normalised(x: Tensor, length: float, epsilon: float) -> Tensor:
    made = _new(x)
    _loops().forward(*_rows(x, made), length, epsilon, torch.get_num_threads())
    return made


@custom_op("longspan::normalised_backward", mutates_args=(), device_types="cpu")
def normalised_backward(gradient: Tensor, x: Tensor, length: float, epsilon: float) -> Tensor:
    made = _new(x)
    _loops().backward(*_rows(gradient, x, made), length, epsilon, torch.get_num_threads())
    return made


def _new(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@normalised.register_fake
def _(x: Tensor, length: float, epsilon: float) -> Tensor:
    return _new(x)


@normalised_backward.register_fake
def _(gradient: Tensor, x: Tensor, length: float, epsilon: float) -> Tensor:
    return _new(x)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *ctx.options = inputs
    ctx.save_for_backward(x)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
    (x,) = ctx.saved_tensors
    if differentiated_further():
        return plain_gradients(lambda x: plain.normalised(x, *ctx.options), (x,), (gradient,))[0], None, None
    return normalised_backward(gradient, x, *ctx.options), None, None


normalised.register_autograd(_gradients, setup_context=_save)


def _loops() -> ModuleType:
    # Numba is slow to import: the first call waits for it, and nothing else does.
    from longspan.ops.normalised import numba

    return numba


def _rows(*tensors: Tensor) -> list[Any]:
    return [tensor.contiguous().numpy().reshape(-1, tensor.shape[-1]) for tensor in tensors]
