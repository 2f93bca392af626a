"""Attention over edges and their order as PyTorch operators: torch.compile sees them as such.

The kernel of every device is the plain one. A CPU has compiled loops where Numba is installed.
"""

import importlib.util
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from longspan.ops.edges import plain
from longspan.ops.execution import differentiated_further, plain_gradients

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


@custom_op("longspan::edge_attention", mutates_args=())
def edge_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    source: Tensor,
    target: Tensor,
    keep: Tensor,
    bias: Tensor,
    factor: Tensor,
) -> tuple[Tensor, Tensor]:
    return plain.edge_attention(query, key, value, source, target, keep, bias, factor)


@custom_op("longspan::edge_attention_backward", mutates_args=())
def edge_attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    source: Tensor,
    target: Tensor,
    bias: Tensor,
    factor: Tensor,
    out: Tensor,
    weights: Tensor,
) -> Gradients:
    return plain.edge_attention_backward(gradient, query, key, value, source, target, bias, factor, out, weights)


@custom_op("longspan::by_target", mutates_args=())
def by_target(source: Tensor, target: Tensor, sources: int, targets: int) -> Tensor:
    return plain.by_target(source, target, sources, targets)


def _new(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _made(query: Tensor, value: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    heads = query.shape[1]
    return value.new_zeros(query.shape[0], heads, value.shape[2]), query.new_empty(source.shape[0], heads)


@edge_attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    source: Tensor,
    target: Tensor,
    keep: Tensor,
    bias: Tensor,
    factor: Tensor,
) -> tuple[Tensor, Tensor]:
    return _made(query, value, source)


@edge_attention_backward.register_fake
def _(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    source: Tensor,
    target: Tensor,
    bias: Tensor,
    factor: Tensor,
    out: Tensor,
    weights: Tensor,
) -> Gradients:
    return _new(query), _new(key), _new(value), _new(bias)


@by_target.register_fake
def _(source: Tensor, target: Tensor, sources: int, targets: int) -> Tensor:
    return _new(source)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _gradients(ctx: Any, gradient: Tensor, to_weights: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, out, weights = ctx.saved_tensors
    if differentiated_further():
        return plain_gradients(lambda *given: plain.edge_attention(*given)[0], inputs, (gradient,))
    query, key, value, source, target, _, bias, factor = inputs
    to_query, to_key, to_value, to_bias = edge_attention_backward(
        gradient, query, key, value, source, target, bias, factor, out, weights
    )
    return to_query, to_key, to_value, None, None, None, to_bias, None


# The weights are for the backward pass alone: nothing else gets them, so that they need no gradient of their own.
edge_attention.register_autograd(_gradients, setup_context=_save)


def _loops() -> ModuleType:
    # Numba is slow to import: the first call waits for it, and nothing else does.
    from longspan.ops.edges import numba

    return numba


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.contiguous().numpy() for tensor in tensors]


if importlib.util.find_spec("numba") is not None:

    @edge_attention.register_kernel("cpu")
    def _(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        source: Tensor,
        target: Tensor,
        keep: Tensor,
        bias: Tensor,
        factor: Tensor,
    ) -> tuple[Tensor, Tensor]:
        made = _made(query, value, source)
        given = _arrays(query, key, value, source, target, keep, bias, factor, *made)
        _loops().forward(*given, torch.get_num_threads())
        return made

    @edge_attention_backward.register_kernel("cpu")
    def _(
        gradient: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        source: Tensor,
        target: Tensor,
        bias: Tensor,
        factor: Tensor,
        out: Tensor,
        weights: Tensor,
    ) -> Gradients:
        query, key, value, bias = (tensor.contiguous() for tensor in (query, key, value, bias))
        made = (torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value), torch.zeros_like(bias))
        given = _arrays(gradient, query, key, value, source, target, factor, out, weights, *made)
        _loops().backward(*given, torch.get_num_threads())
        return made

    @by_target.register_kernel("cpu")
    def _(source: Tensor, target: Tensor, sources: int, targets: int) -> Tensor:
        order = _new(source)
        given = _arrays(source, target)
        _loops().by_target(*given, sources, targets, order.numpy())
        return order
