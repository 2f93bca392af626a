"""A matrix per head as a PyTorch operator: torch.compile sees it as such. A CPU has compiled loops; a GPU has kernels
where Triton is installed."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.utils.flop_counter import register_flop_formula

from longspan.ops.execution import TRITON, differentiated_further, on_cpu, plain_gradients
from longspan.ops.fast_weights import plain
from longspan.ops.fast_weights.plain import CHUNK

Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
# Positions of a head for which the forward pass saves one matrix. More take less memory until the backward pass, which
# computes the matrices of a chunk again, and a larger buffer in it.
# The same of the kernels for a GPU: the positions of their products. Fewer where keys are wide, as registers are few,
# or have a rate per channel, as products of all channels with all positions are formed.
GPU_CHUNK, GPU_SHORT_CHUNK, WIDE = 32, 16, 64


def fast_weights(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor | None, rates: Tensor, state: Tensor, *, backwards: int
) -> tuple[Tensor, Tensor]:
    """Return `ops.fast_weights.fast_weights` of tensors (b, h, t, ...) in one type."""
    strength = query.new_empty(query.shape[0], query.shape[1], 0) if strength is None else strength
    tensors = (query, key, value, strength, rates)
    saves = torch.is_grad_enabled() and any(x.requires_grad for x in (*tensors, state))
    out, last, _ = looped(*(x.transpose(1, 2) for x in tensors), state, backwards, saves)
    return out.transpose(1, 2), last


@custom_op("longspan::fast_weights", mutates_args=(), device_types="cpu")
def looped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    rates: Tensor,
    state: Tensor,
    backwards: int,
    saves: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what is read (b, t, h, v), the last matrices, and those before each chunk, if anything `saves` them.

    Queries, keys, values and rates are (b, t, h, ...). Without a strength (b, t, h) it has no positions.
    """
    made = _made(query, value, state, CHUNK if saves else 0)
    given = _arrays(query, key, value, strength, _kept(rates), state, *made)
    _loops().forward(*given, backwards, torch.get_num_threads())
    return made


@custom_op("longspan::fast_weights_backward", mutates_args=(), device_types="cpu")
def looped_backward(
    grad_out: Tensor,
    grad_last: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    rates: Tensor,
    borders: Tensor,
    backwards: int,
) -> Gradients:
    made = _gradients_of(query, key, value, strength, rates, grad_last)
    given = _arrays(grad_out, grad_last, query, key, value, strength, _kept(rates), borders, *made)
    _loops().backward(*given, backwards, torch.get_num_threads())
    return made


def _made(query: Tensor, value: Tensor, state: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return new tensors; a matrix is saved for every `chunk` positions, or none for 0."""
    b, t, h, _ = query.shape
    borders = state.new_empty(b, -(-t // chunk) if chunk else 0, h, *state.shape[2:])
    return _new(value), _new(state), borders


def _gradients_of(*tensors: Tensor) -> Any:
    return tuple(_new(tensor) for tensor in tensors)


def _new(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _kept(rates: Tensor) -> Tensor:
    return rates.neg().exp_()


def _gpu_chunk(query: Tensor, rates: Tensor) -> int:
    return GPU_SHORT_CHUNK if rates.ndim == 4 or query.shape[3] > WIDE else GPU_CHUNK


@looped.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    rates: Tensor,
    state: Tensor,
    backwards: int,
    saves: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    chunk = CHUNK if on_cpu(query) else _gpu_chunk(query, rates)
    return _made(query, value, state, chunk if saves else 0)


@looped_backward.register_fake
def _(
    grad_out: Tensor,
    grad_last: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    rates: Tensor,
    borders: Tensor,
    backwards: int,
) -> Gradients:
    made: Gradients = _gradients_of(query, key, value, strength, rates, grad_last)
    return made


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.backwards, _ = inputs
    ctx.save_for_backward(*tensors, output[2])


def _gradients(ctx: Any, grad_out: Tensor, grad_last: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, borders = ctx.saved_tensors
    if differentiated_further():

        def plainly(*tensors: Tensor) -> tuple[Tensor, Tensor]:
            *sequences, state = tensors
            query, key, value, strength, rates = (x.transpose(1, 2) for x in sequences)
            given = strength if strength.shape[2] else None
            out, last = plain.fast_weights(query, key, value, given, rates, state, backwards=ctx.backwards)
            return out.transpose(1, 2), last

        return *plain_gradients(plainly, inputs, (grad_out, grad_last)), None, None
    query, key, value, strength, rates, _ = inputs
    found = looped_backward(grad_out, grad_last, query, key, value, strength, rates, borders, ctx.backwards)
    return *found, None, None


# The matrices before each chunk are for the backward pass alone: they need no gradient of their own.
looped.register_autograd(_gradients, setup_context=_save)


@register_flop_formula(torch.ops.longspan.fast_weights)
def _(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], strength: Sequence[int], *_: Any, **__: Any
) -> int:
    """The matrix is written and read, and by the delta rule read for each key too."""
    b, t, h, e = query
    return 2 * b * t * h * e * value[3] * (3 if strength[1] else 2)


def _loops() -> ModuleType:
    # Numba is slow to import: the first call waits for it, and nothing else does.
    from longspan.ops.fast_weights import numba

    return numba


def _kernels() -> ModuleType:
    # As slow.
    from longspan.ops.fast_weights import triton

    return triton


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.contiguous().numpy() for tensor in tensors]


if TRITON:

    @looped.register_kernel("cuda")
    def _(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        strength: Tensor,
        rates: Tensor,
        state: Tensor,
        backwards: int,
        saves: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        chunk = _gpu_chunk(query, rates)
        made = _made(query, value, state, chunk if saves else 0)
        given = (x.contiguous() for x in (query, key, value, strength, rates, state))
        _kernels().forward(*given, *made, backwards, chunk)
        return made

    @looped_backward.register_kernel("cuda")
    def _(
        grad_out: Tensor,
        grad_last: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        strength: Tensor,
        rates: Tensor,
        borders: Tensor,
        backwards: int,
    ) -> Gradients:
        made: Gradients = _gradients_of(query, key, value, strength, rates, grad_last)
        given = (x.contiguous() for x in (grad_out, grad_last, query, key, value, strength, rates, borders))
        _kernels().backward(*given, *made, backwards, _gpu_chunk(query, rates))
        return made
