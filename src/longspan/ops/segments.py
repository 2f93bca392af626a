"""Softmax-weighted means of the parts of a row: of the turns of a meeting, the sentences of a text."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from longspan.ops.counts import counting, present
from longspan.ops.scan import FLOOR, accumulation_dtype


def segment_sum(
    values: Float[Tensor, "b t d"], segments: Int[Tensor, "b t"], count: int, mask: Bool[Tensor, "b t"] | None = None
) -> Float[Tensor, "b s d"]:
    """Return, for each of `count` segments of each row, the sum of the values that are in it, in at least float32.

    Values where `mask` is False are in none, and a segment without values has zeros. Cost: t·d.
    """
    flat, rows = _segment_rows(segments, count, mask)
    wide = values.to(accumulation_dtype(values.dtype))
    if mask is not None:
        wide = wide.masked_fill(~mask.unsqueeze(-1), 0)
    sums = wide.new_zeros(rows * (count + 1), values.shape[2]).index_add(0, flat, wide.flatten(0, 1))
    return sums.view(rows, count + 1, -1)[:, :count]


def segment_softmax_pool(
    values: Float[Tensor, "b t d"],
    logits: Float[Tensor, "b t"],
    segments: Int[Tensor, "b t"],
    count: int,
    mask: Shaped[Tensor, "b t"] | None = None,
) -> Float[Tensor, "b s d"]:
    """Return, for each of `count` segments of each row, the mean of its values weighted by the softmax of its logits.

    Args:
        values: what is pooled.
        logits: the softmax of those within a segment are its weights; equal logits give plain means.
        segments: the segment that each position is in, from 0 to count - 1, in any order.
        count: number of segments.
        mask: True at real positions; the others are in no segment, whatever `segments` says. Counts (`ops.counts`)
            multiply weights.

    A segment without positions gives zeros. Cost: t·d.
    """
    times, mask = (mask, present(mask)) if counting(mask) else (None, mask)
    flat, rows = _segment_rows(segments, count, mask)
    wide = logits.to(accumulation_dtype(logits.dtype))
    largest = wide.detach().new_full((rows * (count + 1),), FLOOR)
    largest = largest.scatter_reduce(0, flat, wide.detach().flatten(), "amax")
    weights = (wide - largest[flat].view_as(wide)).exp().unsqueeze(-1)
    if times is not None:
        weights = weights * times.unsqueeze(-1)
    total = segment_sum(weights, segments, count, mask)
    pooled = segment_sum(values.to(weights.dtype) * weights, segments, count, mask)
    # A segment with positions has at least the weight 1 of its largest logit, times its count.
    least = 0.5 if times is None else torch.finfo(total.dtype).tiny
    return (pooled / total.clamp_min(least)).to(values.dtype)


def _segment_rows(segments: Tensor, count: int, mask: Tensor | None) -> tuple[Tensor, int]:
    """Return the number of each position's segment among those of all rows, and the number of rows.

    Each row has one segment more, for padding.
    """
    rows = segments.shape[0]
    inside = segments if mask is None else segments.masked_fill(~mask, count)
    first = torch.arange(rows, device=segments.device).unsqueeze(1) * (count + 1)
    return (inside + first).flatten(), rows


def segment_softmax_pool_naive(
    values: Tensor, logits: Tensor, segments: Tensor, count: int, mask: Tensor | None = None
) -> Tensor:
    """Compute `segment_softmax_pool` segment by segment."""
    pooled = values.new_zeros(values.shape[0], count, values.shape[2])
    for row in range(values.shape[0]):
        for number in range(count):
            inside = segments[row] == number
            if mask is not None:
                inside = inside & mask[row]
            if inside.any():
                pooled[row, number] = logits[row, inside].softmax(0) @ values[row, inside]
    return pooled
