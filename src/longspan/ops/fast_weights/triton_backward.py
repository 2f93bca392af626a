"""The pass over a matrix per head from the last chunk to the first, and all gradients, as kernels for a GPU."""

import triton
import triton.language as tl

from longspan.ops._tiles import columns, rows
from longspan.ops.fast_weights.triton_forward import chunk_positions, left_of, passed_rates, squares, within


@triton.jit
def carry_back(  # type: ignore[no-untyped-def]
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
    pointers, inside = columns(grad_last, head, e, v, channel, column)
    matrix = tl.load(pointers, mask=inside, other=0)
    for back in range(chunks):
        n = chunks - 1 - back
        pointers, _ = columns(after, (head // h * chunks + n) * h + head % h, e, v, channel, column)
        tl.store(pointers, matrix, mask=inside)
        place, real = chunk_positions(n, t, head, h, backwards, T)
        q, k = rows(query, place, real, e, channel), rows(key, place, real, e, channel)
        change = rows(grad_out, place, real, v, column)
        passed, total = passed_rates(rates, place, real, e, channel, PER_CHANNEL)
        late, until = tl.exp((-passed).to(q.dtype)), tl.exp((passed - total[None, :]).to(q.dtype))
        before = tl.exp((-total).to(q.dtype))[:, None] * matrix
        before += tl.dot(tl.trans(q * late), change, input_precision="ieee")
        if DELTA:
            score = tl.load(squares(scores, head * chunks + n, T))
            inverse = tl.load(squares(inverses, head * chunks + n, T))
            beta = tl.load(strength + place, mask=real, other=0)
            change = tl.dot(tl.trans(score), change, input_precision="ieee")
            change += tl.dot(k * until, matrix, input_precision="ieee")
            change = tl.dot(tl.trans(inverse), change, input_precision="ieee")
            before -= tl.dot(tl.trans(beta[:, None] * late * k), change, input_precision="ieee")
        matrix = before
    pointers, inside = columns(to_state, head, e, v, channel, column)
    tl.store(pointers, matrix, mask=inside)


@triton.jit
def backward(  # type: ignore[no-untyped-def]
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
    place, real = chunk_positions(n, t, head, h, backwards, T)
    at, channel = tl.arange(0, T), tl.arange(0, E)
    q, k = rows(query, place, real, e, channel), rows(key, place, real, e, channel)
    passed, total = passed_rates(rates, place, real, e, channel, PER_CHANNEL)
    late, until = tl.exp((-passed).to(q.dtype)), tl.exp((passed - total[None, :]).to(q.dtype))
    score = tl.load(squares(scores, head * chunks + n, T))
    number = (head // h * chunks + n) * h + head % h
    # Sums over the columns of the matrices.
    asked, written = tl.zeros((T, E), q.dtype), tl.zeros((T, E), q.dtype)
    to_score, lost = tl.zeros((T, T), q.dtype), tl.zeros((E,), q.dtype)
    if DELTA:
        beta = tl.load(strength + place, mask=real, other=0)
        inverse = tl.load(squares(inverses, head * chunks + n, T))
        read, to_overlap, to_beta = tl.zeros((T, E), q.dtype), tl.zeros((T, T), q.dtype), tl.zeros((T,), q.dtype)
    for start in range(0, v, V):
        column = start + tl.arange(0, V)
        pointers, inside = columns(borders, number, e, v, channel, column)
        before = tl.load(pointers, mask=inside, other=0)
        pointers, inside = columns(after, number, e, v, channel, column)
        following = tl.load(pointers, mask=inside, other=0)
        upstream, new = rows(grad_out, place, real, v, column), rows(value, place, real, v, column)
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
            share = tl.sum(tl.where((at == j)[None, :], to_score, 0.0), 1)[:, None] * left_of(passed, at, rate, q, j)
            asked += share * other[None, :]
            written = tl.where((at == j)[:, None], written + tl.sum(share * q, 0)[None, :], written)
    else:
        kept = within(passed, q, T)
        to_score *= kept
        asked += tl.dot(to_score, k, input_precision="ieee")
        written += tl.dot(tl.trans(to_score), q, input_precision="ieee")
    to_passed = -q * asked
    mask = real[:, None] & (channel < e)[None, :]
    here = place[:, None] * e + channel[None, :]
    if DELTA:
        to_overlap = tl.where(at[:, None] > at[None, :], to_overlap * kept, 0.0)
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
