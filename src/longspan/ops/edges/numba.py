"""Attention over edges, its gradients and the order of edges as compiled loops.

NumPy arrays in and out, no tensors, all of them C-contiguous. The loops go from node to node over the edges that end
there, so that edges in the order of their targets are read from front to back. Heads are independent of each other,
so they are divided among threads of this process.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from longspan.ops.compiled import compiled
from longspan.ops.threads import in_slices

# Numbers that a thread should have to read for handing it a part to be worth it.
WORTH_SHARING = 1 << 18
# Edges whose sources are read ahead at a time, so that a processor waits for many of them at once.
AHEAD = 128


def forward(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
    keep: np.ndarray,
    bias: np.ndarray,
    factor: np.ndarray,
    out: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Fill `out` (n, h, v) and `weights` (k, h) as `plain_attention` returns them."""
    given = (query, key, value, source, *_by_node(target, len(query)), keep, bias, factor, out, weights)
    _share(_forward, given, key, value, source)


def backward(
    gradient: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
    bias: np.ndarray,
    factor: np.ndarray,
    out: np.ndarray,
    weights: np.ndarray,
    to_query: np.ndarray,
    to_key: np.ndarray,
    to_value: np.ndarray,
    to_bias: np.ndarray,
) -> None:
    """Fill the gradients, which are zeros before, as `plain_attention_gradient` returns them."""
    places = _by_node(target, len(query))
    given = (gradient, query, key, value, source, *places, factor, out, weights, to_query, to_key, to_value, to_bias)
    _share(_backward, given, key, value, source)


def by_target(source: np.ndarray, target: np.ndarray, order: np.ndarray, sources: int, targets: int) -> None:
    """Fill `order` as `plain_by_target` returns it, in linear time."""
    first = np.empty_like(order)
    _counting_sort(source, sources, np.arange(len(order)), first)
    _counting_sort(target, targets, first, order)


def _share(
    kernel: Callable[..., None],
    arguments: tuple[Any, ...],
    key: np.ndarray,
    value: np.ndarray,
    source: np.ndarray,
) -> None:
    heads = value.shape[1]
    numbers = len(source) * heads * (key.shape[2] + value.shape[2])
    in_slices(kernel, arguments, heads, numbers // WORTH_SHARING)


def _by_node(target: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the edges of each node begin in the order of targets, and this order: (0,) if they are in it."""
    starts = np.zeros(nodes + 1, np.int64)
    if _counted(target, starts):
        return starts, np.empty(0, np.int64)
    order = np.empty(len(target), np.int64)
    _counting_sort(target, nodes, np.arange(len(target)), order)
    return starts, order


@compiled
def _counted(target: np.ndarray, starts: np.ndarray) -> bool:
    """Fill `starts` with the number of edges whose target is lower, and return whether targets are in order."""
    ordered = True
    for i in range(len(target)):
        starts[target[i] + 1] += 1
        if i and target[i] < target[i - 1]:
            ordered = False
    for node in range(len(starts) - 1):
        starts[node + 1] += starts[node]
    return ordered


@compiled
def _counting_sort(numbers: np.ndarray, limit: int, before: np.ndarray, after: np.ndarray) -> None:
    """Fill `after` with the places in `before`, sorted by the numbers there; those of equal numbers stay in order."""
    place = np.zeros(limit + 1, np.int64)
    for i in range(len(numbers)):
        place[numbers[i] + 1] += 1
    for number in range(limit):
        place[number + 1] += place[number]
    for i in range(len(before)):
        number = numbers[before[i]]
        after[place[number]] = before[i]
        place[number] += 1


# Arrays of one edge, (h, e) or (h,), are cut once for each edge: a slice costs as much as a short loop over channels.


@compiled
def _fetch(rows: np.ndarray, source: np.ndarray, order: np.ndarray, begin: int, low: int, high: int) -> float:
    """Read a number of each cache line of the next rows, so that they are in the cache; somebody must use the sum."""
    total = rows.dtype.type(0)
    step = 64 // rows.itemsize
    for place in range(begin, min(begin + AHEAD, len(source))):
        row = source[order[place] if order.size else place]
        for c in range(low, high, step):
            total += rows[row, c]
    return total


@compiled
def _score(
    query: np.ndarray, key: np.ndarray, scale: float, scores: np.ndarray, largest: np.ndarray, low: int, high: int
) -> None:
    """Add the products of a query and a key to the `scores` of an edge, and keep the largest of each head."""
    for head in range(low, high):
        total = scores[head]
        for c in range(query.shape[1]):
            total += scale * query[head, c] * key[head, c]
        scores[head] = total
        largest[head] = max(largest[head], total)


@compiled
def _weigh(scores: np.ndarray, largest: np.ndarray, total: np.ndarray, low: int, high: int) -> None:
    for head in range(low, high):
        weight = np.exp(scores[head] - largest[head])
        scores[head] = weight
        total[head] += weight


@compiled
def _pool(value: np.ndarray, weights: np.ndarray, out: np.ndarray, low: int, high: int) -> None:
    for head in range(low, high):
        weight = weights[head]
        for c in range(value.shape[1]):
            out[head, c] += weight * value[head, c]


@compiled
def _dot(one: np.ndarray, other: np.ndarray, found: np.ndarray, low: int, high: int) -> None:
    """Write the product of two arrays (h, e) for each head."""
    for head in range(low, high):
        total = one[head, 0] * other[head, 0]
        for c in range(1, one.shape[1]):
            total += one[head, c] * other[head, c]
        found[head] = total


@compiled
def _forward(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    source: np.ndarray,
    starts: np.ndarray,
    order: np.ndarray,
    keep: np.ndarray,
    bias: np.ndarray,
    factor: np.ndarray,
    out: np.ndarray,
    weights: np.ndarray,
    low: int,
    high: int,
) -> None:
    scale = query.dtype.type(1 / math.sqrt(max(query.shape[2], 1)))
    largest, total, weighed = np.empty(high, query.dtype), np.empty(high, query.dtype), np.empty(high, query.dtype)
    keys, values = key.reshape(len(key), -1), value.reshape(len(value), -1)
    fetched, sink = 0, np.zeros(1, query.dtype)
    none, one = query.dtype.type(0), query.dtype.type(1)
    for node in range(len(query)):
        begin, end = starts[node], starts[node + 1]
        if begin == end:
            continue
        largest[:], total[:] = -np.inf, none
        own, pooled = query[node], out[node]
        for place in range(begin, end):
            i = order[place] if order.size else place
            if place == fetched:
                sink[0] += _fetch(keys, source, order, place, low * key.shape[2], high * key.shape[2])
                sink[0] += _fetch(values, source, order, place, low * value.shape[2], high * value.shape[2])
                fetched += AHEAD
            if keep.size and not keep[i]:
                continue
            scores = weights[i]
            for head in range(low, high):
                scores[head] = bias[i, head] if bias.size else none
            _score(own, key[source[i]], scale, scores, largest, low, high)
        for place in range(begin, end):
            i = order[place] if order.size else place
            if keep.size and not keep[i]:
                weights[i, low:high] = 0
            else:
                _weigh(weights[i], largest, total, low, high)
        for head in range(low, high):
            total[head] = one / total[head] if total[head] > 0 else none
        for place in range(begin, end):
            i = order[place] if order.size else place
            shares = weights[i]
            for head in range(low, high):
                shares[head] *= total[head]
                weighed[head] = shares[head] * factor[i, head] if factor.size else shares[head]
            _pool(value[source[i]], weighed, pooled, low, high)


@compiled
def _backward(
    gradient: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    source: np.ndarray,
    starts: np.ndarray,
    order: np.ndarray,
    factor: np.ndarray,
    out: np.ndarray,
    weights: np.ndarray,
    to_query: np.ndarray,
    to_key: np.ndarray,
    to_value: np.ndarray,
    to_bias: np.ndarray,
    low: int,
    high: int,
) -> None:
    scale = query.dtype.type(1 / math.sqrt(max(query.shape[2], 1)))
    whole, change, weighed = np.empty(high, query.dtype), np.empty(high, query.dtype), np.empty(high, query.dtype)
    keys, values = key.reshape(len(key), -1), value.reshape(len(value), -1)
    to_keys, to_values = to_key.reshape(len(key), -1), to_value.reshape(len(value), -1)
    fetched, sink, one = 0, np.zeros(1, query.dtype), query.dtype.type(1)
    for node in range(len(query)):
        begin, end = starts[node], starts[node + 1]
        if begin == end:
            continue
        upstream, own, to_own = gradient[node], query[node], to_query[node]
        _dot(upstream, out[node], whole, low, high)
        for place in range(begin, end):
            i = order[place] if order.size else place
            other = source[i]
            if place == fetched:
                for rows in (keys, to_keys):
                    sink[0] += _fetch(rows, source, order, place, low * key.shape[2], high * key.shape[2])
                for rows in (values, to_values):
                    sink[0] += _fetch(rows, source, order, place, low * value.shape[2], high * value.shape[2])
                fetched += AHEAD
            _dot(upstream, value[other], change, low, high)
            for head in range(low, high):
                more = factor[i, head] if factor.size else one
                weighed[head] = weights[i, head] * more
                change[head] = weights[i, head] * (change[head] * more - whole[head])
                if to_bias.size:
                    to_bias[i, head] = change[head]
                change[head] *= scale
            _pool(upstream, weighed, to_value[other], low, high)
            _pool(key[other], change, to_own, low, high)
            _pool(own, change, to_key[other], low, high)
