"""A matrix per head, and its gradients, as kernels for a GPU: the gated delta rule and gated linear attention.

Positions are cut into chunks. What depends on the positions of one chunk alone is computed for all chunks at once:
scores of queries and keys, and, by the delta rule, the inverse of the triangular matrix of its system. Then programs
carry the columns of a matrix from chunk to chunk, in registers, by products of matrices. Backward, the gradients of the
matrices are carried from the last chunk to the first, and all others follow from both, for all chunks at once. No
exponent is above zero, sums of rates are in float64, and products are not rounded to fewer digits than their operands.

Tensors are (b, t, h, ...) and C-contiguous; those to fill come last. Yang et al. 2024 describe the chunks,
https://arxiv.org/abs/2406.06484 and https://arxiv.org/abs/2412.06464.

Checked in Triton's interpreter, and compiled for GPUs; neither run nor timed on one.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Columns of a matrix that a program carries.
COLUMNS = 32


@triton.jit
def _places(n, t, head, h, backwards, T: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return where chunk n of a head of a row has its positions, in the order in which they are read, and which it has;
    the last `backwards` of h heads read from the end."""
    at = n * T + tl.arange(0, T)
    position = tl.where(head % h >= h - backwards, t - 1 - at, at)
    return (head // h * t + position) * h + head % h, at < t


@triton.jit
def _rows(source, place, real, width, channel):  # type: ignore[no-untyped-def]
    """Return numbers (T, C) of positions, zero where there is none."""
    mask = real[:, None] & (channel < width)[None, :]
    return tl.load(source + place[:, None] * width + channel[None, :], mask=mask, other=0)


@triton.jit
def _passed(rates, place, real, e, channel, PER_CHANNEL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return what the rates of a chunk add up to at each position (T, 1 or E), and all of them (1 or E)."""
    if PER_CHANNEL:
        rate = _rows(rates, place, real, e, channel).to(tl.float64)
    else:
        rate = tl.load(rates + place, mask=real, other=0).to(tl.float64)[:, None]
    return tl.cumsum(rate, 0), tl.sum(rate, 0)


@triton.jit
def _within(passed, like, T: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return what is left of position j at position i (T, T), zero where j is later."""
    at = tl.arange(0, T)
    earlier = at[:, None] >= at[None, :]
    lost = tl.where(earlier, passed - tl.trans(passed), 0.0)
    return tl.where(earlier, tl.exp(-lost.to(like.dtype)), 0.0)


@triton.jit
def _left(passed, at, rate, like, j):  # type: ignore[no-untyped-def]
    """Return what is left of position j at each (T, E), zero before it; the rates up to it add up to `rate` (E,)."""
    later = (at >= j)[:, None]
    lost = tl.where(later, passed - rate[None, :], 0.0)
    return tl.where(later, tl.exp(-lost.to(like.dtype)), 0.0)


@triton.jit
def _matrix(source, number, e, v, channel, column):  # type: ignore[no-untyped-def]
    """Return pointers to columns of a matrix (e, v), and which of them there are."""
    inside = (channel < e)[:, None] & (column < v)[None, :]
    return source + (number * e + channel[:, None]) * v + column[None, :], inside


@triton.jit
def _squares(source, number, T: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return pointers to a matrix (T, T)."""
    at = tl.arange(0, T)
    return source + (number * T + at[:, None]) * T + at[None, :]


@triton.jit
def _chunks(  # type: ignore[no-untyped-def]
    query,
    key,
    strength,
    rates,
    scores,
    inverses,
    t,
    h,
    e,
    backwards,
    DELTA: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    T: tl.constexpr,
    E: tl.constexpr,
):
    """Fill scores and inverses (b·h, chunks, T, T)."""
    head, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place, real = _places(n, t, head, h, backwards, T)
    at, channel = tl.arange(0, T), tl.arange(0, E)
    q, k = _rows(query, place, real, e, channel), _rows(key, place, real, e, channel)
    passed, _ = _passed(rates, place, real, e, channel, PER_CHANNEL)
    number = head * tl.num_programs(1) + n
    if PER_CHANNEL:
        # What is left of a channel does not factor into one part for i and one for j, neither above one.
        found = tl.zeros((T, T), q.dtype)
        rate = tl.zeros((E,), tl.float64)
        for j in range(T):
            one = tl.sum(tl.where(at == j, place, 0), 0) * e + channel
            mask = (channel < e) & (n * T + j < t)
            rate += tl.load(rates + one, mask=mask, other=0).to(tl.float64)
            other = tl.load(key + one, mask=mask, other=0)
            column = tl.sum(q * other[None, :] * _left(passed, at, rate, q, j), 1)
            found = tl.where((at == j)[None, :], column[:, None], found)
        tl.store(_squares(scores, number, T), found)
    else:
        left = _within(passed, q, T)
        tl.store(_squares(scores, number, T), tl.dot(q, tl.trans(k), input_precision="ieee") * left)
        if DELTA:
            beta = tl.load(strength + place, mask=real, other=0)
            overlap = beta[:, None] * tl.dot(k, tl.trans(k), input_precision="ieee") * left
            # The inverse of the identity plus what is below the diagonal, row by row.
            overlap = tl.where(at[:, None] > at[None, :], overlap, 0.0)
            found = (at[:, None] == at[None, :]).to(q.dtype)
            for i in range(1, T):
                row = tl.sum(tl.where((at == i)[:, None], overlap, 0.0), 0)
                found = tl.where((at == i)[:, None], found - tl.sum(row[:, None] * found, 0)[None, :], found)
            tl.store(_squares(inverses, number, T), found)


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    strength,
    rates,
    state,
    scores,
    inverses,
    out,
    last,
    borders,
    t,
    h,
    e,
    v,
    backwards,
    chunks,
    SAVES: tl.constexpr,
    DELTA: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    T: tl.constexpr,
    E: tl.constexpr,
    V: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    channel, column = tl.arange(0, E), tl.program_id(1) * V + tl.arange(0, V)
    pointers, inside = _matrix(state, head, e, v, channel, column)
    matrix = tl.load(pointers, mask=inside, other=0)
    for n in range(chunks):
        if SAVES:
            pointers, _ = _matrix(borders, (head // h * chunks + n) * h + head % h, e, v, channel, column)
            tl.store(pointers, matrix, mask=inside)
        place, real = _places(n, t, head, h, backwards, T)
        q, k = _rows(query, place, real, e, channel), _rows(key, place, real, e, channel)
        new = _rows(value, place, real, v, column)
        passed, total = _passed(rates, place, real, e, channel, PER_CHANNEL)
        late = tl.exp((-passed).to(q.dtype))
        if DELTA:
            beta = tl.load(strength + place, mask=real, other=0)
            old = late * tl.dot(k, matrix, input_precision="ieee")
            inverse = tl.load(_squares(inverses, head * chunks + n, T))
            new = tl.dot(inverse, beta[:, None] * (new - old), input_precision="ieee")
        found = tl.dot(q * late, matrix, input_precision="ieee")
        found += tl.dot(tl.load(_squares(scores, head * chunks + n, T)), new, input_precision="ieee")
        mask = real[:, None] & (column < v)[None, :]
        tl.store(out + place[:, None] * v + column[None, :], found, mask=mask)
        until = tl.exp((passed - total[None, :]).to(q.dtype))
        matrix = tl.exp((-total).to(q.dtype))[:, None] * matrix
        matrix += tl.dot(tl.trans(k * until), new, input_precision="ieee")
    pointers, inside = _matrix(last, head, e, v, channel, column)
    tl.store(pointers, matrix, mask=inside)


@triton.jit
def _carry_back(  # type: ignore[no-untyped-def]
    grad_out,
    grad_last,
    query,
    key,
    strength,
    rates,
    scores,
    inverses,
    after,
    to_state,
    t,
    h,
    e,
    v,
    backwards,
    chunks,
    DELTA: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    T: tl.constexpr,
    E: tl.constexpr,
    V: tl.constexpr,
):
    """Fill the gradients of the matrices after each chunk (b, chunks, h, e, v), and of the first."""
    head = tl.program_id(0).to(tl.int64)
    channel, column = tl.arange(0, E), tl.program_id(1) * V + tl.arange(0, V)
    pointers, inside = _matrix(grad_last, head, e, v, channel, column)
    matrix = tl.load(pointers, mask=inside, other=0)
    for back in range(chunks):
        n = chunks - 1 - back
        pointers, _ = _matrix(after, (head // h * chunks + n) * h + head % h, e, v, channel, column)
        tl.store(pointers, matrix, mask=inside)
        place, real = _places(n, t, head, h, backwards, T)
        q, k = _rows(query, place, real, e, channel), _rows(key, place, real, e, channel)
        change = _rows(grad_out, place, real, v, column)
        passed, total = _passed(rates, place, real, e, channel, PER_CHANNEL)
        late, until = tl.exp((-passed).to(q.dtype)), tl.exp((passed - total[None, :]).to(q.dtype))
        before = tl.exp((-total).to(q.dtype))[:, None] * matrix
        before += tl.dot(tl.trans(q * late), change, input_precision="ieee")
        if DELTA:
            score = tl.load(_squares(scores, head * chunks + n, T))
            inverse = tl.load(_squares(inverses, head * chunks + n, T))
            beta = tl.load(strength + place, mask=real, other=0)
            change = tl.dot(tl.trans(score), change, input_precision="ieee")
            change += tl.dot(k * until, matrix, input_precision="ieee")
            change = tl.dot(tl.trans(inverse), change, input_precision="ieee")
            before -= tl.dot(tl.trans(beta[:, None] * late * k), change, input_precision="ieee")
        matrix = before
    pointers, inside = _matrix(to_state, head, e, v, channel, column)
    tl.store(pointers, matrix, mask=inside)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    grad_out,
    query,
    key,
    value,
    strength,
    rates,
    borders,
    scores,
    inverses,
    after,
    to_query,
    to_key,
    to_value,
    to_strength,
    to_rates,
    t,
    h,
    e,
    v,
    backwards,
    DELTA: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    T: tl.constexpr,
    E: tl.constexpr,
    V: tl.constexpr,
):
    """Fill the gradients of the positions of a chunk, from the matrix before it and the gradient of that after it."""
    head, n, chunks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    place, real = _places(n, t, head, h, backwards, T)
    at, channel = tl.arange(0, T), tl.arange(0, E)
    q, k = _rows(query, place, real, e, channel), _rows(key, place, real, e, channel)
    passed, total = _passed(rates, place, real, e, channel, PER_CHANNEL)
    late, until = tl.exp((-passed).to(q.dtype)), tl.exp((passed - total[None, :]).to(q.dtype))
    score = tl.load(_squares(scores, head * chunks + n, T))
    number = (head // h * chunks + n) * h + head % h
    # Sums over the columns of the matrices.
    asked, written = tl.zeros((T, E), q.dtype), tl.zeros((T, E), q.dtype)
    to_score, lost = tl.zeros((T, T), q.dtype), tl.zeros((E,), q.dtype)
    if DELTA:
        beta = tl.load(strength + place, mask=real, other=0)
        inverse = tl.load(_squares(inverses, head * chunks + n, T))
        read, to_overlap, to_beta = tl.zeros((T, E), q.dtype), tl.zeros((T, T), q.dtype), tl.zeros((T,), q.dtype)
    for start in range(0, v, V):
        column = start + tl.arange(0, V)
        pointers, inside = _matrix(borders, number, e, v, channel, column)
        before = tl.load(pointers, mask=inside, other=0)
        pointers, inside = _matrix(after, number, e, v, channel, column)
        following = tl.load(pointers, mask=inside, other=0)
        upstream, new = _rows(grad_out, place, real, v, column), _rows(value, place, real, v, column)
        if DELTA:
            given = new - late * tl.dot(k, before, input_precision="ieee")
            new = tl.dot(inverse, beta[:, None] * given, input_precision="ieee")
        change = tl.dot(tl.trans(score), upstream, input_precision="ieee")
        change += tl.dot(k * until, following, input_precision="ieee")
        asked += tl.dot(upstream, tl.trans(before), input_precision="ieee")
        written += tl.dot(new, tl.trans(following), input_precision="ieee")
        to_score += tl.dot(upstream, tl.trans(new), input_precision="ieee")
        lost += tl.sum(before * following, 1)
        if DELTA:
            change = tl.dot(tl.trans(inverse), change, input_precision="ieee")
            read += tl.dot(change, tl.trans(before), input_precision="ieee")
            to_overlap -= tl.dot(change, tl.trans(new), input_precision="ieee")
            to_beta += tl.sum(change * given, 1)
            change = beta[:, None] * change
        tl.store(to_value + place[:, None] * v + column[None, :], change, mask=real[:, None] & (column < v)[None, :])
    asked, written = late * asked, until * written
    end = -tl.sum(k * written, 0) - tl.exp((-total).to(q.dtype)) * lost
    if PER_CHANNEL:
        rate = tl.zeros((E,), tl.float64)
        for j in range(T):
            one = tl.sum(tl.where(at == j, place, 0), 0) * e + channel
            mask = (channel < e) & (n * T + j < t)
            rate += tl.load(rates + one, mask=mask, other=0).to(tl.float64)
            other = tl.load(key + one, mask=mask, other=0)
            share = tl.sum(tl.where((at == j)[None, :], to_score, 0.0), 1)[:, None] * _left(passed, at, rate, q, j)
            asked += share * other[None, :]
            written = tl.where((at == j)[:, None], written + tl.sum(share * q, 0)[None, :], written)
    else:
        left = _within(passed, q, T)
        to_score *= left
        asked += tl.dot(to_score, k, input_precision="ieee")
        written += tl.dot(tl.trans(to_score), q, input_precision="ieee")
    to_passed = -q * asked
    mask = real[:, None] & (channel < e)[None, :]
    here = place[:, None] * e + channel[None, :]
    if DELTA:
        to_overlap = tl.where(at[:, None] > at[None, :], to_overlap * left, 0.0)
        to_beta += tl.sum(to_overlap * tl.dot(k, tl.trans(k), input_precision="ieee"), 1)
        to_overlap *= beta[:, None]
        read = tl.dot(to_overlap, k, input_precision="ieee") - beta[:, None] * late * read
        written += tl.dot(tl.trans(to_overlap), k, input_precision="ieee")
        to_passed += k * (written - read)
        written += read
        tl.store(to_strength + place, to_beta, mask=real)
    else:
        to_passed += k * written
    tl.store(to_query + here, asked, mask=mask)
    tl.store(to_key + here, written, mask=mask)
    # A rate has a part in what is added up at its position and later, and in all of the chunk.
    if PER_CHANNEL:
        found = tl.cumsum(to_passed.to(tl.float64), 0, reverse=True) + end.to(tl.float64)[None, :]
        tl.store(to_rates + here, found, mask=mask)
    else:
        found = tl.cumsum(tl.sum(to_passed, 1).to(tl.float64), 0, reverse=True) + tl.sum(end, 0).to(tl.float64)
        tl.store(to_rates + place, found, mask=real)


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    rates: Tensor,
    state: Tensor,
    out: Tensor,
    last: Tensor,
    borders: Tensor,
    backwards: int,
    chunk: int,
) -> None:
    """Fill what is read (b, t, h, v), the last matrices (b, h, e, v), and those before each chunk of `chunk` positions
    (b, chunks, h, e, v), if there is room for any.

    Without a strength (b, t, h) it has no positions. Rates are (b, t, h), or (b, t, h, e) without a strength.
    """
    (b, t, h, e), v = query.shape, value.shape[3]
    kind = _kind(strength, rates, chunk, e)
    with torch.cuda.device_of(query):
        squares = _squares_of(query, key, strength, rates, backwards, kind)
        given = (query, key, value, strength, rates, state, *squares, out, last, borders)
        sizes, saves = (t, h, e, v, backwards, triton.cdiv(t, chunk)), borders.shape[1] > 0
        _forward[b * h, triton.cdiv(v, COLUMNS)](*given, *sizes, SAVES=saves, V=COLUMNS, **kind)


def backward(
    grad_out: Tensor,
    grad_last: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    rates: Tensor,
    borders: Tensor,
    to_query: Tensor,
    to_key: Tensor,
    to_value: Tensor,
    to_strength: Tensor,
    to_rates: Tensor,
    to_state: Tensor,
    backwards: int,
    chunk: int,
) -> None:
    """Fill the last six tensors with the gradients of `forward`, given those of what it fills and the `borders`."""
    (b, t, h, e), v = query.shape, value.shape[3]
    kind, chunks = _kind(strength, rates, chunk, e), triton.cdiv(t, chunk)
    made = (to_query, to_key, to_value, to_strength, to_rates)
    with torch.cuda.device_of(query):
        squares = _squares_of(query, key, strength, rates, backwards, kind)
        after = torch.empty_like(borders)
        given = (grad_out, grad_last, query, key, strength, rates, *squares, after, to_state)
        _carry_back[b * h, triton.cdiv(v, COLUMNS)](*given, t, h, e, v, backwards, chunks, V=COLUMNS, **kind)
        given = (grad_out, query, key, value, strength, rates, borders, *squares, after)
        _backward[b * h, chunks](*given, *made, t, h, e, v, backwards, V=COLUMNS, **kind)


def _kind(strength: Tensor, rates: Tensor, chunk: int, e: int) -> dict[str, int]:
    # A product has at least 16 rows.
    width = max(16, triton.next_power_of_2(e))
    return {"DELTA": strength.shape[1] > 0, "PER_CHANNEL": rates.ndim == 4, "T": chunk, "E": width}


def _squares_of(
    query: Tensor, key: Tensor, strength: Tensor, rates: Tensor, backwards: int, kind: dict[str, int]
) -> tuple[Tensor, Tensor]:
    b, t, h, e = query.shape
    size, chunks = kind["T"], triton.cdiv(t, kind["T"])
    scores = query.new_empty(b * h, chunks, size, size)
    inverses = scores.new_empty(scores.shape if kind["DELTA"] else (0,))
    _chunks[b * h, chunks](query, key, strength, rates, scores, inverses, t, h, e, backwards, **kind)
    return scores, inverses
