"""A matrix per head that decays, is written with keys and values, and is read with queries.

`plain` computes it in chunks of plain operations, for every device; `numba` as compiled loops for a CPU and `triton` as
kernels for a GPU, of which `operators` makes an operator of PyTorch.
"""

import torch
from torch import Tensor

from longspan.ops.execution import exporting, has_kernels, on_cpu, transformed
from longspan.ops.fast_weights import operators, plain
from longspan.ops.scan import accumulation_dtype

# Keys up to this width have kernels on a GPU, which hold whole columns of a matrix in registers.
WIDEST = 128


def fast_weights(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor | None, rates: Tensor, state: Tensor, *, backwards: int
) -> tuple[Tensor, Tensor]:
    """Return what `ops.delta.gated_delta_rule` does; without a strength, `ops.gated_linear.gated_linear_attention`."""
    t = value.shape[2]
    if t == 0:
        return value, state
    dtype = accumulation_dtype(query.dtype)
    tensors = [None if x is None else x.to(dtype) for x in (query, key, value, strength, rates, state)]
    compiled = on_cpu(query) or (has_kernels(query) and query.shape[3] <= WIDEST)
    # For a step of a stream, neither loops nor kernels would pay off.
    plainly = exporting() or t == 1 or not compiled or transformed()
    with torch.autocast(query.device.type, enabled=False):
        out, state = (plain if plainly else operators).fast_weights(*tensors, backwards=backwards)
    return out.to(value.dtype), state
