"""Vectors scaled to a length, and their gradients, as compiled loops.

NumPy arrays (..., e) in and out, no tensors, all of them C-contiguous.
"""

import math
from collections.abc import Callable

import numpy as np

from longspan.ops.compiled import compiled
from longspan.ops.simd import lanes, load, spread, store, total
from longspan.ops.threads import in_slices

# Numbers of a slice for which handing it to another thread pays off.
WORTH_SHARING = 1 << 18
# A sum of squares up to this is neither infinite nor has any that was.
LARGE = 1e30


def forward(x: np.ndarray, out: np.ndarray, length: float, epsilon: float) -> None:
    """Fill `out` with x · length / √(|x|² + epsilon) of each vector."""
    _share(_forward, (x, out), length, epsilon)


def backward(gradient: np.ndarray, x: np.ndarray, to_x: np.ndarray, length: float, epsilon: float) -> None:
    """Fill `to_x` with r (dy - y (y·dy) / length²), y = r x being what `forward` fills."""
    _share(_backward, (gradient, x, to_x), length, epsilon)


def _share(kernel: Callable[..., None], arrays: tuple[np.ndarray, ...], length: float, epsilon: float) -> None:
    rows = [array.reshape(-1, array.shape[-1]) for array in arrays]
    in_slices(kernel, (*rows, length, epsilon), len(rows[0]), rows[0].size // WORTH_SHARING)


@compiled
def _dot(one: np.ndarray, other: np.ndarray, at: int, width: int) -> float:
    whole, sums = width // lanes(one) * lanes(one), spread(one.dtype.type(0))
    for c in range(at, at + whole, lanes(one)):
        sums = sums + load(one, c) * load(other, c)
    found = total(sums)
    for c in range(at + whole, at + width):
        found += one[c] * other[c]
    return found


@compiled
def _factor(x: np.ndarray, at: int, width: int, length: float, epsilon: float) -> float:
    """Return length / √(|x|² + epsilon)."""
    squares = np.float64(_dot(x, x, at, width))
    if squares <= LARGE:
        return x.dtype.type(length / math.sqrt(squares + epsilon))
    largest, squares = np.float64(0), np.float64(0)
    for c in range(at, at + width):
        largest = max(largest, abs(np.float64(x[c])))
    for c in range(at, at + width):
        squares += (x[c] / largest) ** 2
    return x.dtype.type(length / math.sqrt(squares + epsilon / largest / largest) / largest)


@compiled
def _forward(x: np.ndarray, out: np.ndarray, length: float, epsilon: float, first: int, last: int) -> None:
    width, source, target = x.shape[1], x.reshape(-1), out.reshape(-1)
    whole = width // lanes(source) * lanes(source)
    for at in range(first * width, last * width, width):
        factor = _factor(source, at, width, length, epsilon)
        for c in range(at, at + whole, lanes(source)):
            store(target, c, spread(factor) * load(source, c))
        for c in range(at + whole, at + width):
            target[c] = factor * source[c]


@compiled
def _backward(
    gradient: np.ndarray, x: np.ndarray, to_x: np.ndarray, length: float, epsilon: float, first: int, last: int
) -> None:
    width, source, upstream, target = x.shape[1], x.reshape(-1), gradient.reshape(-1), to_x.reshape(-1)
    whole, y = width // lanes(source) * lanes(source), np.empty(x.shape[1], x.dtype)
    for at in range(first * width, last * width, width):
        factor = _factor(source, at, width, length, epsilon)
        along = upstream.dtype.type(0)
        for c in range(width):
            y[c] = factor * source[at + c]
            along += y[c] * upstream[at + c]
        along = x.dtype.type(along / (length * length))
        for c in range(0, whole, lanes(source)):
            store(target, at + c, spread(factor) * (load(upstream, at + c) - spread(along) * load(y, c)))
        for c in range(whole, width):
            target[at + c] = factor * (upstream[at + c] - along * y[c])
