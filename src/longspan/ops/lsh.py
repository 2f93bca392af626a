"""Attention among positions that a locality-sensitive hash puts close to each other."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from longspan.ops.blocks import block_by_block
from longspan.ops.chunks import chunks, first_of, split, whole, windows_at
from longspan.ops.execution import exporting
from longspan.ops.pooling import FLOOR, accumulation_dtype

# The logit of a position with itself: below that of any other position, above that of an invisible one, so that it
# counts only if there is no other.
SELF = -1e15


def hash_buckets(vectors: Float[Tensor, "b h t e"], rotations: Float[Tensor, "h e r n"]) -> Int[Tensor, "b h r t"]:
    """Return the bucket, of 2n, of each vector in each of r rounds: the nearest of n random directions or opposites.

    Cost: t·h·e·r·n. Without gradients: a bucket is a number.
    """
    with torch.no_grad(), torch.autocast(vectors.device.type, enabled=False):
        along = torch.einsum("bhte,hern->bhrtn", vectors, rotations)
        nearest = along.abs().argmax(-1, keepdim=True)
        opposite = along.gather(-1, nearest) < 0
        return (nearest + opposite * rotations.shape[3]).squeeze(-1)


def hash_buckets_naive(vectors: Tensor, rotations: Tensor) -> Tensor:
    """Compute `hash_buckets` vector by vector as the argmax over all directions [R; -R]."""
    b, h, t, _ = vectors.shape
    buckets = torch.empty(b, h, rotations.shape[2], t, dtype=torch.long)
    for row, head, number, i in torch.ones_like(buckets).nonzero().tolist():
        along = vectors[row, head, i] @ rotations[head, :, number]
        buckets[row, head, number, i] = torch.cat((along, -along)).argmax()
    return buckets


def lsh_attention(
    query_key: Float[Tensor, "b h t e"],
    value: Float[Tensor, "b h t v"],
    buckets: Int[Tensor, "b h r t"],
    chunk: int,
    mask: Bool[Tensor, "b t"] | None = None,
) -> Float[Tensor, "b h t v"]:
    """Return the attention of shared queries and keys within chunks of positions sorted by bucket, over r rounds.

    In each round the real positions, sorted by bucket and then by number, are cut into chunks. A position sees its own
    chunk and the one before it. The first chunk of a round sees the last of the previous round (the first round that of
    the last), unless there is only one. The logit is q_i·q_j/|q_j|, and 0 where q_j is zero. A position sees itself
    only if it sees no other. Rounds are weighted by their normalisers. Positions where `mask` is False are sorted last,
    seen by none, and give zeros. Logits and sums are in at least float32. Cost: 2·r·t·chunk·h·(e + v), memory
    r·t·h·(2·chunk + e + v).
    """
    t = query_key.shape[2]
    if not t:
        return value
    if not exporting():
        chunk = min(chunk, t)
        if t == chunk:
            # One chunk contains all positions, in any order: all rounds are alike.
            buckets = buckets[:, :, :1]
    mask = torch.ones_like(query_key[:, 0, :, 0], dtype=torch.bool) if mask is None else mask
    many = chunks(t, chunk)
    missing = many * chunk - t
    hidden = pad(~mask, (0, missing), value=True)[:, None, None]
    buckets = pad(buckets, (0, missing)).masked_fill(hidden, torch.iinfo(buckets.dtype).max)
    order = buckets.argsort(dim=-1, stable=True)
    count = mask.sum(1).view(-1, 1, 1, 1, 1, 1)
    last = (count - 1).clamp(min=0) // chunk

    query_key = query_key.to(accumulation_dtype(query_key.dtype))
    query = _in_chunks(query_key, order, many, chunk)
    values = _with_previous(_in_chunks(value, order, many, chunk), last)
    keys = _with_previous(query * _in_chunks(inverse_lengths(query_key), order, many, chunk), last)
    number = split(order, 3, many, chunk).unsqueeze(-1)
    place = windows_at(many, chunk, chunk, mask.device).view(1, 1, 1, -1, chunk, 1)
    visible = _with_previous(place < count, last)
    # The only chunk of a row is not also its own predecessor.
    visible[:, :, :, 0, :-chunk] &= last[..., 0, :, :] > 0
    numbers = _with_previous(number, last)
    # Scores have two chunks of keys to each position, which may be much more than the keys' width.
    widening = max(1, chunk // keys.shape[-1])
    parts = block_by_block(_attend, 3, query, keys, values, number, numbers, visible, widening=widening)
    mixed, normaliser = parts[0] if len(parts) == 1 else (torch.cat(each, 3) for each in zip(*parts, strict=True))

    # Back to the order of the sequence, then the mean over rounds.
    places = first_of(order.argsort(dim=-1), 3, t).unsqueeze(-1)
    mixed = whole(mixed, 3, t + missing).gather(3, places.expand(-1, -1, -1, -1, value.shape[3]))
    weights = whole(normaliser, 3, t + missing).gather(3, places).softmax(2)
    return (weights * mixed).sum(2).to(value.dtype) * mask[:, None, :, None]


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, number: Tensor, numbers: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the mean of values at each position, over the `visible` keys of two chunks, and the normaliser."""
    with torch.autocast(query.device.type, enabled=False):
        logits = query @ keys.mT
    logits = logits.masked_fill(number == numbers.mT, SELF).masked_fill(~visible.mT, FLOOR)
    normaliser = logits.logsumexp(-1, keepdim=True)
    return (logits - normaliser).exp().to(values.dtype) @ values, normaliser


def _in_chunks(x: Tensor, order: Tensor, number: int, chunk: int) -> Tensor:
    """Return `x` (b, h, t, w) in each round's order (b, h, r, T >= t), as (b, h, r, number, chunk, w)."""
    x = pad(x, (0, 0, 0, order.shape[3] - x.shape[2])).unsqueeze(2).expand(-1, -1, order.shape[2], -1, -1)
    x = x.gather(3, order.unsqueeze(-1).expand(*order.shape, x.shape[4]))
    return split(x, 3, number, chunk)


def _with_previous(x: Tensor, last: Tensor) -> Tensor:
    """Return `x` (b, h, r, chunks, chunk, w) with each chunk preceded by the other one that it sees.

    `last`, of shape `(b, 1, 1, 1, 1, 1)`, is the chunk with a row's last real positions. A single chunk sees no other.
    """
    if not exporting() and x.shape[3] == 1:
        return x
    wrapped = x.gather(3, last.expand(*x.shape[:3], 1, *x.shape[4:])).roll(1, 2)
    return torch.cat((torch.cat((wrapped, x), 3)[:, :, :, :-1], x), 4)


def inverse_lengths(x: Float[Tensor, "*s e"]) -> Float[Tensor, "*s 1"]:
    """Return 1/|x|, and 1 for vectors of zeros, which have no direction: x times it is still zero.

    Correct for vectors of any size, as squares are computed relative to the largest entry. A vector whose largest entry
    is below the smallest normal number counts as zero.
    """
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest < torch.finfo(x.dtype).tiny
    largest = largest.masked_fill(zero, 1)
    relative = (x / largest).square().sum(-1, keepdim=True).masked_fill(zero, 1).rsqrt()
    return relative / largest


def lsh_attention_naive(
    query_key: Tensor, value: Tensor, buckets: Tensor, chunk: int, mask: Tensor | None = None
) -> Tensor:
    """Compute `lsh_attention` position by position over the list of those that it sees in each round."""
    b, h, t, _ = query_key.shape
    out = torch.zeros_like(value)
    for row, head in torch.ones(b, h).nonzero().tolist():
        query, seen_value = query_key[row, head], value[row, head]
        key = [q / q.norm() if q.any() else q for q in query]
        real = [i for i in range(t) if mask is None or mask[row, i]]
        rounds = []
        for bucket in buckets[row, head].tolist():
            order = sorted(real, key=bucket.__getitem__)
            rounds.append([order[start : start + chunk] for start in range(0, len(order), chunk)])
        for i in real:
            totals, means = [], []
            for number, parts in enumerate(rounds):
                own = next(n for n, part in enumerate(parts) if i in part)
                # One place before the first is Python's last, among chunks as among rounds.
                before = rounds[number - (own == 0)][own - 1] if len(parts) > 1 else []
                others = [j for j in before + parts[own] if j != i]
                if others:
                    logits = torch.stack([key[j] @ query[i] for j in others])
                    totals.append(logits.logsumexp(0))
                    means.append(logits.softmax(0) @ seen_value[others])
            out[row, head, i] = torch.stack(totals).softmax(0) @ torch.stack(means) if means else seen_value[i]
    return out
