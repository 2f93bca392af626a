"""The chunks of a matrix per head, and the pass from the first to the last, as kernels for a GPU."""

import triton
import triton.language as tl

from longspan.ops._tiles import columns, rows


@triton.jit
def chunk_positions(n, t, head, h, backwards, T: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return where chunk n of a head of a row has its positions, in the order in which they are read, and which it has;
    the last `backwards` of h heads read from the end."""
    at = n * T + tl.arange(0, T)
    position = tl.where(head % h >= h - backwards, t - 1 - at, at)
    return (head // h * t + position) * h + head % h, at < t


@triton.jit
def passed_rates(rates, place, real, e, channel, PER_CHANNEL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums of the rates of a chunk up to each position (T, 1 or E), and of all of them (1 or E)."""
    if PER_CHANNEL:
        rate = rows(rates, place, real, e, channel).to(tl.float64)
    else:
        rate = tl.load(rates + place, mask=real, other=0).to(tl.float64)[:, None]
    return tl.cumsum(rate, 0), tl.sum(rate, 0)


@triton.jit
def within(passed, like, T: tl.constexpr):  # type: ignore[no-untyped-def]
    """Decay of position j at position i (T, T), zero where j is later."""
    at = tl.arange(0, T)
    earlier = at[:, None] >= at[None, :]
    lost = tl.where(earlier, passed - tl.trans(passed), 0.0)
    return tl.where(earlier, tl.exp(-lost.to(like.dtype)), 0.0)


@triton.jit
def left_of(passed, at, rate, like, j):  # type: ignore[no-untyped-def]
    """Decay of position j at each (T, E), zero before it; the rates up to it add up to `rate` (E,)."""
    later = (at >= j)[:, None]
    lost = tl.where(later, passed - rate[None, :], 0.0)
    return tl.where(later, tl.exp(-lost.to(like.dtype)), 0.0)


@triton.jit
def squares(source, number, T: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return pointers to a matrix (T, T)."""
    at = tl.arange(0, T)
    return source + (number * T + at[:, None]) * T + at[None, :]


@triton.jit
def chunks(  # type: ignore[no-untyped-def]
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
    place, real = chunk_positions(n, t, head, h, backwards, T)
    at, channel = tl.arange(0, T), tl.arange(0, E)
    q, k = rows(query, place, real, e, channel), rows(key, place, real, e, channel)
    passed, _ = passed_rates(rates, place, real, e, channel, PER_CHANNEL)
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
            column = tl.sum(q * other[None, :] * left_of(passed, at, rate, q, j), 1)
            found = tl.where((at == j)[None, :], column[:, None], found)
        tl.store(squares(scores, number, T), found)
    else:
        kept = within(passed, q, T)
        tl.store(squares(scores, number, T), tl.dot(q, tl.trans(k), input_precision="ieee") * kept)
        if DELTA:
            beta = tl.load(strength + place, mask=real, other=0)
            overlap = beta[:, None] * tl.dot(k, tl.trans(k), input_precision="ieee") * kept
            # The inverse of the identity plus what is below the diagonal, row by row.
            overlap = tl.where(at[:, None] > at[None, :], overlap, 0.0)
            found = (at[:, None] == at[None, :]).to(q.dtype)
            for i in range(1, T):
                row = tl.sum(tl.where((at == i)[:, None], overlap, 0.0), 0)
                found = tl.where((at == i)[:, None], found - tl.sum(row[:, None] * found, 0)[None, :], found)
            tl.store(squares(inverses, number, T), found)


@triton.jit
def forward(  # type: ignore[no-untyped-def]
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
    pointers, inside = columns(state, head, e, v, channel, column)
    matrix = tl.load(pointers, mask=inside, other=0)
    for n in range(chunks):
        if SAVES:
            pointers, _ = columns(borders, (head // h * chunks + n) * h + head % h, e, v, channel, column)
            tl.store(pointers, matrix, mask=inside)
        place, real = chunk_positions(n, t, head, h, backwards, T)
        q, k = rows(query, place, real, e, channel), rows(key, place, real, e, channel)
        new = rows(value, place, real, v, column)
        passed, total = passed_rates(rates, place, real, e, channel, PER_CHANNEL)
        late = tl.exp((-passed).to(q.dtype))
        if DELTA:
            beta = tl.load(strength + place, mask=real, other=0)
            old = late * tl.dot(k, matrix, input_precision="ieee")
            inverse = tl.load(squares(inverses, head * chunks + n, T))
            new = tl.dot(inverse, beta[:, None] * (new - old), input_precision="ieee")
        found = tl.dot(q * late, matrix, input_precision="ieee")
        found += tl.dot(tl.load(squares(scores, head * chunks + n, T)), new, input_precision="ieee")
        mask = real[:, None] & (column < v)[None, :]
        tl.store(out + place[:, None] * v + column[None, :], found, mask=mask)
        until = tl.exp((passed - total[None, :]).to(q.dtype))
        matrix = tl.exp((-total).to(q.dtype))[:, None] * matrix
        matrix += tl.dot(tl.trans(k * until), new, input_precision="ieee")
    pointers, inside = columns(last, head, e, v, channel, column)
    tl.store(pointers, matrix, mask=inside)
