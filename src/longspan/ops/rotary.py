"""Rotary positions: vectors turned by angles that grow with their position, so that products know the distance."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from longspan.ops.alibi import key_numbers
from longspan.ops.scan import accumulation_dtype
from longspan.ops.scan.plain import exact_dtype


def real_numbers(
    x: Float[Tensor, "b t d"], mask: Shaped[Tensor, "b t"] | None = None, seen: Int[Tensor, " b"] | None = None
) -> Int[Tensor, "c 1 t"]:
    """Return the number of each position of a row (c is b, or 1 if all rows have the same) among its real ones.

    They are counted from `seen`, by default from 0; the number of a masked position means nothing.
    """
    numbers = key_numbers(x.shape[1], mask, x.device)
    return (numbers if seen is None else numbers + seen.unsqueeze(1)).unsqueeze(1)


def rotated(x: Float[Tensor, "*b t e"], numbers: Int[Tensor, "*c t"]) -> Float[Tensor, "*b t e"]:
    """Return `x` with each pair of neighbouring channels, the l-th of e/2, turned by numbers · 10000^(-2l/e).

    So rotated(q, i)·rotated(k, j) depends on i - j alone (Su et al. 2021, https://arxiv.org/abs/2104.09864). Angles are
    in float64 where the device has it, so that they are right after millions of positions; e is even.
    """
    exact, width = exact_dtype(x.device), x.shape[-1]
    frequencies = 10000.0 ** (torch.arange(0, width, 2, dtype=exact, device=x.device) / -width)
    dtype = accumulation_dtype(x.dtype)
    angles = numbers.unsqueeze(-1).to(exact) * frequencies
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    first, second = x.to(dtype).unflatten(-1, (width // 2, 2)).unbind(-1)
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), -1)
    return turned.flatten(-2).to(x.dtype)
