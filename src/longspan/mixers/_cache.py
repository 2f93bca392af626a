"""Keys and values that a stream has seen, as softmax attention and its local form keep them."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.mixers._numbered import Numbered
from longspan.ops.cache import all_visible, extended, spelled_out


class KeyValueCache(NamedTuple):
    """Keys and values, each (b, heads, seen, dim / heads), newest last, and which are `visible` (`ops.cache`)."""

    key: Tensor
    value: Tensor
    visible: Tensor


def empty_cache(batch_size: int, heads: int, width: int, dtype: torch.dtype, device: torch.device) -> KeyValueCache:
    """Return a cache that has seen nothing."""
    empty = torch.empty(batch_size, heads, 0, width, dtype=dtype, device=device)
    return KeyValueCache(empty, empty, all_visible(batch_size, device))


def joined(
    cache: KeyValueCache,
    key: Float[Tensor, "b h n e"],
    value: Float[Tensor, "b h n e"],
    mask: Bool[Tensor, "b n"] | None,
) -> KeyValueCache:
    """Return the cache with `n` more positions, in their type."""
    visible = extended(cache.visible, cache.key.shape[2], key.shape[2], mask)
    return KeyValueCache(
        torch.cat((cache.key.to(key.dtype), key), 2), torch.cat((cache.value.to(value.dtype), value), 2), visible
    )


def forgotten(state: KeyValueCache | Numbered, rows: Bool[Tensor, " b"]) -> KeyValueCache | Numbered:
    """Return a cache of the same length in which these rows are zeros and hidden, and whose numbers start again."""
    if isinstance(state, Numbered):
        return Numbered(state.seen.masked_fill(rows, 0), forgotten(state.state, rows))
    chosen = rows.view(-1, 1, 1, 1)
    visible = spelled_out(state.visible, state.key.shape[2]).masked_fill(rows.unsqueeze(1), False)
    return KeyValueCache(state.key.masked_fill(chosen, 0), state.value.masked_fill(chosen, 0), visible)
