"""Vectors scaled to a length: unit vectors, and vectors whose mean square is one.

`numba` has compiled loops for a CPU.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.ops.execution import accumulation_dtype, exporting, on_cpu, transformed
from longspan.ops.operators import empty, operator


def plain_normalised(x: Tensor, length: float, epsilon: float) -> Tensor:
    """`normalised` in plain operations, for every device."""
    size = x.detach().abs().amax(-1, keepdim=True).clamp_min(1)
    x = x / size
    return x * (torch.rsqrt(x.square().sum(-1, keepdim=True) + epsilon / size.square()) * length)


@operator("longspan::normalised", plain_normalised, loops="forward")
def normalised_operator(x: Tensor, length: float, epsilon: float) -> Tensor:
    return empty(x)


@normalised_operator.gradient(("out",), loops="backward")
def normalised_gradient(gradient: Tensor, x: Tensor, length: float, epsilon: float) -> Tensor:
    return empty(x)


def normalised(x: Float[Tensor, "*n e"], length: float, epsilon: float) -> Float[Tensor, "*n e"]:
    """Return x · length / √(|x|² + epsilon) of each vector, in at least float32.

    Squares may be larger than any number. Cost: one pass over x, and one over it and its gradient backward.
    """
    wide = x.to(accumulation_dtype(x.dtype))
    scale = plain_normalised if exporting() or transformed() or not on_cpu(x) else normalised_operator
    return scale(wide, length, epsilon)


def normalised_naive(x: Tensor, length: float, epsilon: float) -> Tensor:
    """Compute `normalised` by its formula."""
    return x * length / (x.square().sum(-1, keepdim=True) + epsilon).sqrt()
