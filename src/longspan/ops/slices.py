"""Rows cut into contiguous slices, each read by a process of its own.

An operation that reads across positions needs little of the other slices: the state that all earlier ones leave, a sum
over all, or a few neighbours. `entered` says that rows are slices now. An operation then gives what its slice sums up
to, and gets the state before it by `state_before`, the state after all by `state_of_all`, or neighbours by `halo`.
Without slices these return what they were given. So a mixer needs one call for each round of exchange.

All slices must call the same of these in the same order, forward and backward, and outside of checkpoints, which
would call them again.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

State = TypeVar("State")
Part = TypeVar("Part")


class Slices(ABC):
    """One of the slices that rows are cut into, and its exchange with the others.

    Attributes:
        number: which slice it is, from 0 in the order of positions.
        count: number of slices.
    """

    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count

    @abstractmethod
    def gather(self, part: Part) -> list[Part]:
        """Parts of all slices, in order: tensors in tuples, of the same shapes (b, ...) in all. Differentiable."""

    @abstractmethod
    def halo(self, x: Tensor, left: int, right: int) -> Tensor:
        """Return x (b, t, ...) between the `left` positions before it and the `right` after it; zeros beyond the ends.

        Differentiable. Neighbours may reach over slices that are shorter.
        """

    def before(
        self, state: State, parts: list[Part], extend: Callable[[State, Part], State], *, backwards: bool = False
    ) -> State:
        """Return the state that the slices before this one leave; with `backwards`, those after it, the last first."""
        others = range(self.count - 1, self.number, -1) if backwards else range(self.number)
        if not others:
            # Its backward pass takes part in the exchange as well: the others wait for it.
            never = torch.zeros((), dtype=torch.bool)
            extended = extend(state, parts[self.number])
            return tree_map(lambda old, new: torch.where(never.to(old.device), new, old), state, extended)
        for number in others:
            state = extend(state, parts[number])
        return state

    def before_heads(
        self, state: Tensor, parts: list[Part], extend: Callable[[Tensor, Part], Tensor], backwards: int
    ) -> Tensor:
        """Return the state (b, h, ...) of heads of which the last `backwards` read from the end."""
        forward = self.before(state, parts, extend)
        if not backwards:
            return forward
        ahead = state.shape[1] - backwards
        return torch.cat((forward[:, :ahead], self.before(state, parts, extend, backwards=True)[:, ahead:]), 1)


# Of the whole process, as backward passes on GPUs have threads of their own.
_current: Slices | None = None


def current() -> Slices | None:
    """Slices that rows are cut into now; None for whole rows."""
    return _current


@contextlib.contextmanager
def entered(slices: Slices | None) -> Iterator[None]:
    """Let all rows in the `with` block, backward passes included, be slices; None for whole rows."""
    global _current
    before, _current = _current, slices
    try:
        yield
    finally:
        _current = before


def state_before(
    state: State,
    part: Callable[[], Part],
    extend: Callable[[State, Part], State],
    *,
    backwards: bool = False,
) -> State:
    """Return the state before this slice, `state` being that before the first one.

    Args:
        state: tensors in a tuple, equal in all slices.
        part: computes what this slice sums up to.
        extend: the state after a slice, given the state before it and what the slice sums up to.
        backwards: whether slices are read from the last to the first.
    """
    slices = current()
    return state if slices is None else slices.before(state, slices.gather(part()), extend, backwards=backwards)


def state_of_all(part: Part, merge: Callable[[Part, Part], Part]) -> Part:
    """Sum of all slices, (b, ...) tensors as in `part`, given that of this slice; `merge` adds two of them."""
    slices = current()
    if slices is None:
        return part
    first, *others = slices.gather(part)
    for other in others:
        first = merge(first, other)
    return first


def halo(x: Tensor, left: int, right: int) -> tuple[Tensor, Tensor]:
    """Return the `left` positions before this slice and the `right` after it, zeros beyond the ends and without slices.

    Like x, which is (b, t, ...).
    """
    slices = current()
    if slices is None:
        return x.new_zeros(x.shape[0], left, *x.shape[2:]), x.new_zeros(x.shape[0], right, *x.shape[2:])
    seen = slices.halo(x, left, right)
    return seen[:, :left], seen[:, seen.shape[1] - right :]


def seen_before(seen: Tensor, count: int | Tensor) -> Tensor:
    """Return the number of positions before this slice, (b,), given those before the first one and in this one."""
    return state_before(seen, lambda: torch.zeros_like(seen) + count, torch.add)


def packed(part: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Return the tensors of a part as one (n,), and what turns such a tensor into a part again."""
    leaves, structure = tree_flatten(part)
    dtype = leaves[0].dtype
    for leaf in leaves:
        dtype = torch.promote_types(dtype, leaf.dtype)

    def unpacked(flat: Tensor) -> Any:
        pieces = flat.split([leaf.numel() for leaf in leaves])
        return tree_unflatten(
            [piece.view(leaf.shape).to(leaf.dtype) for piece, leaf in zip(pieces, leaves, strict=True)], structure
        )

    return torch.cat([leaf.to(dtype).flatten() for leaf in leaves]), unpacked
