"""Rotary positions in mixers of queries and keys: their option, and the count of positions that their states keep."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from longspan.errors import UserError
from longspan.ops import slices
from longspan.ops.counts import present
from longspan.ops.rotary import real_numbers


class Numbered(NamedTuple):
    """A state, and the number of real positions that each row has `seen`, (b,) int64, from which numbers go on."""

    seen: Tensor
    state: Any


def check_rotary(mixer: str, rotary: bool, width: int) -> None:
    """Raise UserError if heads of this width have no pairs of channels to rotate."""
    if rotary and width % 2:
        raise UserError(
            f"{mixer} expected heads of an even width with rotary=True, got {width}; change dim or heads, or leave "
            "rotary out."
        )


def nothing_seen(state: Any, batch_size: int, device: torch.device) -> Numbered:
    """Return the empty `state` of rows that have seen nothing."""
    return Numbered(torch.zeros(batch_size, dtype=torch.long, device=device), state)


def continued(
    step: Callable[[Tensor, Tensor | None, Any, Int[Tensor, "b n"] | None], tuple[Tensor, Any]],
    x: Tensor,
    mask: Shaped[Tensor, "b n"] | None,
    state: Any,
) -> tuple[Tensor, Any]:
    """Return `step(x, mask, state, numbers)` for x (b, n, d), and count on where the state is `Numbered`.

    States of other kinds have no numbers: `step` gets None.
    """
    if not isinstance(state, Numbered):
        return step(x, mask, state, None)
    count = x.shape[1] if mask is None else present(mask).sum(1)
    seen = slices.seen_before(state.seen, count)
    y, after = step(x, mask, state.state, real_numbers(x, mask, seen))
    return y, Numbered(seen + count, after)
