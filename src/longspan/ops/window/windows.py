"""Keys of the windows of a sequence, and gradients of keys from those of windows."""

from typing import NamedTuple

import torch
from torch import Tensor

from longspan.ops.chunks import windows_at
from longspan.ops.execution import exporting

# Slices of rows, heads and blocks: the windows of one portion.
At = tuple[slice, slice, slice]


class Sliding(NamedTuple):
    """`number` windows of `width` keys, one at every `step` keys."""

    width: int
    step: int
    number: int

    @property
    def banded(self) -> bool:
        """Whether query i of a block sees keys i to i + width - step of its window only."""
        return True

    def open(self, x: Tensor) -> Tensor:
        """Return keys or values (b, h, p, e) in the form that `take` takes windows from."""
        return x.unfold(2, self.width, self.step).mT

    def take(self, opened: Tensor, at: At) -> Tensor:
        """Return the windows of a portion, (windows, width, e)."""
        return opened[at].flatten(0, 2)

    def room(self, opened: Tensor) -> Tensor:
        """Return zeros to which `fold` adds gradients."""
        b, h, n, width, e = opened.shape
        return opened.new_zeros(b, h, n - 1 + -(-width // self.step), self.step, e)

    def fold(self, grad: Tensor, part: Tensor, at: At) -> None:
        """Add gradients of windows to those of the keys they share."""
        rows, heads, blocks = at
        part = part.unflatten(0, [side.stop - side.start for side in at])
        for i, start in enumerate(range(0, self.width, self.step)):
            piece = part[:, :, :, start : start + self.step]
            grad[rows, heads, blocks.start + i : blocks.stop + i, : piece.shape[3]] += piece

    def close(self, grad: Tensor, like: Tensor) -> Tensor:
        """Return the gradient in the form of the keys."""
        return grad.flatten(2, 3)[:, :, : like.shape[2]]


class Chosen(NamedTuple):
    """Windows put together from blocks of `size` keys, which `blocks` (b, h, n, s) numbers across rows and heads."""

    blocks: Tensor
    size: int

    @property
    def banded(self) -> bool:
        return False

    def open(self, x: Tensor) -> Tensor:
        return x.reshape(-1, self.size * x.shape[3])

    def take(self, opened: Tensor, at: At) -> Tensor:
        blocks = self.blocks[at]
        windows = opened.index_select(0, blocks.flatten())
        return windows.view(-1, blocks.shape[3] * self.size, opened.shape[1] // self.size)

    def room(self, opened: Tensor) -> Tensor:
        return torch.zeros_like(opened)

    def fold(self, grad: Tensor, part: Tensor, at: At) -> None:
        grad.index_add_(0, self.blocks[at].flatten(), part.reshape(-1, grad.shape[1]))

    def close(self, grad: Tensor, like: Tensor) -> Tensor:
        return grad.view(like.shape)


# Functions, as compilers do not follow methods of tuples.


def visible_keys(source: Sliding | Chosen, visible: Tensor, query: Tensor) -> Tensor:
    """Keys of a window that each query (b, h, n, q, e) may see, (b or 1, h or 1, n, q or 1, k)."""
    if isinstance(source, Chosen):
        return visible.unsqueeze(3)
    block = query.shape[3]
    band = torch.ones(block, source.width, dtype=torch.bool, device=visible.device)
    return visible.unsqueeze(3) & band.triu() & band.tril(source.width - block)


def windows(source: Sliding | Chosen, x: Tensor) -> Tensor:
    """Return all windows of keys or values (b, h, p, e), as (b, h, n, k, e)."""
    if isinstance(source, Chosen):
        blocks = x.reshape(-1, source.size * x.shape[3])[source.blocks]
        return blocks.unflatten(4, (source.size, -1)).flatten(3, 4)
    return cut(x, 2, source)


def cut(x: Tensor, dim: int, source: Sliding) -> Tensor:
    """Return windows of dimension `dim`, (..., number, width, ...)."""
    if not exporting():
        return x.unfold(dim, source.width, source.step).movedim(-1, dim + 1)
    # Other runtimes have no views of windows that overlap.
    return x[(slice(None),) * dim + (windows_at(source.number, source.width, source.step, x.device),)]
