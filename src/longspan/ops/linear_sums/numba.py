"""The sums of linear attention, what queries read from them, and gradients, as compiled loops for a CPU.

NumPy arrays (b, t, h, ...) in and out, no tensors, all of them C-contiguous; those to fill come last. The features
φ = elu + 1 are computed where they are used and never stored, for queries after a shift that makes the largest one.
Blocks of positions and the matrix of a head stay in a processor's cache. Rows and heads are independent of each other,
so they are divided among threads of this process.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from longspan.ops._rows import copy, copy_transposed, padded
from longspan.ops.compiled import compiled
from longspan.ops.linear_sums.plain import TINY, normaliser_gradient
from longspan.ops.simd import exp, lanes, load, maximum, minimum, spread, spread_from, store, total
from longspan.ops.threads import in_slices

# Positions of a block, a multiple of TOGETHER.
BLOCK = 32
# Rows of a product that are computed at a time: as many sums, in registers, do not wait for each other.
TOGETHER = 4
# Products with entries of a matrix for which handing a slice to another thread pays off.
WORTH_SHARING = 1 << 20


def features(x: np.ndarray, mask: np.ndarray, out: np.ndarray, shifted: bool) -> None:
    """Fill `out` with φ(x), zeros where `mask` (b, t) is False; without a mask it is (b, 0)."""
    in_slices(_features_of_rows, (x, mask, shifted, out), x.shape[0] * x.shape[1], _slices(x, 16))


def sum_up(key: np.ndarray, value: np.ndarray, mask: np.ndarray, sums: np.ndarray, weights: np.ndarray) -> None:
    """Fill Σ φ(k) vᵀ (b, h, e, v) and Σ φ(k) (b, h, e)."""
    _share(_sum_up, (key, value, mask, sums, weights), key, value)


def sum_up_backward(
    grad_sums: np.ndarray,
    grad_weights: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray,
    to_key: np.ndarray,
    to_value: np.ndarray,
) -> None:
    """Fill the gradients of keys and values, given those of the sums: φ' (dS v + dz) and dSᵀ φ(k)."""
    _share(_sum_up_backward, (grad_sums, grad_weights, key, value, mask, to_key, to_value), key, value)


def read(
    query: np.ndarray,
    sums: np.ndarray,
    weights: np.ndarray,
    out: np.ndarray,
    normaliser: np.ndarray,
) -> None:
    """Fill φ(q)ᵀ S / φ(q)·z (b, t, h, v) and φ(q)·z (b, t, h), below TINY replaced by it as a divisor."""
    _share(_read, (query, sums, weights, out, normaliser, TINY), query, out)


def read_backward(
    gradient: np.ndarray,
    query: np.ndarray,
    sums: np.ndarray,
    weights: np.ndarray,
    out: np.ndarray,
    normaliser: np.ndarray,
    to_query: np.ndarray,
    to_sums: np.ndarray,
    to_weights: np.ndarray,
) -> None:
    """Fill the gradients of queries and sums, with g = dy / normaliser: φ' (S g + dn z), Σ φ(q) gᵀ and Σ φ(q) dn."""
    tensors = (torch.from_numpy(x) for x in (gradient, out, normaliser))
    given = (gradient, *(x.numpy() for x in normaliser_gradient(*tensors)), query, sums, weights)
    _share(_read_backward, (*given, to_query, to_sums, to_weights), query, gradient)


def _share(kernel: Callable[..., None], arguments: tuple[Any, ...], one: np.ndarray, other: np.ndarray) -> None:
    rows, _, heads, _ = one.shape
    in_slices(kernel, arguments, rows * heads, _slices(one, other.shape[3]))


def _slices(x: np.ndarray, products: int) -> int:
    return x.size * products // WORTH_SHARING


@compiled
def _features(buffer: np.ndarray, count: int, width: int, stride: int, shifted: bool) -> None:
    """Replace rows of a buffer by their features, φ(x - min(max x, 0)) if `shifted`, and what follows by zeros."""
    zero = spread(buffer.dtype.type(0))
    for n in range(count):
        at, shift = n * stride, buffer.dtype.type(0)
        if shifted:
            largest = buffer[at]
            for c in range(at + 1, at + width):
                largest = max(largest, buffer[c])
            shift = min(largest, shift)
        for c in range(at, at + stride, lanes(buffer)):
            x = load(buffer, c) - spread(shift)
            store(buffer, c, exp(minimum(x, zero)) + maximum(x, zero))
        for c in range(at + width, at + stride):
            buffer[c] = 0


@compiled
def _hide(buffer: np.ndarray, mask: np.ndarray, row: int, begin: int, count: int, stride: int) -> None:
    """Fill rows of a buffer with zeros where there is no real position."""
    if mask.shape[1]:
        for n in range(count):
            if not mask[row, begin + n]:
                buffer[n * stride : (n + 1) * stride] = 0


@compiled
def _add_products(one: np.ndarray, other: np.ndarray, matrix: np.ndarray, count: int, E: int, V: int) -> None:
    """Add Σ_n one_n other_nᵀ, of rows of E and V numbers, to a matrix (E, V)."""
    for column in range(0, V, lanes(matrix)):
        for i in range(0, E, 4):
            at = i * V + column
            a, b, c, d = load(matrix, at), load(matrix, at + V), load(matrix, at + 2 * V), load(matrix, at + 3 * V)
            for n in range(count):
                x, k = load(other, n * V + column), n * E + i
                a, b = a + spread_from(one, k) * x, b + spread_from(one, k + 1) * x
                c, d = c + spread_from(one, k + 2) * x, d + spread_from(one, k + 3) * x
            store(matrix, at, a)
            store(matrix, at + V, b)
            store(matrix, at + 2 * V, c)
            store(matrix, at + 3 * V, d)


@compiled
def _products(one: np.ndarray, matrix: np.ndarray, out: np.ndarray, count: int, e: int, E: int, V: int) -> None:
    """Fill rows of V numbers with those of `one`, e of E numbers, times a matrix (e, V).

    `count` is rounded up to a multiple of TOGETHER: there is room for it.
    """
    for column in range(0, V, lanes(matrix)):
        for n in range(0, count, TOGETHER):
            a = spread(matrix.dtype.type(0))
            b, c, d = a, a, a
            for i in range(e):
                x, k = load(matrix, i * V + column), n * E + i
                a, b = a + spread_from(one, k) * x, b + spread_from(one, k + E) * x
                c, d = c + spread_from(one, k + 2 * E) * x, d + spread_from(one, k + 3 * E) * x
            store(out, n * V + column, a)
            store(out, (n + 1) * V + column, b)
            store(out, (n + 2) * V + column, c)
            store(out, (n + 3) * V + column, d)


@compiled
def _to_input(change: np.ndarray, found: np.ndarray, count: int, stride: int) -> None:
    """Multiply gradients of features by φ' = min(φ, 1)."""
    one = spread(found.dtype.type(1))
    for c in range(0, count * stride, lanes(found)):
        store(change, c, load(change, c) * minimum(load(found, c), one))


@compiled
def _features_of_rows(x: np.ndarray, mask: np.ndarray, shifted: bool, out: np.ndarray, first: int, last: int) -> None:
    _, t, h, e = x.shape
    E, source, target = padded(e, x.itemsize), x.reshape(-1), out.reshape(-1)
    buffer = np.zeros(h * E, x.dtype)
    for position in range(first, last):
        copy(source, position * h * e, e, buffer, 0, E, h, e)
        _features(buffer, h, e, E, shifted)
        if mask.shape[1] and not mask[position // t, position % t]:
            buffer[:] = 0
        copy(buffer, 0, E, target, position * h * e, e, h, e)


@compiled
def _sum_up(
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray,
    sums: np.ndarray,
    weights: np.ndarray,
    first: int,
    last: int,
) -> None:
    _, t, h, e = key.shape
    v, dtype = value.shape[3], key.dtype
    E, V = padded(e, key.itemsize), padded(v, key.itemsize)
    keys, values = key.reshape(-1), value.reshape(-1)
    one, other = np.zeros(BLOCK * E, dtype), np.zeros(BLOCK * V, dtype)
    matrices, totals = np.zeros((h, E * V), dtype), np.zeros((h, E), dtype)
    for row in range(first // h, (last + h - 1) // h):
        low, high = max(first - row * h, 0), min(last - row * h, h)
        matrices[:] = 0
        totals[:] = 0
        # Block by block, not head by head: memory is read once, from front to back.
        for begin in range(0, t, BLOCK):
            count = min(BLOCK, t - begin)
            for head in range(low, high):
                place = (row * t + begin) * h + head
                copy(keys, place * e, h * e, one, 0, E, count, e)
                copy(values, place * v, h * v, other, 0, V, count, v)
                _features(one, count, e, E, False)
                _hide(one, mask, row, begin, count, E)
                _add_products(one, other, matrices[head], count, E, V)
                for c in range(0, E, lanes(one)):
                    sum_of_block = spread(one.dtype.type(0))
                    for n in range(count):
                        sum_of_block = sum_of_block + load(one, n * E + c)
                    store(totals[head], c, load(totals[head], c) + sum_of_block)
        for head in range(low, high):
            copy(matrices[head], 0, V, sums[row, head].reshape(-1), 0, v, e, v)
            weights[row, head] = totals[head, :e]


@compiled
def _sum_up_backward(
    grad_sums: np.ndarray,
    grad_weights: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray,
    to_key: np.ndarray,
    to_value: np.ndarray,
    first: int,
    last: int,
) -> None:
    _, t, h, e = key.shape
    v, dtype = value.shape[3], key.dtype
    E, V = padded(e, key.itemsize), padded(v, key.itemsize)
    keys, values, to_keys, to_values = key.reshape(-1), value.reshape(-1), to_key.reshape(-1), to_value.reshape(-1)
    found, change = np.zeros(BLOCK * E, dtype), np.zeros(BLOCK * E, dtype)
    given, written = np.zeros(BLOCK * V, dtype), np.zeros(BLOCK * V, dtype)
    matrices, turned, totals = np.zeros((h, e * V), dtype), np.zeros((h, v * E), dtype), np.zeros((h, E), dtype)
    for row in range(first // h, (last + h - 1) // h):
        low, high = max(first - row * h, 0), min(last - row * h, h)
        for head in range(low, high):
            upstream = grad_sums[row, head].reshape(-1)
            copy(upstream, 0, v, matrices[head], 0, V, e, v)
            copy_transposed(upstream, e, v, turned[head], E)
            totals[head, :e] = grad_weights[row, head]
        for begin in range(0, t, BLOCK):
            count = min(BLOCK, t - begin)
            for head in range(low, high):
                place = (row * t + begin) * h + head
                copy(keys, place * e, h * e, found, 0, E, count, e)
                copy(values, place * v, h * v, given, 0, V, count, v)
                _features(found, count, e, E, False)
                _hide(found, mask, row, begin, count, E)
                _products(found, matrices[head], written, count, e, E, V)
                copy(written, 0, V, to_values, place * v, h * v, count, v)
                _products(given, turned[head], change, count, v, V, E)
                for n in range(count):
                    for c in range(0, E, lanes(change)):
                        store(change, n * E + c, load(change, n * E + c) + load(totals[head], c))
                _to_input(change, found, count, E)
                copy(change, 0, E, to_keys, place * e, h * e, count, e)


@compiled
def _read(
    query: np.ndarray,
    sums: np.ndarray,
    weights: np.ndarray,
    out: np.ndarray,
    normaliser: np.ndarray,
    tiny: float,
    first: int,
    last: int,
) -> None:
    _, t, h, e = query.shape
    v, dtype = out.shape[3], query.dtype
    E, V = padded(e, query.itemsize), padded(v, query.itemsize)
    queries, outs, normalisers = query.reshape(-1), out.reshape(-1), normaliser.reshape(-1)
    found, made = np.zeros(BLOCK * E, dtype), np.zeros(BLOCK * V, dtype)
    matrices, totals = np.zeros((h, e * V), dtype), np.zeros((h, E), dtype)
    for row in range(first // h, (last + h - 1) // h):
        low, high = max(first - row * h, 0), min(last - row * h, h)
        for head in range(low, high):
            copy(sums[row, head].reshape(-1), 0, v, matrices[head], 0, V, e, v)
            totals[head, :e] = weights[row, head]
        for begin in range(0, t, BLOCK):
            count = min(BLOCK, t - begin)
            for head in range(low, high):
                place = (row * t + begin) * h + head
                copy(queries, place * e, h * e, found, 0, E, count, e)
                _features(found, count, e, E, True)
                _products(found, matrices[head], made, count, e, E, V)
                for n in range(count):
                    products = spread(found.dtype.type(0))
                    for c in range(0, E, lanes(found)):
                        products = products + load(found, n * E + c) * load(totals[head], c)
                    norm = total(products)
                    normalisers[place + n * h] = norm
                    factor = spread(dtype.type(1 / (dtype.type(tiny) if norm < tiny else norm)))
                    for c in range(n * V, (n + 1) * V, lanes(made)):
                        store(made, c, factor * load(made, c))
                copy(made, 0, V, outs, place * v, h * v, count, v)


@compiled
def _read_backward(
    gradient: np.ndarray,
    to_normaliser: np.ndarray,
    inverse: np.ndarray,
    query: np.ndarray,
    sums: np.ndarray,
    weights: np.ndarray,
    to_query: np.ndarray,
    to_sums: np.ndarray,
    to_weights: np.ndarray,
    first: int,
    last: int,
) -> None:
    _, t, h, e = query.shape
    v, dtype = gradient.shape[3], query.dtype
    E, V = padded(e, query.itemsize), padded(v, query.itemsize)
    queries, upstreams, to_queries = query.reshape(-1), gradient.reshape(-1), to_query.reshape(-1)
    to_norms, inverses = to_normaliser.reshape(-1), inverse.reshape(-1)
    found, change, upstream = np.zeros(BLOCK * E, dtype), np.zeros(BLOCK * E, dtype), np.zeros(BLOCK * V, dtype)
    turned, totals = np.zeros((h, v * E), dtype), np.zeros((h, E), dtype)
    matrices, to_totals = np.zeros((h, E * V), dtype), np.zeros((h, E), dtype)
    for row in range(first // h, (last + h - 1) // h):
        low, high = max(first - row * h, 0), min(last - row * h, h)
        matrices[:] = 0
        to_totals[:] = 0
        for head in range(low, high):
            copy_transposed(sums[row, head].reshape(-1), e, v, turned[head], E)
            totals[head, :e] = weights[row, head]
        for begin in range(0, t, BLOCK):
            count = min(BLOCK, t - begin)
            for head in range(low, high):
                place = (row * t + begin) * h + head
                copy(queries, place * e, h * e, found, 0, E, count, e)
                copy(upstreams, place * v, h * v, upstream, 0, V, count, v)
                _features(found, count, e, E, True)
                for n in range(count):
                    factor = spread_from(inverses, place + n * h)
                    for c in range(n * V, (n + 1) * V, lanes(upstream)):
                        store(upstream, c, factor * load(upstream, c))
                _add_products(found, upstream, matrices[head], count, E, V)
                _products(upstream, turned[head], change, count, v, V, E)
                for n in range(count):
                    factor = spread_from(to_norms, place + n * h)
                    for c in range(0, E, lanes(found)):
                        here = n * E + c
                        store(change, here, load(change, here) + factor * load(totals[head], c))
                        store(to_totals[head], c, load(to_totals[head], c) + factor * load(found, here))
                _to_input(change, found, count, E)
                copy(change, 0, E, to_queries, place * e, h * e, count, e)
        for head in range(low, high):
            copy(matrices[head], 0, V, to_sums[row, head].reshape(-1), 0, v, e, v)
            to_weights[row, head] = to_totals[head, :e]
