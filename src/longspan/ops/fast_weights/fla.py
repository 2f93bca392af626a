"""The gated delta rule and gated linear attention by the kernels of flash-linear-attention, on a GPU.

Yang and Zhang 2024, https://github.com/fla-org/flash-linear-attention: its package fla-core (`longspan[gpu]`). Its
sums are in float32, its products in the type of the operands. Other tensors than those of bfloat16 have plain
operations: float32 would be rounded to TF32, and sums over many keys overflow in float16.
"""

import importlib.util

import torch
from torch import Tensor

from longspan.ops.execution import TRITON
from longspan.ops.fast_weights.plain import reversed_heads
from longspan.ops.operators import may_run, replace_kernels

# Its kernels are in Triton, too.
INSTALLED = TRITON and importlib.util.find_spec("fla") is not None
#: Keys up to this width have kernels.
WIDEST = 256


def has_kernels(query: Tensor) -> bool:
    """Return whether kernels of flash-linear-attention serve queries (b, h, t, e) of this type, on their device."""
    return (
        INSTALLED and query.is_cuda and query.dtype == torch.bfloat16 and query.shape[3] <= WIDEST and may_run(__name__)
    )


def fast_weights(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor | None, rates: Tensor, state: Tensor, *, backwards: int
) -> tuple[Tensor, Tensor] | None:
    """Return the result of `ops.fast_weights.fast_weights`, or None where kernels do not run.

    Outputs have the type of queries, states float32. Of these gradients, there are no further ones.
    """
    strengths = [] if strength is None else [strength.to(query.dtype)]
    tensors = [query, key.to(query.dtype), value.to(query.dtype), -rates.float(), *strengths]
    name = "chunk_gated_delta_rule" if strengths else "chunk_gla" if rates.ndim == 4 else "chunk_simple_gla"
    try:
        # Slow to import: the first call waits for it, and nothing else does.
        from fla import ops

        # There, positions come before heads.
        given = (reversed_heads(x, backwards).transpose(1, 2) for x in tensors)
        out, last = getattr(ops, name)(*given, scale=1.0, initial_state=state.float(), output_final_state=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        replace_kernels(__name__, f"fla.ops.{name}", error, "fla-core")
        return None
    return reversed_heads(out.transpose(1, 2), backwards), last
