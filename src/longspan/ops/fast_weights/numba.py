"""The gated delta rule, gated linear attention and their gradients as compiled loops over positions.

NumPy arrays in and out, no tensors, all of them C-contiguous. The matrix of a head, (e, v), stays in a processor's
cache, and is read and written once for each position. Rows and heads are independent of each other, so they are divided
among threads of this process. The backward pass starts from the matrices before each chunk of positions: it computes
those of a chunk again, and then goes through the chunk from its end.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from longspan.ops.fast_weights.loops_backward import go_back
from longspan.ops.fast_weights.loops_forward import go_on
from longspan.ops.threads import in_slices

# Products with entries of a matrix for which handing a slice to another thread pays off.
WORTH_SHARING = 1 << 20


def forward(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    strength: np.ndarray,
    kept: np.ndarray,
    state: np.ndarray,
    out: np.ndarray,
    last: np.ndarray,
    borders: np.ndarray,
    backwards: int,
    threads: int,
) -> None:
    """Fill `out` (b, t, h, v), `last` (b, h, e, v) and `borders` (b, chunks, h, e, v), the matrices before each chunk.

    `query` and `key` are (b, t, h, e). `strength` is (b, t, h) for the delta rule, (b, 0, h) for gated linear
    attention. `kept` is exp(-rates), (b, t, h) or (b, t, h, e). The last `backwards` heads read from the end. With no
    room for any, `borders` are not filled.
    """
    arrays = (query, key, value, strength, kept, state, out, last, borders, backwards)
    _share(go_on, arrays, query, value, threads)


def backward(
    grad_out: np.ndarray,
    grad_last: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    strength: np.ndarray,
    kept: np.ndarray,
    borders: np.ndarray,
    to_query: np.ndarray,
    to_key: np.ndarray,
    to_value: np.ndarray,
    to_strength: np.ndarray,
    to_rates: np.ndarray,
    to_state: np.ndarray,
    backwards: int,
    threads: int,
) -> None:
    """Fill the gradients of `forward`, whose inputs and results these are.

    D_t is the gradient of S_t, S'_t = exp(-f_t) S_{t-1}, u_t = v_t - S'_tᵀ k_t the change, w_t = β_t u_t what is
    written. From the last position to the first, D_t gains q_t do_tᵀ, and then dw_t = D_tᵀ k_t, dv_t = β_t dw_t,
    dβ_t = dw_t·u_t, D'_t = D_t - k_t dv_tᵀ, dq_t = S_t do_t, dk_t = D_t w_t - S'_t dv_t, df_t = -Σ D'_t ⊙ S'_t,
    D_{t-1} = exp(-f_t) D'_t. Without a strength, β_t = 1 and nothing is subtracted: u_t = v_t, D'_t = D_t and
    dk_t = D_t w_t.
    """
    given = (grad_out, grad_last, query, key, value, strength, kept, borders)
    made = (to_query, to_key, to_value, to_strength, to_rates, to_state)
    _share(go_back, (*given, *made, backwards), query, value, threads)


def _share(
    kernel: Callable[..., None], arguments: tuple[Any, ...], query: np.ndarray, value: np.ndarray, threads: int
) -> None:
    rows, _, heads, _ = query.shape
    in_slices(kernel, arguments, rows * heads, min(threads, query.size * value.shape[3] // WORTH_SHARING))
