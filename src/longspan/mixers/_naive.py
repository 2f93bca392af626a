"""Softmax attention of one query, written out for the naive forms."""

import torch
from torch import Tensor


def attend(query: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    """Return what a query (d,) gathers from keys and values (m, d), head by head: (d,)."""
    width = len(query) // heads
    mixed = []
    for part in (slice(head * width, (head + 1) * width) for head in range(heads)):
        weights = (keys[:, part] @ query[part] / width**0.5).softmax(0)
        mixed.append(weights @ values[:, part])
    return torch.cat(mixed)
