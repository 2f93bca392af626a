"""Heads: a width split into equal parts that attend independently."""

from jaxtyping import Float
from torch import Tensor

from longspan.errors import UserError


def head_width(mixer: str, dim: int, heads: int) -> int:
    """Return `dim / heads`. Raises UserError, naming `mixer`, when `heads` does not divide `dim`."""
    if heads < 1 or dim % heads:
        raise UserError(f"{mixer} expected a dim that heads divides, got dim={dim} and heads={heads}; change either.")
    return dim // heads


def split_heads(x: Float[Tensor, "b t d"], heads: int) -> Float[Tensor, "b h t e"]:
    """Return `x` with its width split into heads, which become the second dimension."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def weighted(weights: Float[Tensor, "b h n m"], values: Float[Tensor, "b m d"]) -> Float[Tensor, "b n d"]:
    """Return each head's sums of its part of `values` times its weights, in the type of `values`."""
    return merge_heads(weights.to(values.dtype) @ split_heads(values, weights.shape[1]))


def merge_heads(x: Float[Tensor, "b h t e"]) -> Float[Tensor, "b t d"]:
    """Undo `split_heads`."""
    return x.transpose(1, 2).flatten(2)
