"""Softmax-weighted means over all positions as an operator for a GPU, with kernels in `triton`.

`ops.pooling.softmax_pool` has the plain operations, which every other device runs.
"""

import torch
from torch import Tensor

from longspan.ops.execution import accumulation_dtype
from longspan.ops.operators import empty, operator
from longspan.ops.scan import FLOOR


def softmax_pool(values: Tensor, logits: Tensor) -> Tensor:
    """The means (b, h, d) of values (b, t, d) weighted by the softmax of logits (b, t, h); those that are FLOOR weigh
    nothing."""
    kind = values.device.type
    if torch.is_autocast_enabled(kind):
        # As it does with the operands of a product.
        values = values.to(torch.get_autocast_dtype(kind))
    pooled: Tensor = softmax_pool_operator(values, logits.to(accumulation_dtype(values.dtype)))[0]
    return pooled.to(values.dtype)


def _plain(values: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    visible, largest = logits > FLOOR / 2, logits.amax(1)
    weights = logits.softmax(1) * visible
    total = ((logits - largest.unsqueeze(1)).exp() * visible).sum(1)
    return weights.transpose(1, 2) @ values.to(weights.dtype), largest, total


@operator(
    "longspan::softmax_pool",
    _plain,
    kernels="forward",
    flops=lambda values, logits: 2 * values[0] * values[1] * values[2] * logits[2],
)
def softmax_pool_operator(values: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The means, and of each head the largest logit and Σ exp(z - largest), all in the type of the logits."""
    b, _, h = logits.shape
    return logits.new_empty(b, h, values.shape[2]), logits.new_empty(b, h), logits.new_empty(b, h)


@softmax_pool_operator.gradient(("pooled", "largest", "total"), kernels="backward")
def softmax_pool_gradient(
    gradient: Tensor, values: Tensor, logits: Tensor, pooled: Tensor, largest: Tensor, total: Tensor
) -> tuple[Tensor, Tensor]:
    return empty(values), empty(logits)
