"""Shared part of the naive forms: softmax attention of one query, and forgetting, written out."""

import torch
from torch import Tensor

from longspan.mixers._forgetting import Forgetting


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    steps: Tensor | None = None,
    *,
    rotary: bool = False,
    alibi: bool = False,
) -> Tensor:
    """Softmax attention of a query (d,) over keys and values (m, d), head by head: (d,).

    `steps` (m,) is how far after the query each key comes, for rotary positions and linear biases.
    """
    width = len(query) // heads
    mixed = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        turned = keys[:, part]
        if rotary and steps is not None:
            turned = turn(turned, steps)
        scores = turned @ query[part] / width**0.5
        if alibi and steps is not None:
            scores = scores - 2 ** (-8 * (head + 1) / heads) * steps.abs()
        mixed.append(scores.softmax(0) @ values[:, part])
    return torch.cat(mixed)


def turn(keys: Tensor, steps: Tensor) -> Tensor:
    """Return keys (m, e) turned by steps (m,): pair l of their channels, as complex numbers, by steps·10000^(-2l/e)."""
    pairs = range(keys.shape[1] // 2)
    frequencies = torch.tensor([10000 ** (-2 * pair / keys.shape[1]) for pair in pairs], dtype=torch.float64)
    angles = steps.double().outer(frequencies)
    numbers = torch.complex(keys[:, ::2].double(), keys[:, 1::2].double()) * torch.exp(1j * angles)
    return torch.stack((numbers.real, numbers.imag), 2).flatten(1).to(keys.dtype)


def steps_to(places: Tensor, i: int, mask: Tensor | None) -> Tensor:
    """Number of real positions from i to each of `places`, in a row with this `mask` (t,)."""
    count = torch.arange(max(i, int(places.max())) + 1) if mask is None else mask.cumsum(0)
    return count[places] - count[i]


def faded(forgetting: Forgetting, x: Tensor) -> Tensor:
    """Forgetting at each position i of x (t, d) of each j before it, Σ_{j<l<=i} f_l, as (heads, i, j)."""
    row, rows = x.new_zeros(forgetting.heads, len(x)), []
    for i in range(len(x)):
        # What came before i fades by another f_i.
        row = row + rate_at(forgetting, x[i]).unsqueeze(1) * (torch.arange(len(x)) < i)
        rows.append(row)
    return torch.stack(rows, 1)


def rate_at(forgetting: Forgetting, x: Tensor) -> Tensor:
    """Return f (heads,) at a position x (d,), or (heads * channels,)."""
    heads, channels = forgetting.heads, forgetting.channels
    if forgetting.kind == "none":
        return x.new_zeros(heads * channels)
    if forgetting.kind == "fixed":
        spread, copies = (channels, heads) if channels > 1 else (heads // forgetting.directions, forgetting.directions)
        places = [i / (spread - 1) for i in range(spread)] if spread > 1 else [0.5]
        return torch.tensor([1 / (2 * 2048**place) for place in places] * copies, dtype=torch.float64).to(x)
    change = forgetting.input(x) if forgetting.kind == "input" else 0
    # log(1 + exp(s)).
    return torch.logaddexp(x.new_zeros(heads * channels), forgetting.slope + change)
