"""Visible positions of a cache, which may be attended to.

`visible` is (b, seen) bool, or (b, 0) as long as all positions are visible, so that unmasked streams have no overhead.
"""

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor


def all_visible(batch_size: int, device: torch.device | str | None = None) -> Bool[Tensor, "b 0"]:
    """Return `visible` for a cache of any length that hides nothing."""
    return torch.ones(batch_size, 0, dtype=torch.bool, device=device)


def spelled_out(visible: Bool[Tensor, "b v"], seen: int) -> Bool[Tensor, "b {seen}"]:
    """Return `visible` with one entry for each of the `seen` positions."""
    return visible if visible.shape[1] == seen else visible.new_ones(visible.shape[0], seen)


def extended(
    visible: Bool[Tensor, "b v"], seen: int, new: int, mask: Bool[Tensor, "b {new}"] | None
) -> Bool[Tensor, "b w"]:
    """Return `visible` for a cache of `seen` positions to which `new` ones are added, visible where `mask` is True."""
    if mask is None:
        if not visible.shape[1]:
            return visible
        mask = visible.new_ones(visible.shape[0], new)
    return torch.cat((spelled_out(visible, seen), mask), 1)


def as_mask(visible: Shaped[Tensor, "b v"]) -> Shaped[Tensor, "b v"] | None:
    """Return the mask of keys for attention to the cache: None when nothing is hidden; of a context, also counts."""
    return visible if visible.shape[1] else None
