"""A matrix per head, and its gradients, as kernels for a GPU: the gated delta rule and gated linear attention.

Positions are cut into chunks. What depends on the positions of one chunk alone is computed for all chunks at once:
scores of queries and keys, and, by the delta rule, the inverse of the triangular matrix of its system. Then programs
carry the columns of a matrix from chunk to chunk, in registers, by products of matrices. Backward, the gradients of the
matrices are carried from the last chunk to the first, and all others follow from both, for all chunks at once. No
exponent is above zero, sums of rates are in float64, and products are not rounded to fewer digits than their operands.

Tensors are (b, t, h, ...) and C-contiguous; those to fill come last. Yang et al. 2024 describe the chunks,
https://arxiv.org/abs/2406.06484 and https://arxiv.org/abs/2412.06464.

Checked in Triton's interpreter, and compiled for GPUs; neither run nor timed on one.
"""

import torch
import triton
from torch import Tensor

from longspan.ops._tiles import width
from longspan.ops.fast_weights import triton_backward, triton_forward
from longspan.ops.fast_weights.plain import gpu_chunk

# Columns of a matrix that a program carries, and its warps: all numbers of a chunk of 64 channels are in registers.
COLUMNS, WARPS = 16, 8


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    rates: Tensor,
    state: Tensor,
    out: Tensor,
    last: Tensor,
    borders: Tensor,
    backwards: int,
    saves: bool,
) -> None:
    """Fill what is read (b, t, h, v), the last matrices (b, h, e, v), and those before each chunk of positions
    (b, chunks, h, e, v), if anything `saves` them.

    Without a strength (b, t, h) it has no positions. Rates are (b, t, h), or (b, t, h, e) without a strength.
    """
    (b, t, h, e), v = query.shape, value.shape[3]
    chunk = gpu_chunk(query, rates)
    kind = _kind(strength, rates, chunk, e)
    with torch.cuda.device_of(query):
        squares = _squares_of(query, key, strength, rates, backwards, kind)
        given = (query, key, value, strength, rates, state, *squares, out, last, borders)
        sizes = (t, h, e, v, backwards, triton.cdiv(t, chunk))
        triton_forward.forward[b * h, triton.cdiv(v, COLUMNS)](
            *given, *sizes, SAVES=saves, V=COLUMNS, **kind, num_warps=WARPS
        )


def backward(
    grad_out: Tensor,
    grad_last: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    rates: Tensor,
    state: Tensor,
    borders: Tensor,
    to_query: Tensor,
    to_key: Tensor,
    to_value: Tensor,
    to_strength: Tensor,
    to_rates: Tensor,
    to_state: Tensor,
    backwards: int,
) -> None:
    """Fill the last six tensors with the gradients of `forward`, given those of what it fills and the `borders`."""
    (b, t, h, e), v = query.shape, value.shape[3]
    chunk = gpu_chunk(query, rates)
    kind, chunks = _kind(strength, rates, chunk, e), triton.cdiv(t, chunk)
    made = (to_query, to_key, to_value, to_strength, to_rates)
    with torch.cuda.device_of(query):
        squares = _squares_of(query, key, strength, rates, backwards, kind)
        after = torch.empty_like(borders)
        sizes, options = (t, h, e, v, backwards), {"V": COLUMNS, "num_warps": WARPS, **kind}
        given = (grad_out, grad_last, query, key, strength, rates, *squares, after, to_state)
        triton_backward.carry_back[b * h, triton.cdiv(v, COLUMNS)](*given, *sizes, chunks, **options)
        given = (grad_out, query, key, value, strength, rates, borders, *squares, after)
        triton_backward.backward[b * h, chunks](*given, *made, *sizes, **options)


def _kind(strength: Tensor, rates: Tensor, chunk: int, e: int) -> dict[str, int]:
    return {"DELTA": strength.shape[1] > 0, "PER_CHANNEL": rates.ndim == 4, "T": chunk, "E": width(e)}


def _squares_of(
    query: Tensor, key: Tensor, strength: Tensor, rates: Tensor, backwards: int, kind: dict[str, int]
) -> tuple[Tensor, Tensor]:
    b, t, h, e = query.shape
    size, chunks = kind["T"], triton.cdiv(t, kind["T"])
    scores = query.new_empty(b * h, chunks, size, size)
    inverses = scores.new_empty(scores.shape if kind["DELTA"] else (0,))
    triton_forward.chunks[b * h, chunks](
        query, key, strength, rates, scores, inverses, t, h, e, backwards, num_warps=WARPS, **kind
    )
    return scores, inverses
