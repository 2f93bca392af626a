"""Two projections with a vector between them, folded into one where that is cheaper."""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from longspan.ops.execution import exporting
from longspan.ops.reads import JointReads, transform

Affine = tuple[Float[Tensor, "out d"], Float[Tensor, " out"] | None]


def scaled_between(
    reads: JointReads,
    scale: Float[Tensor, "b d"] | None,
    outer: Float[Tensor, "d d"],
    inner: Affine,
    beside: Affine | None = None,
    constant: Float[Tensor, "#b 1 d"] | None = None,
) -> Float[Tensor, "b n d"]:
    """Return outer (scale ⊙ inner(x)) + beside(x) + constant; no `scale` is ones, all else that is None is zero.

    As x times the matrix outer diag(scale) W_inner + W_beside of its row, the last read of x, of width d: n·d² + d³; or
    n·d² for each projection where there are fewer positions than d.
    """
    x = reads.x
    weight, bias = inner
    if scale is not None and (exporting() or x.shape[1] <= x.shape[2]):
        # A matrix per row of the batch costs d³; with fewer positions than d, two products cost less. Where the length
        # is not known they are chosen too: they never cost twice as much, the matrix many times as much.
        value = linear(x, weight, bias)
        y = _plus(linear(value * scale.unsqueeze(1), outer), constant)
        if beside is None:
            return y
        return y + (value if beside[0] is weight else linear(x, *beside))
    scaled = outer if scale is None else outer * scale.unsqueeze(1)
    matrix = scaled @ weight
    if bias is not None:
        constant = _plus((scaled @ bias).view(-1, 1, outer.shape[0]), constant)
    if beside is not None:
        matrix = matrix + beside[0]
        constant = constant if beside[1] is None else _plus(beside[1].view(1, 1, -1), constant)
    return transform(reads, matrix, constant)


def _plus(y: Tensor, constant: Tensor | None) -> Tensor:
    return y if constant is None else y + constant
