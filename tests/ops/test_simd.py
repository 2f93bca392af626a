"""Vectors of compiled loops against NumPy."""

import numpy as np
import pytest

from longspan.ops.compiled import compiled
from longspan.ops.simd import BYTES, exp, lanes, load, maximum, minimum, put, spread, spread_from, store, total

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


@compiled
def exponentials(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(0, len(x), lanes(x)):
        store(out, i, exp(load(x, i)))


@compiled
def limited(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    one = spread(x.dtype.type(1))
    store(low, 0, minimum(load(x, 0), one))
    store(high, 0, maximum(load(x, 0), one))


@either_type
def test_exponentials_are_exact_to_two_units(dtype: type[np.floating]) -> None:
    lowest, highest = (-87, 88) if dtype == np.float32 else (-708, 709)
    generator = np.random.default_rng(0)
    x = np.concatenate([generator.uniform(lowest, highest, 4096), generator.uniform(-1, 1, 4096), np.zeros(16)])
    x = x.astype(dtype)
    out = np.empty_like(x)
    exponentials(x, out)
    expected = np.exp(x.astype(np.longdouble))
    assert (np.abs(out - expected) / np.spacing(expected.astype(dtype))).max() <= 2
    assert (out[-16:] == 1).all()


@either_type
def test_exponentials_of_extremes(dtype: type[np.floating]) -> None:
    x = np.full(16, -1000, dtype)
    x[:2] = np.nan, -np.inf
    out = np.empty_like(x)
    exponentials(x, out)
    assert np.isnan(out[0])
    assert (out[1:] < np.finfo(dtype).tiny * 4).all()


@either_type
def test_limits_keep_nan(dtype: type[np.floating]) -> None:
    x = np.array([np.nan, -np.inf, np.inf, 0, 1, 2] + [0] * 10, dtype)
    low, high = np.empty_like(x), np.empty_like(x)
    limited(x, low, high)
    count = BYTES // x.itemsize
    np.testing.assert_array_equal(low[:count], np.minimum(x, 1)[:count])
    np.testing.assert_array_equal(high[:count], np.maximum(x, 1)[:count])
