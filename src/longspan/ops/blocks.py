"""Long sequences in blocks, so that what is made on the way to a result stays in a processor's cache.

A tensor of 64 MiB is mapped by the system each time one is made, and leaves every cache before it is read again.
What a block makes is small, and it is made again in the backward pass instead of being kept.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longspan.ops.execution import by_hand, on_cpu

Result = TypeVar("Result")
State = TypeVar("State")
# Larger tensors, in bytes, are not kept by the C library but taken from the system each time, page by page. Up to
# there, what is made twice costs more than it saves: up to a fifth of the time.
LARGE = 1 << 25
# Bytes that a block of such a tensor takes.
BLOCK = 1 << 22


def block_by_block(
    function: Callable[..., Result], dim: int, *tensors: Tensor | None, widening: int = 1
) -> list[Result]:
    """Return `function` of each block of positions, which are dimension `dim` of all `tensors`; None stays None.

    One call receives all positions where there is nothing to gain: where no tensor is LARGE, on other devices than a
    CPU, and where no op runs by hand (`ops.execution`). `widening` says how many times as large as the
    largest of `tensors` are those that `function` makes of them.
    """
    positions = _per_block(tensors, dim, widening)
    if not positions:
        return [function(*tensors)]
    return [_remade(function, *part) for part in _cut(tensors, dim, positions)]


def carried_through_blocks(
    function: Callable[..., tuple[Tensor, State]], dim: int, state: State, *tensors: Tensor | None, widening: int = 1
) -> tuple[Tensor, State]:
    """Return what `function(state, *tensors)` would of all positions, an output and the state after the last of them.

    Each block of `block_by_block` receives the state that the one before it has left.
    """
    positions = _per_block(tensors, dim, widening)
    if not positions:
        return function(state, *tensors)
    outs = []
    for part in _cut(tensors, dim, positions):
        out, state = _remade(function, state, *part)
        outs.append(out)
    return torch.cat(outs, dim), state


def _per_block(tensors: tuple[Tensor | None, ...], dim: int, widening: int) -> int:
    """Return how many positions make a block, or 0 for all."""
    if not by_hand():
        return 0
    largest = max((tensor for tensor in tensors if tensor is not None), key=lambda tensor: tensor.nbytes)
    if largest.nbytes * widening <= LARGE or not on_cpu(largest):
        return 0
    return max(1, BLOCK * largest.shape[dim] // largest.nbytes)


def _cut(tensors: tuple[Tensor | None, ...], dim: int, positions: int) -> Iterator[tuple[Tensor | None, ...]]:
    # Views of one split, not slices: the gradient of each slice would be as long as what it was cut from.
    cuts = [tensor.split(positions, dim) for tensor in tensors if tensor is not None]
    for parts in zip(*cuts, strict=True):
        left = iter(parts)
        yield tuple(None if tensor is None else next(left) for tensor in tensors)


def _remade(function: Callable[..., Result], *arguments: Any) -> Result:
    if not torch.is_grad_enabled():
        return function(*arguments)
    result: Result = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return result
