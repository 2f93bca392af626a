"""Rows of numbers copied to and from the buffers of compiled loops, whose rows are padded to whole vectors."""

import numpy as np

from longspan.ops.compiled import compiled
from longspan.ops.simd import BYTES, lanes, load, spread, spread_from, store, total


@compiled
def padded(width: int, itemsize: int) -> int:
    count = BYTES // itemsize
    return (width + count - 1) // count * count


@compiled
def copy(
    source: np.ndarray,
    start: int,
    step: int,
    target: np.ndarray,
    begin: int,
    stride: int,
    count: int,
    width: int,
) -> None:
    """Copy `count` rows of `width` numbers, `step` apart from `start` on, to rows `stride` apart from `begin` on."""
    whole = width // lanes(source) * lanes(source)
    for n in range(count):
        for c in range(0, whole, lanes(source)):
            store(target, begin + n * stride + c, load(source, start + n * step + c))
        for c in range(whole, width):
            target[begin + n * stride + c] = source[start + n * step + c]


@compiled
def copy_kept(
    kept: np.ndarray, start: int, step: int, target: np.ndarray, padded: int, count: int, channels: int
) -> None:
    """The same with what is kept; a factor per head is that of each channel."""
    if channels > 1:
        copy(kept, start, step, target, 0, padded, count, channels)
        return
    for n in range(count):
        for c in range(0, padded, lanes(kept)):
            store(target, n * padded + c, spread_from(kept, start + n * step))


@compiled
def total_rows(source: np.ndarray, padded: int, count: int, target: np.ndarray, at: int, step: int) -> None:
    """Add up the numbers of each row."""
    for n in range(count):
        sums = spread(source.dtype.type(0))
        for c in range(0, padded, lanes(source)):
            sums = sums + load(source, n * padded + c)
        target[at + n * step] = total(sums)


@compiled
def copy_transposed(source: np.ndarray, rows: int, columns: int, target: np.ndarray, padded: int) -> None:
    """Copy a matrix (rows, columns) to its transpose, whose rows have `padded` numbers."""
    for i in range(rows):
        for c in range(columns):
            target[c * padded + i] = source[i * columns + c]


@compiled
def copy_back(source: np.ndarray, padded: int, rows: int, columns: int, target: np.ndarray) -> None:
    for i in range(rows):
        for c in range(columns):
            target[i * columns + c] = source[c * padded + i]
