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
    """Return f (heads,) at a position x (d,)."""
    heads = forgetting.heads
    if forgetting.kind == "none":
        return x.new_zeros(heads)
    if forgetting.kind == "fixed":
        spread = [head / (heads - 1) for head in range(heads)] if heads > 1 else [0.5]
        return torch.tensor([1 / (2 * 2048**place) for place in spread]).to(x)
    change = forgetting.input(x) if forgetting.kind == "input" else 0
    # log(1 + exp(s)).
    return torch.logaddexp(x.new_zeros(heads), forgetting.slope + change)
