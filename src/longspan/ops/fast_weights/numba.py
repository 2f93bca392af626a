"""The gated delta rule, gated linear attention and their gradients as compiled loops over positions.

NumPy arrays in and out, no tensors, all of them C-contiguous. The matrix of a head, (e, v), stays in a processor's
cache, and is read and written once for each position. Rows and heads are independent of each other, so they are divided
among threads of this process. The backward pass starts from the matrices before each chunk of positions: it computes
those of a chunk again, and then goes through the chunk from its end.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from longspan.ops._rows import copy, copy_back, copy_kept, copy_transposed, padded, total_rows
from longspan.ops.compiled import compiled
from longspan.ops.fast_weights.plain import CHUNK
from longspan.ops.simd import lanes, load, put, spread, spread_from, store, total
from longspan.ops.threads import in_slices

# Products with entries of a matrix for which handing a slice to another thread pays off.
WORTH_SHARING = 1 << 20


def forward(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    strength: np.ndarray,
    rates: np.ndarray,
    state: np.ndarray,
    out: np.ndarray,
    last: np.ndarray,
    borders: np.ndarray,
    backwards: int,
    saves: bool,
) -> None:
    """Fill `out` (b, t, h, v), `last` (b, h, e, v) and `borders` (b, chunks, h, e, v), the matrices before each chunk.

    `query` and `key` are (b, t, h, e). `strength` is (b, t, h) for the delta rule, (b, 0, h) for gated linear
    attention. `rates` are (b, t, h) or (b, t, h, e). The last `backwards` heads read from the end. The `borders` are
    filled for a backward pass, if anything `saves` them.
    """
    arrays = (query, key, value, strength, _decays(rates), state, out, last, borders, backwards, saves)
    _share(_forward, arrays, query, value)


def backward(
    grad_out: np.ndarray,
    grad_last: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    strength: np.ndarray,
    rates: np.ndarray,
    state: np.ndarray,
    borders: np.ndarray,
    to_query: np.ndarray,
    to_key: np.ndarray,
    to_value: np.ndarray,
    to_strength: np.ndarray,
    to_rates: np.ndarray,
    to_state: np.ndarray,
    backwards: int,
) -> None:
    """Fill the gradients of `forward`, whose inputs and results these are.

    D_t is the gradient of S_t, S'_t = exp(-f_t) S_{t-1}, u_t = v_t - S'_tᵀ k_t the change, w_t = β_t u_t what is
    written. From the last position to the first, D_t gains q_t do_tᵀ, and then dw_t = D_tᵀ k_t, dv_t = β_t dw_t,
    dβ_t = dw_t·u_t, D'_t = D_t - k_t dv_tᵀ, dq_t = S_t do_t, dk_t = D_t w_t - S'_t dv_t, df_t = -Σ D'_t ⊙ S'_t,
    D_{t-1} = exp(-f_t) D'_t. Without a strength, β_t = 1 and nothing is subtracted: u_t = v_t, D'_t = D_t and
    dk_t = D_t w_t.
    """
    inputs = (grad_out, grad_last, query, key, value, strength, _decays(rates), borders)
    gradients = (to_query, to_key, to_value, to_strength, to_rates, to_state)
    _share(_backward, (*inputs, *gradients, backwards), query, value)


def _decays(rates: np.ndarray) -> np.ndarray:
    return torch.from_numpy(rates).neg().exp_().numpy()


def _share(kernel: Callable[..., None], arguments: tuple[Any, ...], query: np.ndarray, value: np.ndarray) -> None:
    rows, _, heads, _ = query.shape
    in_slices(kernel, arguments, rows * heads, query.size * value.shape[3] // WORTH_SHARING)


# Columns of values at a time: the buffer of matrices takes CHUNK x COLUMNS x E numbers.
COLUMNS = 16


@compiled
def _recompute(
    border: np.ndarray,
    key: np.ndarray,
    kept: np.ndarray,
    change: np.ndarray,
    strength: np.ndarray,
    written: np.ndarray,
    before: np.ndarray,
    held: np.ndarray,
    delta: bool,
    count: int,
    begin: int,
    end: int,
    E: int,
    V: int,
) -> None:
    """Fill `before` (count, COLUMNS, E) with the columns `begin` to `end` of S' at each position, from `border` (V, E).

    `change` is the value before and, by the delta rule, the value minus what was held after; `written` is filled.
    """
    for n in range(count):
        previous = max(n - 1, 0)
        for c in range(begin, end):
            row, sums = (n * COLUMNS + c - begin) * E, spread(border.dtype.type(0))
            new = spread_from(written, previous * V + c) if n else sums
            for i in range(0, E, lanes(border)):
                then = load(before, row - COLUMNS * E + i) if n else load(border, c * E + i)
                now = load(kept, n * E + i) * (then + new * load(key, previous * E + i))
                store(before, row + i, now)
                sums = sums + load(key, n * E + i) * now
            if delta:
                put(held, c, total(sums))
        for c in range(begin, min(begin + COLUMNS, V), lanes(border)):
            here = n * V + c
            new = load(change, here) - load(held, c)
            store(change, here, new)
            store(written, here, spread_from(strength, n) * new)


@compiled
def _chunk_backward(
    gradient: np.ndarray,
    before: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    kept: np.ndarray,
    change: np.ndarray,
    written: np.ndarray,
    strength: np.ndarray,
    grad_out: np.ndarray,
    to_query: np.ndarray,
    to_key: np.ndarray,
    to_value: np.ndarray,
    to_strength: np.ndarray,
    to_rates: np.ndarray,
    taken: np.ndarray,
    subtracts: float,
    count: int,
    begin: int,
    end: int,
    E: int,
    V: int,
) -> None:
    """Go through a chunk from its end with the columns `begin` to `end` of D, `gradient` (V, E).

    `to_value` is filled. The other gradients are added up over columns.
    """
    for back in range(count):
        n = count - 1 - back
        zero = spread(gradient.dtype.type(0))
        for c in range(begin, end):
            sums, upstream = zero, spread_from(grad_out, n * V + c)
            for i in range(0, E, lanes(gradient)):
                now = load(gradient, c * E + i) + upstream * load(query, n * E + i)
                store(gradient, c * E + i, now)
                sums = sums + load(key, n * E + i) * now
            put(taken, c, total(sums))
        beta_sum, read = zero, zero
        for c in range(begin, min(begin + COLUMNS, V), lanes(gradient)):
            here, to_written = n * V + c, load(taken, c)
            beta_sum = beta_sum + to_written * load(change, here)
            read = read + load(written, here) * load(grad_out, here)
            to_new = spread_from(strength, n) * to_written
            store(to_value, here, to_new)
            store(taken, c, spread(subtracts) * to_new)
        to_strength[n] += total(beta_sum)
        written_read = spread(total(read))
        for i in range(0, E, lanes(gradient)):
            here = n * E + i
            own, left = load(key, here), load(kept, here)
            query_sum, key_sum = load(to_query, here) + written_read * own, load(to_key, here)
            rate_sum = load(to_rates, here)
            for c in range(begin, end):
                now, then = load(gradient, c * E + i), load(before, (n * COLUMNS + c - begin) * E + i)
                query_sum = query_sum + spread_from(grad_out, n * V + c) * then
                key_sum = key_sum + spread_from(written, n * V + c) * now + spread_from(taken, c) * then
                now = now + spread_from(taken, c) * own
                rate_sum = rate_sum - now * then
                store(gradient, c * E + i, left * now)
            store(to_query, here, query_sum)
            store(to_key, here, key_sum)
            store(to_rates, here, rate_sum)


@compiled
def _backward(
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
    first: int,
    final: int,
) -> None:
    _, t, h, e = query.shape
    v, dtype = value.shape[3], query.dtype
    E, V = padded(e, query.itemsize), padded(v, query.itemsize)
    delta, channels = strength.size > 0, e if kept.ndim == 4 else 1
    queries, keys, values, upstream = query.reshape(-1), key.reshape(-1), value.reshape(-1), grad_out.reshape(-1)
    strengths, factors = strength.reshape(-1), kept.reshape(-1)
    to_queries, to_keys, to_values = to_query.reshape(-1), to_key.reshape(-1), to_value.reshape(-1)
    to_strengths, to_factors = to_strength.reshape(-1), to_rates.reshape(-1)
    chunk_query, chunk_key, chunk_kept = (
        np.zeros(CHUNK * E, dtype),
        np.zeros(CHUNK * E, dtype),
        np.zeros(CHUNK * E, dtype),
    )
    chunk_change, chunk_upstream = np.zeros(CHUNK * V, dtype), np.zeros(CHUNK * V, dtype)
    chunk_strength, written = np.ones(CHUNK, dtype), np.empty(CHUNK * V, dtype)
    from_query, from_key, from_kept = np.empty(CHUNK * E, dtype), np.empty(CHUNK * E, dtype), np.empty(CHUNK * E, dtype)
    from_value, from_strength = np.empty(CHUNK * V, dtype), np.empty(CHUNK, dtype)
    held, taken = np.zeros(V, dtype), np.zeros(V, dtype)
    border, before = np.zeros(V * E, dtype), np.empty(CHUNK * COLUMNS * E, dtype)
    gradients = np.zeros((h, V * E), dtype)
    chunks = (t + CHUNK - 1) // CHUNK
    for row in range(first // h, (final + h - 1) // h):
        low, high = max(first - row * h, 0), min(final - row * h, h)
        for head in range(low, high):
            copy_transposed(grad_last[row, head].reshape(-1), e, v, gradients[head], E)
        for back in range(chunks):
            number = chunks - 1 - back
            begin = number * CHUNK
            count = min(CHUNK, t - begin)
            for head in range(low, high):
                turned = head >= h - backwards
                place = (row * t + (t - 1 - begin if turned else begin)) * h + head
                step = -h if turned else h
                copy(queries, place * e, step * e, chunk_query, 0, E, count, e)
                copy(keys, place * e, step * e, chunk_key, 0, E, count, e)
                copy(values, place * v, step * v, chunk_change, 0, V, count, v)
                copy(upstream, place * v, step * v, chunk_upstream, 0, V, count, v)
                copy_kept(factors, place * channels, step * channels, chunk_kept, E, count, channels)
                if delta:
                    copy(strengths, place, step, chunk_strength, 0, 1, count, 1)
                from_query[:], from_key[:], from_kept[:], from_strength[:] = 0, 0, 0, 0
                copy_transposed(borders[row, number, head].reshape(-1), e, v, border, E)
                for column in range(0, v, COLUMNS):
                    end = min(column + COLUMNS, v)
                    _recompute(
                        border,
                        chunk_key,
                        chunk_kept,
                        chunk_change,
                        chunk_strength,
                        written,
                        before,
                        held,
                        delta,
                        count,
                        column,
                        end,
                        E,
                        V,
                    )
                    _chunk_backward(
                        gradients[head],
                        before,
                        chunk_query,
                        chunk_key,
                        chunk_kept,
                        chunk_change,
                        written,
                        chunk_strength,
                        chunk_upstream,
                        from_query,
                        from_key,
                        from_value,
                        from_strength,
                        from_kept,
                        taken,
                        dtype.type(-1 if delta else 0),
                        count,
                        column,
                        end,
                        E,
                        V,
                    )
                copy(from_query, 0, E, to_queries, place * e, step * e, count, e)
                copy(from_key, 0, E, to_keys, place * e, step * e, count, e)
                copy(from_value, 0, V, to_values, place * v, step * v, count, v)
                if delta:
                    copy(from_strength, 0, 1, to_strengths, place, step, count, 1)
                if channels == 1:
                    total_rows(from_kept, E, count, to_factors, place, step)
                else:
                    copy(from_kept, 0, E, to_factors, place * e, step * e, count, e)
        for head in range(low, high):
            copy_back(gradients[head], E, e, v, to_state[row, head].reshape(-1))


# Positions read at a time, so that their buffers stay in the first-level cache; CHUNK is a multiple.
BLOCK = 16


@compiled
def _overwrite(
    matrix: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    kept_key: np.ndarray,
    kept: np.ndarray,
    value: np.ndarray,
    strength: np.ndarray,
    out: np.ndarray,
    count: int,
    e: int,
    E: int,
    V: int,
) -> None:
    """Read and write one matrix (e, V) at `count` positions of the delta rule.

    The matrix is touched once for each position: what the next key holds is found while this one is written.
    """
    for column in range(0, V, lanes(matrix)):
        held = spread(matrix.dtype.type(0))
        for i in range(e):
            held = held + spread_from(kept_key, i) * load(matrix, i * V + column)
        for n in range(count):
            new = spread_from(strength, n) * (load(value, n * V + column) - held)
            held = spread(matrix.dtype.type(0))
            read = held
            for i in range(e):
                row, here = i * V + column, n * E + i
                now = spread_from(kept, here) * load(matrix, row) + spread_from(key, here) * new
                store(matrix, row, now)
                read = read + spread_from(query, here) * now
                held = held + spread_from(kept_key, here + E) * now
            store(out, n * V + column, read)


@compiled
def _add(
    matrix: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    kept: np.ndarray,
    value: np.ndarray,
    out: np.ndarray,
    count: int,
    e: int,
    E: int,
    V: int,
) -> None:
    """Read and write one matrix (e, V) at `count` positions of gated linear attention."""
    for column in range(0, V, lanes(matrix)):
        for n in range(count):
            new, read = load(value, n * V + column), spread(matrix.dtype.type(0))
            for i in range(e):
                row, here = i * V + column, n * E + i
                now = spread_from(kept, here) * load(matrix, row) + spread_from(key, here) * new
                store(matrix, row, now)
                read = read + spread_from(query, here) * now
            store(out, n * V + column, read)


@compiled
def _forward(
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
    saves: bool,
    first: int,
    final: int,
) -> None:
    _, t, h, e = query.shape
    v, dtype = value.shape[3], query.dtype
    E, V = padded(e, query.itemsize), padded(v, query.itemsize)
    delta, channels = strength.size > 0, e if kept.ndim == 4 else 1
    queries, keys, values, outs = query.reshape(-1), key.reshape(-1), value.reshape(-1), out.reshape(-1)
    strengths, factors = strength.reshape(-1), kept.reshape(-1)
    chunk_query, chunk_kept = np.zeros(BLOCK * E, dtype), np.zeros(BLOCK * E, dtype)
    chunk_key, kept_key = np.zeros(BLOCK * E, dtype), np.zeros((BLOCK + 1) * E, dtype)
    chunk_value, chunk_out = np.zeros(BLOCK * V, dtype), np.empty(BLOCK * V, dtype)
    chunk_strength, matrices = np.empty(BLOCK, dtype), np.zeros((h, e * V), dtype)
    for row in range(first // h, (final + h - 1) // h):
        low, high = max(first - row * h, 0), min(final - row * h, h)
        for head in range(low, high):
            copy(state[row, head].reshape(-1), 0, v, matrices[head], 0, V, e, v)
        # Chunk by chunk, not head by head: memory is read once, from front to back.
        for number in range((t + BLOCK - 1) // BLOCK):
            begin = number * BLOCK
            count = min(BLOCK, t - begin)
            for head in range(low, high):
                turned = head >= h - backwards
                place = (row * t + (t - 1 - begin if turned else begin)) * h + head
                step = -h if turned else h
                copy(queries, place * e, step * e, chunk_query, 0, E, count, e)
                copy(keys, place * e, step * e, chunk_key, 0, E, count, e)
                copy(values, place * v, step * v, chunk_value, 0, V, count, v)
                copy_kept(factors, place * channels, step * channels, chunk_kept, E, count, channels)
                matrix = matrices[head]
                if saves and begin % CHUNK == 0:
                    copy(matrix, 0, V, borders[row, begin // CHUNK, head].reshape(-1), 0, v, e, v)
                if delta:
                    copy(strengths, place, step, chunk_strength, 0, 1, count, 1)
                    for i in range(count * E):
                        kept_key[i] = chunk_key[i] * chunk_kept[i]
                    _overwrite(
                        matrix,
                        chunk_query,
                        chunk_key,
                        kept_key,
                        chunk_kept,
                        chunk_value,
                        chunk_strength,
                        chunk_out,
                        count,
                        e,
                        E,
                        V,
                    )
                else:
                    _add(matrix, chunk_query, chunk_key, chunk_kept, chunk_value, chunk_out, count, e, E, V)
                copy(chunk_out, 0, V, outs, place * v, step * v, count, v)
        for head in range(low, high):
            copy(matrices[head], 0, V, last[row, head].reshape(-1), 0, v, e, v)
