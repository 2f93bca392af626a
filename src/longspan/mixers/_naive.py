"""What the naive forms share: softmax attention of one query, and forgetting, written out."""

import torch
from torch import Tensor

from longspan.mixers._forgetting import Forgetting


def attend(query: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    """Return what a query (d,) gathers from keys and values (m, d), head by head: (d,)."""
    width = len(query) // heads
    mixed = []
    for part in (slice(head * width, (head + 1) * width) for head in range(heads)):
        weights = (keys[:, part] @ query[part] / width**0.5).softmax(0)
        mixed.append(weights @ values[:, part])
    return torch.cat(mixed)


def faded(forgetting: Forgetting, x: Tensor) -> Tensor:
    """Return what each position i of x (t, d) has forgotten of each j before it, Σ_{j<l<=i} f_l, as (heads, i, j)."""
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
        spread, copies = (channels, heads) if channels > 1 else (heads, 1)
        places = [i / (spread - 1) for i in range(spread)] if spread > 1 else [0.5]
        return torch.tensor([1 / (2 * 2048**place) for place in places] * copies).to(x)
    change = forgetting.input(x) if forgetting.kind == "input" else 0
    # log(1 + exp(s)).
    return torch.logaddexp(x.new_zeros(heads * channels), forgetting.slope + change)
