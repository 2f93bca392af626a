"""Vectors of compiled loops against NumPy."""

import numpy as np
import pytest

from longspan.ops.compiled import compiled
from longspan.ops.simd import BYTES, lanes, load, put, spread, spread_from, store, total

either_type = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@compiled
def combine(one: np.ndarray, other: np.ndarray, out: np.ndarray) -> int:
    """Fill `out` with 2 (one - other) one_0 + other, and write the total of the last vector to its first place."""
    last = spread(one.dtype.type(0))
    for i in range(0, len(one), lanes(one)):
        a, b = load(one, i), load(other, i)
        last = (a - b) * spread(one.dtype.type(2)) * spread_from(one, 0) + b
        store(out, i, last)
    put(out, 0, total(last))
    return lanes(one)


@either_type
def test_vectors_compute_as_numpy_does(dtype: type[np.floating]) -> None:
    # Small whole numbers: every order of sums has the same result.
    one, other = np.arange(1, 33).astype(dtype), (np.arange(32) % 5).astype(dtype)
    out = np.empty_like(one)
    count = combine(one, other, out)
    assert count == BYTES // one.itemsize
    expected = 2 * (one - other) * one[0] + other
    assert out[0] == expected[-count:].sum()
    np.testing.assert_array_equal(out[1:], expected[1:])


@compiled
def copied(source: np.ndarray, at: int, target: np.ndarray) -> None:
    store(target, at, load(source, at))


@either_type
@pytest.mark.parametrize("at", [0, 1, 3])
def test_vectors_begin_anywhere(dtype: type[np.floating], at: int) -> None:
    """No address needs to be a multiple of a vector's size, and nothing beyond the vector is touched."""
    source, target = np.arange(40).astype(dtype), np.full(40, -1, dtype)
    copied(source, at, target)
    count = BYTES // source.itemsize
    np.testing.assert_array_equal(target[at : at + count], source[at : at + count])
    assert (target[:at] == -1).all()
    assert (target[at + count :] == -1).all()
