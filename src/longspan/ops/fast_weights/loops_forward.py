"""The forward pass over a matrix per head, as compiled loops: `go_on`.

Buffers of a block of positions are padded to whole vectors: e to E, v to V. The loops take flat arrays, as `simd` does,
and positions in the order in which the head reads them.
"""

import numpy as np

from longspan.ops._rows import copy, copy_kept, padded
from longspan.ops.compiled import compiled
from longspan.ops.fast_weights.operators import CHUNK
from longspan.ops.simd import lanes, load, spread, spread_from, store

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
def go_on(
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
                if borders.size and begin % CHUNK == 0:
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
