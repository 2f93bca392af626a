"""Vectors scaled to a length: unit vectors, and vectors whose mean square is one.

`plain` has them in plain operations, for every device; `numba` as compiled loops for a CPU, which `operators` makes an
operator of PyTorch.
"""

from jaxtyping import Float
from torch import Tensor

from longspan.ops.execution import exporting, on_cpu, transformed
from longspan.ops.normalised import operators, plain
from longspan.ops.scan import accumulation_dtype


def normalised(x: Float[Tensor, "*n e"], length: float, epsilon: float) -> Float[Tensor, "*n e"]:
    """Return x · length / √(|x|² + epsilon) of each vector, in at least float32.

    Squares may be larger than any number. Cost: one pass over x, and one over it and its gradient backward.
    """
    wide = x.to(accumulation_dtype(x.dtype))
    plainly = exporting() or transformed() or not on_cpu(x)
    return (plain if plainly else operators).normalised(wide, length, epsilon)


def normalised_naive(x: Tensor, length: float, epsilon: float) -> Tensor:
    """Compute `normalised` by its formula."""
    return x * length / (x.square().sum(-1, keepdim=True) + epsilon).sqrt()
