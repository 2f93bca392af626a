"""Masks that hold numbers: how often each position counts in what others read.

A mask is bool, True at real positions, or of floats: 0 is padding, 1 a real position, 2 one that is there twice. All
that is computed with it is differentiable in these counts. So minus the gradient with respect to them says, to first
order, what removing each position would change, renormalisation included.
"""

from typing import TypeGuard

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from longspan.ops.scan import FLOOR


def counting(mask: Tensor | None) -> TypeGuard[Tensor]:
    """Return whether a mask holds counts."""
    return mask is not None and mask.dtype != torch.bool


def present(mask: Shaped[Tensor, "*b"]) -> Bool[Tensor, "*b"]:
    """Return where positions are real."""
    return mask > 0 if counting(mask) else mask


def log_counts(mask: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Return the logarithm of counts, which adds to logits: FLOOR at padding, with a gradient of zero."""
    real = mask > 0
    return torch.where(real, torch.where(real, mask, 1).log(), FLOOR)


def logits_of_one(logits: Float[Tensor, "b t h"], mask: Shaped[Tensor, "b t"] | None) -> Float[Tensor, "b t h"]:
    """Return `masked_logits` of `mask` as they are for one position of each, where what is handed out depends on it."""
    if mask is None or not counting(mask):
        return logits
    return logits - torch.where(mask > 0, log_counts(mask), 0).to(logits.dtype).unsqueeze(-1)


def each_once(weights: Float[Tensor, "*b"], mask: Shaped[Tensor, "*#b"] | None) -> Float[Tensor, "*b"]:
    """Weight of one position where weights are those of `mask` positions together: of shares handed out."""
    if mask is None or not counting(mask):
        return weights
    return weights / torch.where(mask > 0, mask, 1)
