"""Softmax-weighted means over all positions, and their gradients, as kernels for a GPU.

Positions are divided among programs. Each keeps the state of its part, the largest logit m, s = Σ exp(z - m) and
Σ exp(z - m)·v, block of positions by block; another kernel merges the states. No exponent is above zero. Products of
half precision have operands of half precision and sums in float32; those of float32 are not rounded to fewer digits.
Tensors are C-contiguous; those to fill come last.

Results of an earlier division into blocks were right on an H100. This one was checked in Triton's interpreter and
compiled for GPUs; it was neither run nor timed on one.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from longspan.ops.scan import FLOOR

# Channels of the values in a block, and in one of the states that are merged.
D, MERGED = 128, 64
# Rows and columns that blocks of a product have at least.
SMALLEST = 16
# Programs that are enough to keep a GPU busy, blocks of positions below which dividing them further costs more, and
# parts that one block can merge.
ENOUGH, FEWEST, MOST = 512, 4, 64


@triton.jit
def _weights(logit, largest, HIDDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return exp(z - largest) of logits (n, h), zero up to HIDDEN."""
    # The distance of what is hidden to the largest that is not is no exponent, and NaN is not hidden.
    return tl.where(logit <= HIDDEN, 0.0, tl.exp(tl.where(logit <= HIDDEN, 0.0, logit - largest[None, :])))


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    values,
    logits,
    maxima,
    sums,
    states,
    t,
    d,
    h,
    blocks,
    T: tl.constexpr,
    D: tl.constexpr,
    H: tl.constexpr,
    HIDDEN: tl.constexpr,
):
    """Fill the states of a part of the positions: maxima and sums (b, parts, h), states (b, parts, h, d)."""
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    channel, head = tl.program_id(2) * D + tl.arange(0, D), tl.arange(0, H)
    inside, known = channel < d, head < h
    kind = maxima.dtype.element_ty
    largest = tl.full((H,), 2.0 * HIDDEN, kind)
    total = tl.zeros((H,), kind)
    state = tl.zeros((H, D), kind)
    for number in range(part * blocks, (part + 1) * blocks):
        at = number * T + tl.arange(0, T)
        real, place = at < t, row * t + at
        logit = tl.load(
            logits + place[:, None] * h + head[None, :], mask=real[:, None] & known[None, :], other=2.0 * HIDDEN
        )
        value = tl.load(values + place[:, None] * d + channel[None, :], mask=real[:, None] & inside[None, :], other=0)
        following = tl.maximum(largest, tl.max(logit, 0))
        kept = tl.exp(largest - following)
        weight = _weights(logit, following, HIDDEN)
        total = kept * total + tl.sum(weight, 0)
        state = kept[:, None] * state + tl.dot(tl.trans(weight.to(value.dtype)), value, input_precision="ieee")
        largest = following
    place = (row * parts + part) * h + head
    if tl.program_id(2) == 0:
        tl.store(maxima + place, largest, mask=known)
        tl.store(sums + place, total, mask=known)
    tl.store(states + place[:, None] * d + channel[None, :], state, mask=known[:, None] & inside[None, :])


@triton.jit
def _merge(  # type: ignore[no-untyped-def]
    maxima,
    sums,
    states,
    pooled,
    largest,
    total,
    parts,
    d,
    h,
    P: tl.constexpr,
    D: tl.constexpr,
    HIDDEN: tl.constexpr,
):
    """Fill the means (b, h, d), and the largest logits and sums (b, h), of all parts together."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel, part = tl.program_id(2) * D + tl.arange(0, D), tl.arange(0, P)
    inside, known = channel < d, part < parts
    place = (row * parts + part) * h + head
    other = tl.load(maxima + place, mask=known, other=2.0 * HIDDEN)
    most = tl.max(other, 0)
    share = tl.exp(other - most)
    weight = tl.sum(share * tl.load(sums + place, mask=known, other=0), 0)
    new = tl.load(states + place[:, None] * d + channel[None, :], mask=known[:, None] & inside[None, :], other=0)
    # Over nothing, the mean is zero.
    mean = tl.sum(share[:, None] * new, 0) / tl.where(weight > 0, weight, 1.0)
    place = row * h + head
    tl.store(pooled + place * d + channel, mean, mask=inside)
    if tl.program_id(2) == 0:
        tl.store(largest + place, most)
        tl.store(total + place, weight)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    gradient,
    along,
    values,
    logits,
    largest,
    total,
    to_values,
    to_logits,
    t,
    d,
    h,
    T: tl.constexpr,
    D: tl.constexpr,
    H: tl.constexpr,
    HIDDEN: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.arange(0, H)
    at = tl.program_id(1) * T + tl.arange(0, T)
    known, real, place = head < h, at < t, row * t + at
    seen = real[:, None] & known[None, :]
    here = place[:, None] * h + head[None, :]
    logit = tl.load(logits + here, mask=seen, other=2.0 * HIDDEN)
    most = tl.load(largest + row * h + head, mask=known, other=0)
    sum = tl.load(total + row * h + head, mask=known, other=0)
    weight = _weights(logit, most, HIDDEN) / tl.where(sum > 0, sum, 1.0)[None, :]
    change = tl.zeros((T, H), logits.dtype.element_ty)
    for start in range(0, d, D):
        channel = start + tl.arange(0, D)
        inside = channel < d
        value = tl.load(values + place[:, None] * d + channel[None, :], mask=real[:, None] & inside[None, :], other=0)
        upstream = tl.load(
            gradient + (row * h + head)[:, None] * d + channel[None, :], mask=known[:, None] & inside[None, :], other=0
        ).to(value.dtype)
        change += tl.dot(value, tl.trans(upstream), input_precision="ieee")
        found = tl.dot(weight.to(value.dtype), upstream, input_precision="ieee")
        tl.store(to_values + place[:, None] * d + channel[None, :], found, mask=real[:, None] & inside[None, :])
    change -= tl.load(along + row * h + head, mask=known, other=0)[None, :]
    tl.store(to_logits + here, weight * change, mask=seen)


def _heads(h: int) -> int:
    """Number of heads in a block, which has room for all."""
    return max(SMALLEST, triton.next_power_of_2(h))


def _width(d: int, most: int) -> int:
    """Number of channels in a block."""
    return min(most, max(SMALLEST, triton.next_power_of_2(d)))


def _positions(values: Tensor) -> int:
    """Number of positions in a block: three blocks, of those that are read ahead, fit into the memory of a program."""
    return 64 if values.element_size() == 2 else 32


def forward(values: Tensor, logits: Tensor, pooled: Tensor, largest: Tensor, total: Tensor) -> None:
    """Fill the means `pooled` (b, h, d) of values (b, t, d), and `largest` and `total` (b, h): m and Σ exp(z - m).

    The logits (b, t, h) are at least float32; those up to FLOOR / 2 weigh nothing. Without others, all are zero but m.
    """
    (b, t, d), h, size = values.shape, logits.shape[2], _positions(values)
    width, columns = _width(d, D), _width(d, MERGED)
    channels, blocks = triton.cdiv(d, width), max(1, triton.cdiv(t, size))
    parts = max(1, min(blocks // FEWEST, ENOUGH // (b * channels), MOST))
    blocks = triton.cdiv(blocks, parts)
    parts = max(1, triton.cdiv(t, size * blocks))
    state = [logits.new_empty(b, parts, *shape) for shape in ((h,), (h,), (h, d))]
    given = (values, logits, *state, t, d, h, blocks)
    with torch.cuda.device_of(values):
        _forward[b, parts, channels](*given, T=size, D=width, H=_heads(h), HIDDEN=FLOOR / 2, num_stages=3)
        _merge[b, h, triton.cdiv(d, columns)](
            *state, pooled, largest, total, parts, d, h, P=triton.next_power_of_2(parts), D=columns, HIDDEN=FLOOR / 2
        )


def backward(
    gradient: Tensor,
    values: Tensor,
    logits: Tensor,
    pooled: Tensor,
    largest: Tensor,
    total: Tensor,
    to_values: Tensor,
    to_logits: Tensor,
) -> None:
    """Fill the last two tensors with the gradients of the means, given theirs (b, h, d): w = exp(z - m) / s,
    dv_t = Σ_h w_t g, dz_t = w_t (g·v_t - g·mean).
    """
    (b, t, d), h, size = values.shape, logits.shape[2], _positions(values)
    along = (gradient * pooled).sum(-1)
    given = (gradient, along, values, logits, largest, total, to_values, to_logits, t, d, h)
    with torch.cuda.device_of(values):
        _backward[b, triton.cdiv(t, size)](*given, T=size, D=_width(d, D), H=_heads(h), HIDDEN=FLOOR / 2)
