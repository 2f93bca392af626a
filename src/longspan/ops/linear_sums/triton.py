"""The sums of linear attention, what queries read from them, and gradients, as kernels for a GPU.

The features φ = elu + 1 are computed where they are used and never stored, for queries after a shift that makes the
largest one. Sums over positions are divided among programs, which PyTorch adds up. All sums are in at least float32,
and products are not rounded to fewer digits. Tensors are (b, t, h, ...) and C-contiguous; those to fill come last.

Checked in Triton's interpreter, and compiled for GPUs; neither run nor timed on one.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from longspan.ops._tiles import columns, rows, width
from longspan.ops.linear_sums.plain import TINY, normaliser_gradient

# Positions, and columns of the values, of a block, and warps of a program.
T, V, WARPS = 32, 32, 8
# Programs that are enough to keep a GPU busy, and blocks of positions below which dividing them further costs more.
ENOUGH, FEWEST = 512, 8


@triton.jit
def _features(source, place, real, e, channel, kind, QUERY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return φ (T, E) of positions, zero where there is none; that of queries is shifted by their largest channel."""
    mask = real[:, None] & (channel < e)[None, :]
    x = tl.load(source + place[:, None] * e + channel[None, :], mask=mask, other=0).to(kind)
    if QUERY:
        largest = tl.max(tl.where((channel < e)[None, :], x, -float("inf")), 1)
        x -= tl.where(largest < 0, largest, 0.0)[:, None]
    # Written so that negative numbers keep their digits, and NaN stays.
    return tl.where(mask, tl.where(x > 0, x + 1, tl.exp(tl.where(x > 0, 0.0, x))), 0.0)


@triton.jit
def _real(mask, head, h, t, at, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    real = at < t
    if MASKED:
        real = real & (tl.load(mask + head // h * t + at, mask=real, other=0) != 0)
    return real


@triton.jit
def _sum(  # type: ignore[no-untyped-def]
    x,
    value,
    mask,
    factor,
    weighing,
    sums,
    weights,
    t,
    h,
    e,
    v,
    blocks,
    QUERY: tl.constexpr,
    MASKED: tl.constexpr,
    T: tl.constexpr,
    E: tl.constexpr,
    V: tl.constexpr,
):
    """Fill the sums (parts, b·h, e, v) of φ(x) valueᵀ and (parts, b·h, e) of φ(x) over a part of the positions. Those
    of queries are weighed by a `factor` and by what is `weighing` (b, t, h)."""
    head, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel, column = tl.arange(0, E), tl.program_id(2) * V + tl.arange(0, V)
    kind = sums.dtype.element_ty
    total, weight = tl.zeros((E, V), kind), tl.zeros((E,), kind)
    for number in range(part * blocks, (part + 1) * blocks):
        at = number * T + tl.arange(0, T)
        real = _real(mask, head, h, t, at, MASKED)
        place = (head // h * t + at) * h + head % h
        features = _features(x, place, real, e, channel, kind, QUERY)
        given = rows(value, place, real, v, column).to(kind)
        if QUERY:
            given *= tl.load(factor + place, mask=real, other=0)[:, None]
        total += tl.dot(tl.trans(features), given, input_precision="ieee")
        if QUERY:
            features *= tl.load(weighing + place, mask=real, other=0)[:, None]
        weight += tl.sum(features, 0)
    number = part * tl.num_programs(0) + head
    pointers, inside = columns(sums, number, e, v, channel, column)
    tl.store(pointers, total, mask=inside)
    if tl.program_id(2) == 0:
        tl.store(weights + number * e + channel, weight, mask=channel < e)


@triton.jit
def _sum_backward(  # type: ignore[no-untyped-def]
    grad_sums,
    grad_weights,
    key,
    value,
    mask,
    to_key,
    to_value,
    t,
    h,
    e,
    v,
    MASKED: tl.constexpr,
    T: tl.constexpr,
    E: tl.constexpr,
    V: tl.constexpr,
):
    head, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * T + tl.arange(0, T)
    channel = tl.arange(0, E)
    kind = grad_sums.dtype.element_ty
    real = _real(mask, head, h, t, at, MASKED)
    place = (head // h * t + at) * h + head % h
    features = _features(key, place, real, e, channel, kind, False)
    change = tl.zeros((T, E), kind)
    change += tl.load(grad_weights + head * e + channel, mask=channel < e, other=0)[None, :]
    for start in range(0, v, V):
        column = start + tl.arange(0, V)
        pointers, inside = columns(grad_sums, head, e, v, channel, column)
        upstream = tl.load(pointers, mask=inside, other=0)
        given = rows(value, place, real, v, column).to(kind)
        change += tl.dot(given, tl.trans(upstream), input_precision="ieee")
        found = tl.dot(features, upstream, input_precision="ieee")
        tl.store(to_value + place[:, None] * v + column[None, :], found, mask=(at < t)[:, None] & (column < v)[None, :])
    # The features say what their derivative is: that of exp is itself, and above zero it is one. Padding has none.
    change *= tl.where(features > 1, 1.0, features)
    tl.store(to_key + place[:, None] * e + channel[None, :], change, mask=(at < t)[:, None] & (channel < e)[None, :])


@triton.jit
def _read(  # type: ignore[no-untyped-def]
    query,
    sums,
    weights,
    out,
    normaliser,
    t,
    h,
    e,
    v,
    TINY: tl.constexpr,
    T: tl.constexpr,
    E: tl.constexpr,
    V: tl.constexpr,
):
    head, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * T + tl.arange(0, T)
    channel, real = tl.arange(0, E), at < t
    place = (head // h * t + at) * h + head % h
    features = _features(query, place, real, e, channel, sums.dtype.element_ty, True)
    weight = tl.load(weights + head * e + channel, mask=channel < e, other=0)
    total = tl.sum(features * weight[None, :], 1)
    tl.store(normaliser + place, total, mask=real)
    least = tl.where(total < TINY, TINY, total)
    for start in range(0, v, V):
        column = start + tl.arange(0, V)
        pointers, inside = columns(sums, head, e, v, channel, column)
        found = tl.dot(features, tl.load(pointers, mask=inside, other=0), input_precision="ieee") / least[:, None]
        tl.store(out + place[:, None] * v + column[None, :], found, mask=real[:, None] & (column < v)[None, :])


@triton.jit
def _read_backward(  # type: ignore[no-untyped-def]
    gradient,
    to_normaliser,
    inverse,
    query,
    sums,
    weights,
    to_query,
    t,
    h,
    e,
    v,
    T: tl.constexpr,
    E: tl.constexpr,
    V: tl.constexpr,
):
    head, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * T + tl.arange(0, T)
    channel, real = tl.arange(0, E), at < t
    place = (head // h * t + at) * h + head % h
    features = _features(query, place, real, e, channel, sums.dtype.element_ty, True)
    weight = tl.load(weights + head * e + channel, mask=channel < e, other=0)
    change = tl.load(to_normaliser + place, mask=real, other=0)[:, None] * weight[None, :]
    factor = tl.load(inverse + place, mask=real, other=0)[:, None]
    for start in range(0, v, V):
        column = start + tl.arange(0, V)
        pointers, inside = columns(sums, head, e, v, channel, column)
        upstream = rows(gradient, place, real, v, column) * factor
        change += tl.dot(upstream, tl.trans(tl.load(pointers, mask=inside, other=0)), input_precision="ieee")
    change *= tl.where(features > 1, 1.0, features)
    tl.store(to_query + place[:, None] * e + channel[None, :], change, mask=real[:, None] & (channel < e)[None, :])


def sum_up(key: Tensor, value: Tensor, mask: Tensor, sums: Tensor, weights: Tensor) -> None:
    """Fill Σ φ(k) vᵀ (b, h, e, v) and Σ φ(k) (b, h, e), over keys (b, m, h, e) where `mask` (b, m), or (b, 0) for all,
    is True."""
    _sum_in_parts(key, value, mask, None, None, sums, weights)


def sum_up_backward(
    grad_sums: Tensor,
    grad_weights: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    to_key: Tensor,
    to_value: Tensor,
) -> None:
    """Fill the last two tensors with the gradients of `sum_up`: dφ = dS v + ds, dv = dSᵀ φ."""
    (b, t, h, e), v = key.shape, value.shape[3]
    given = (grad_sums, grad_weights, key, value, mask.view(torch.uint8), to_key, to_value)
    with torch.cuda.device_of(key):
        _sum_backward[b * h, triton.cdiv(t, T)](
            *given, t, h, e, v, MASKED=mask.shape[1] > 0, T=T, E=width(e), V=V, num_warps=WARPS
        )


def read(query: Tensor, sums: Tensor, weights: Tensor, out: Tensor, normaliser: Tensor) -> None:
    """Fill what queries (b, n, h, e) read (b, n, h, v), and what it is divided by (b, n, h) where it is not below
    TINY."""
    (b, t, h, e), v = query.shape, sums.shape[3]
    with torch.cuda.device_of(query):
        _read[b * h, triton.cdiv(t, T)](
            query, sums, weights, out, normaliser, t, h, e, v, TINY=TINY, T=T, E=width(e), V=V, num_warps=WARPS
        )


def read_backward(
    gradient: Tensor,
    query: Tensor,
    sums: Tensor,
    weights: Tensor,
    out: Tensor,
    normaliser: Tensor,
    to_query: Tensor,
    to_sums: Tensor,
    to_weights: Tensor,
) -> None:
    """Fill the last three tensors with the gradients of `read`: dφ = S do / n + s dn, dS = Σ φ doᵀ / n, ds = Σ φ dn.

    The normaliser n, and so its gradient dn, are (b, t, h).
    """
    (b, t, h, e), v = query.shape, sums.shape[3]
    to_normaliser, inverse = normaliser_gradient(gradient, out, normaliser)
    given = (gradient, to_normaliser, inverse, query, sums, weights, to_query)
    with torch.cuda.device_of(query):
        _read_backward[b * h, triton.cdiv(t, T)](*given, t, h, e, v, T=T, E=width(e), V=V, num_warps=WARPS)
    _sum_in_parts(query, gradient, None, inverse, to_normaliser, to_sums, to_weights)


def _sum_in_parts(
    x: Tensor,
    value: Tensor,
    mask: Tensor | None,
    factor: Tensor | None,
    weighing: Tensor | None,
    sums: Tensor,
    weights: Tensor,
) -> None:
    (b, t, h, e), v = x.shape, value.shape[3]
    groups, blocks = triton.cdiv(v, V), triton.cdiv(t, T)
    parts = max(1, min(blocks // FEWEST, ENOUGH // (b * h * groups)))
    made = (sums.new_empty(parts, *sums.shape), weights.new_empty(parts, *weights.shape)) if parts > 1 else None
    masked = mask is not None and mask.shape[1] > 0
    given = (x, value, None if mask is None else mask.view(torch.uint8), factor, weighing, *(made or (sums, weights)))
    with torch.cuda.device_of(x):
        _sum[b * h, parts, groups](
            *given,
            *(t, h, e, v, triton.cdiv(blocks, parts)),
            QUERY=factor is not None,
            MASKED=masked,
            T=T,
            E=width(e),
            V=V,
            num_warps=WARPS,
        )
    if made:
        torch.sum(made[0], 0, out=sums)
        torch.sum(made[1], 0, out=weights)
