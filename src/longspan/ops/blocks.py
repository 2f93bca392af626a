"""Long sequences in blocks, so that intermediate results stay in a processor's cache.

The system maps a tensor of 64 MiB each time one is created, and it leaves every cache before it is read again.
The intermediate results of a block are small, and are recomputed in the backward pass instead of being saved.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longspan.ops import slices
from longspan.ops.execution import by_hand, on_cpu

Result = TypeVar("Result")
State = TypeVar("State")
# The C library does not reuse the memory of tensors larger than this, in bytes, but requests it from the system each
# time, page by page. Below this size, recomputing costs more than it saves: up to a fifth of the time.
LARGE = 1 << 25
# Size in bytes of a block of such a tensor.
BLOCK = 1 << 22


def block_by_block(
    function: Callable[..., Result], dim: int, *tensors: Tensor | None, widening: int = 1
) -> list[Result]:
    """Return `function` of each block of positions, which are dimension `dim` of all `tensors`; None stays None.

    One call receives all positions where blocks bring no gain. That is if no tensor is LARGE, on other devices than a
    CPU, and if no op runs by hand (`ops.execution`). `widening` is the ratio of the size of the tensors that `function`
    computes to that of the largest of `tensors`.
    """
    positions = _per_block(tensors, dim, widening)
    if not positions:
        return [function(*tensors)]
    return [_remade(function, *part) for part in _cut(tensors, dim, positions)]


def carried_through_blocks(
    function: Callable[..., tuple[Tensor, State]], dim: int, state: State, *tensors: Tensor | None, widening: int = 1
) -> tuple[Tensor, State]:
    """Return the result of `function(state, *tensors)` on all positions, an output and the state after the last one.

    Each block of `block_by_block` receives the state after the previous one.
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
    """Return the number of positions in a block, or 0 for all."""
    if not by_hand():
        return 0
    largest = max((tensor for tensor in tensors if tensor is not None), key=lambda tensor: tensor.nbytes)
    cut = slices.current()
    # Slices are in blocks where the whole rows would be: they are there to save memory.
    if largest.nbytes * widening * (1 if cut is None else cut.count) <= LARGE or not on_cpu(largest):
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
