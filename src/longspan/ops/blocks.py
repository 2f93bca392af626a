"""Long sequences in blocks, so that what is made on the way to a result stays in a processor's cache.

A tensor of 64 MiB is mapped anew by the system each time one is made, page by page, and leaves every cache before it is
read again. What a block makes is small, and it is made again in the backward pass instead of being kept.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Result = TypeVar("Result")
State = TypeVar("State")
# Positions per block: at 256 features a float32 tensor of one row takes 2 MiB.
BLOCK = 2048


def block_by_block(function: Callable[..., Result], dim: int, *tensors: Tensor | None) -> list[Result]:
    """Return `function` of each block of BLOCK positions, which are dimension `dim` of all `tensors`; None stays None.

    One call receives all positions where there is no cache to spare: up to BLOCK of them, on other devices than a CPU,
    and under torch.compile, which joins operations in its own way.
    """
    if not _worth_cutting(tensors, dim):
        return [function(*tensors)]
    return [_remade(function, *part) for part in _cut(tensors, dim)]


def carried_through_blocks(
    function: Callable[..., tuple[Tensor, State]], dim: int, state: State, *tensors: Tensor | None
) -> tuple[Tensor, State]:
    """Return what `function(state, *tensors)` would of all positions, an output and the state after the last of them.

    Each block of `block_by_block` receives the state that the one before it has left.
    """
    if not _worth_cutting(tensors, dim):
        return function(state, *tensors)
    outs = []
    for part in _cut(tensors, dim):
        out, state = _remade(function, state, *part)
        outs.append(out)
    return torch.cat(outs, dim), state


def _worth_cutting(tensors: tuple[Tensor | None, ...], dim: int) -> bool:
    first = next(tensor for tensor in tensors if tensor is not None)
    return first.shape[dim] > BLOCK and first.device.type == "cpu" and not torch.compiler.is_compiling()


def _cut(tensors: tuple[Tensor | None, ...], dim: int) -> Iterator[tuple[Tensor | None, ...]]:
    # Views of one split, not slices: the gradient of each slice would be as long as what it was cut from.
    cuts = [tensor.split(BLOCK, dim) for tensor in tensors if tensor is not None]
    for parts in zip(*cuts, strict=True):
        left = iter(parts)
        yield tuple(None if tensor is None else next(left) for tensor in tensors)


def _remade(function: Callable[..., Result], *arguments: Any) -> Result:
    if not torch.is_grad_enabled():
        return function(*arguments)
    result: Result = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return result
