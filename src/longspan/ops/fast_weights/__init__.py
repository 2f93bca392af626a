"""A matrix per head that decays, is written with keys and values, and is read with queries.

`plain` computes it in chunks of plain operations, for every device; `numba` as compiled loops for a CPU and `triton` as
kernels for a GPU.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.ops.execution import accumulation_dtype, exporting, has_kernels, on_cpu, transformed
from longspan.ops.fast_weights import plain
from longspan.ops.operators import empty, operator

# Keys up to this width have kernels on a GPU, which hold whole columns of a matrix in registers.
WIDEST = 128


def fast_weights(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor | None, rates: Tensor, state: Tensor, *, backwards: int
) -> tuple[Tensor, Tensor]:
    """The result of `ops.delta.gated_delta_rule`; without a strength, `ops.gated_linear.gated_linear_attention`."""
    t = value.shape[2]
    if t == 0:
        return value, state
    dtype = accumulation_dtype(query.dtype)
    tensors: list[Any] = [None if x is None else x.to(dtype) for x in (query, key, value, strength, rates, state)]
    compiled = on_cpu(query) or (has_kernels(query) and query.shape[3] <= WIDEST)
    # For a step of a stream, neither loops nor kernels would pay off.
    plainly = exporting() or t == 1 or not compiled or transformed()
    with torch.autocast(query.device.type, enabled=False):
        out, state = (plain.fast_weights if plainly else _by_operator)(*tensors, backwards=backwards)
    return out.to(value.dtype), state


def _by_operator(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor | None, rates: Tensor, state: Tensor, *, backwards: int
) -> tuple[Tensor, Tensor]:
    strength = query.new_empty(query.shape[0], query.shape[1], 0) if strength is None else strength
    tensors = (query, key, value, strength, rates)
    saves = torch.is_grad_enabled() and any(x.requires_grad for x in (*tensors, state))
    out, last, _ = fast_weights_operator(*(x.transpose(1, 2) for x in tensors), state, backwards, saves)
    return out.transpose(1, 2), last


def chunk_size(query: Tensor, rates: Tensor) -> int:
    """Number of positions of a head for which the forward pass saves one matrix.

    More take less memory until the backward pass, which recomputes the matrices of a chunk, and a larger buffer in it.
    """
    return plain.CHUNK if on_cpu(query) else plain.gpu_chunk(query, rates)


def _empty_borders(query: Tensor, rates: Tensor, state: Tensor, saves: bool) -> Tensor:
    chunks = -(-query.shape[1] // chunk_size(query, rates)) if saves else 0
    return state.new_empty(query.shape[0], chunks, *state.shape[1:])


def _plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    rates: Tensor,
    state: Tensor,
    backwards: int,
    saves: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, beta, f = (x.transpose(1, 2) for x in (query, key, value, strength, rates))
    out, last = plain.fast_weights(q, k, v, beta if beta.shape[2] else None, f, state, backwards=backwards)
    return out.transpose(1, 2), last, _empty_borders(query, rates, state, saves)


def _flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], strength: Sequence[int], *_: Any) -> int:
    """The matrix is written and read, and by the delta rule read for each key too."""
    b, t, h, e = query
    return 2 * b * t * h * e * value[3] * (3 if strength[1] else 2)


@operator("longspan::fast_weights", _plain, loops="forward", kernels="forward", flops=_flops)
def fast_weights_operator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    rates: Tensor,
    state: Tensor,
    backwards: int,
    saves: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of queries (b, t, h, v), the last matrices, and those before each chunk, if anything `saves` them.

    Queries, keys, values and rates are (b, t, h, ...). Without a strength (b, t, h) it has no positions.
    """
    return empty(value), empty(state), _empty_borders(query, rates, state, saves)


@fast_weights_operator.gradient(("out", "last", "borders"), loops="backward", kernels="backward")
def fast_weights_gradient(
    grad_out: Tensor,
    grad_last: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    rates: Tensor,
    state: Tensor,
    borders: Tensor,
    backwards: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return empty(query), empty(key), empty(value), empty(strength), empty(rates), empty(state)
