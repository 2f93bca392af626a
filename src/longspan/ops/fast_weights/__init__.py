"""A matrix per head that decays, is written with keys and values, and is read with queries.

`plain` computes it in chunks of plain operations, for every device; `numba` as compiled loops for a CPU and `fla` by
another library's kernels for a GPU.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.ops.execution import accumulation_dtype, exporting, on_cpu, transformed
from longspan.ops.fast_weights import fla, plain
from longspan.ops.operators import empty, operator


def fast_weights(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor | None, rates: Tensor, state: Tensor, *, backwards: int
) -> tuple[Tensor, Tensor]:
    """The result of `ops.delta.gated_delta_rule`; without a strength, `ops.gated_linear.gated_linear_attention`."""
    t = value.shape[2]
    if t == 0:
        return value, state
    dtype = accumulation_dtype(query.dtype)
    # For a step of a stream, neither loops nor kernels would pay off.
    plainly = exporting() or t == 1 or transformed()
    with torch.autocast(query.device.type, enabled=False):
        found = None
        if not plainly and fla.has_kernels(query):
            found = fla.fast_weights(query, key, value, strength, rates, state, backwards=backwards)
        if found is None:
            tensors: list[Any] = [
                None if x is None else x.to(dtype) for x in (query, key, value, strength, rates, state)
            ]
            compute = _by_operator if on_cpu(query) and not plainly else plain.fast_weights
            found = compute(*tensors, backwards=backwards)
    return found[0].to(value.dtype), found[1]


def _by_operator(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor | None, rates: Tensor, state: Tensor, *, backwards: int
) -> tuple[Tensor, Tensor]:
    strength = query.new_empty(query.shape[0], query.shape[1], 0) if strength is None else strength
    tensors = (query, key, value, strength, rates)
    saves = torch.is_grad_enabled() and any(x.requires_grad for x in (*tensors, state))
    out, last, _ = fast_weights_operator(*(x.transpose(1, 2) for x in tensors), state, backwards, saves)
    return out.transpose(1, 2), last


def _empty_borders(query: Tensor, state: Tensor, saves: bool) -> Tensor:
    """One matrix of each chunk: longer chunks take less memory until the backward pass, and a larger buffer in it."""
    chunks = -(-query.shape[1] // plain.CHUNK) if saves else 0
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
    return out.transpose(1, 2), last, _empty_borders(query, state, saves)


def _flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], strength: Sequence[int], *_: Any) -> int:
    """The matrix is written and read, and by the delta rule read for each key too."""
    b, t, h, e = query
    return 2 * b * t * h * e * value[3] * (3 if strength[1] else 2)


@operator("longspan::fast_weights", _plain, loops="forward", flops=_flops)
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
    return empty(value), empty(state), _empty_borders(query, state, saves)


@fast_weights_operator.gradient(("out", "last", "borders"), loops="backward")
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
