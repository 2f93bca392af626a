"""The backward pass over a matrix per head, as compiled loops: `go_back`.

Matrices are transposed here, so that sums over values become sums of vectors. Buffers of a chunk of positions are
padded with zeros to whole vectors: e to E, v to V. The loops take flat arrays, as `simd` does, and positions in the
order in which the head reads them.
"""

import numpy as np

from longspan.ops._rows import copy, copy_back, copy_kept, copy_transposed, padded, total_rows
from longspan.ops.compiled import compiled
from longspan.ops.fast_weights.operators import CHUNK
from longspan.ops.simd import lanes, load, put, spread, spread_from, store, total

# Columns of values at a time: the buffer of matrices takes CHUNK x COLUMNS x E numbers.
COLUMNS = 16


@compiled
def _again(
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
def _return(
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
def go_back(
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
                    _again(
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
                    _return(
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
