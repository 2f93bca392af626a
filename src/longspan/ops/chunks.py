"""Positions cut into chunks of one size, and put together again."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.ops.execution import exporting


def in_chunks(x: Tensor, dim: int, size: int, fill: float = 0.0) -> Tensor:
    """Return (..., t, ...) as (..., n, size, ...), the last chunk filled up.

    In an exported program there is one chunk more: one alone would be a case of its own. Nothing is reshaped there, as
    torch.export does not see that a number rounded up to a multiple can be divided.
    """
    t = x.shape[dim]
    number = chunks(t, size)
    if exporting() or t % size:
        x = pad(x, (*(0, 0) * (x.ndim - 1 - dim), 0, number * size - t), value=fill)
    return split(x, dim, number, size)


def chunks(t: int, size: int) -> int:
    """Number of chunks that `in_chunks` makes."""
    return t // size + 2 if exporting() else -(-t // size)


def split(x: Tensor, dim: int, number: int, size: int) -> Tensor:
    """Return (..., number·size, ...) as (..., number, size, ...)."""
    if not exporting():
        return x.unflatten(dim, (number, size))
    return x[(slice(None),) * dim + (windows_at(number, size, size, x.device),)]


def whole(x: Tensor, dim: int, t: int) -> Tensor:
    """Return chunks (..., n, size, ...), the first of these dimensions being `dim`, as the first t positions."""
    if not exporting():
        return x.flatten(dim, dim + 1).narrow(dim, 0, t)
    position = torch.arange(t, device=x.device)
    size = x.shape[dim + 1]
    return x[(slice(None),) * dim + (position // size, position % size)]


def first_of(x: Tensor, dim: int, t: int) -> Tensor:
    """Return the first t positions, of which there are at least t: torch.export does not see that either."""
    return x.index_select(dim, torch.arange(t, device=x.device)) if exporting() else x.narrow(dim, 0, t)


def windows_at(number: int, width: int, step: int, device: torch.device) -> Tensor:
    """Return the positions (number, width) of windows at every `step` positions."""
    return torch.arange(number, device=device).unsqueeze(1) * step + torch.arange(width, device=device)
