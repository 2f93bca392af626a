"""Attention of blocks over windows with a gradient written by hand, and in plain operations."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from longspan.ops.execution import differentiated_further, plain_gradients
from longspan.ops.scan import FLOOR, accumulation_dtype
from longspan.ops.window.windows import At, Chosen, Sliding, visible_keys, windows

# Scores computed together: few enough to stay in the cache until they are used up.
SCORES = 2**20


def in_plain_operations(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, source: Sliding | Chosen
) -> tuple[Tensor, Tensor]:
    """Compute what `Windows` does from operations whose gradients have gradients, all windows at once."""
    return plain_attention(query, windows(source, key), windows(source, value), visible_keys(source, visible, query))


def plain_attention(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same from windows (b, h, n, k, e) and which of their keys are seen, (b or 1, h or 1, n, q or 1, k)."""
    exact, dtype = accumulation_dtype(values.dtype), values.dtype
    with torch.autocast(query.device.type, enabled=False):
        query, keys, values = (x.to(exact) for x in (query, keys, values))
        scores = query @ keys.mT / query.shape[4] ** 0.5
        scores = scores.masked_fill(~seen, FLOOR)
        out = scores.softmax(-1) @ values
    return out.to(dtype), scores.logsumexp(-1)


class Windows(Function):
    """Attention of blocks over windows for float32 and float64 on a CPU: a few at a time, in buffers used again.

    Maps blocks of queries (b, h, n, q, e) and all keys and values (b, h, p, e) to the output and the logarithm of each
    query's normaliser. `visible` (b or 1, h or 1, n, k) says which keys of a window may be seen. Scores are in base 2,
    as exp2 is several times as fast as exp there. The backward pass computes them again, from the same products and
    with the same maxima, so that logits of any size give the same weights again.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, visible: Tensor, source: Sliding | Chosen
    ) -> tuple[Tensor, Tensor]:
        b, h, n, block, _ = query.shape
        layout = Layout(query, visible, source.banded)
        # Stored position by position, so that merging the heads moves nothing.
        out = query.new_empty(b, n, block, h, value.shape[3]).permute(0, 3, 1, 2, 4)
        peak, total = query.new_empty(2, b, h, n, block, 1)
        keys, values, space = source.open(key), source.open(value), layout.space(query)
        for at in layout.chunks():
            scores = layout.scores(_scaled(query[at]).flatten(0, 2), source.take(keys, at), at, space)
            highest = scores.amax(-1, keepdim=True)
            scores.sub_(highest).exp2_()
            norm = scores.sum(-1, keepdim=True)
            shape = query[at].shape[:3]
            peak[at], total[at] = highest.unflatten(0, shape), norm.unflatten(0, shape)
            out[at] = torch.bmm(scores, source.take(values, at)).div_(norm).unflatten(0, shape)
        ctx.save_for_backward(query, key, value, visible, out, peak, total)
        ctx.layout, ctx.source = layout, source
        return out, (peak + total.log2()).squeeze(-1) * math.log(2)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad_out: Tensor, grad_normaliser: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, visible, out, peak, total = ctx.saved_tensors
        layout: Layout = ctx.layout
        source: Sliding | Chosen = ctx.source
        if differentiated_further():
            given = (query, key, value, visible, source)
            return plain_gradients(in_plain_operations, given, (grad_out, grad_normaliser))
        keys, values = source.open(key), source.open(value)
        space, slopes = layout.space(query), layout.space(query)
        root = query.shape[4] ** -0.5
        grad_query, grad_key, grad_value = torch.empty_like(query), source.room(keys), source.room(values)
        for at in layout.chunks():
            window, shape = source.take(keys, at), query[at].shape[:3]
            rows = _scaled(query[at]).flatten(0, 2)
            # Weights are exp2(score - peak) / total; the division is made here, once.
            upstream = grad_out[at] / total[at]
            along = (upstream * out[at]).sum(-1, keepdim=True) - grad_normaliser[at].unsqueeze(-1) / total[at]
            upstream, along = upstream.flatten(0, 2), along.flatten(0, 2)
            weights = layout.scores(rows, window, at, space).sub_(peak[at].flatten(0, 2)).exp2_()
            source.fold(grad_value, torch.bmm(weights.mT, upstream), at)
            slope = slopes[: len(weights)]
            torch.baddbmm(along, upstream, source.take(values, at).mT, beta=-1, out=slope)
            slope.mul_(weights)
            grad_query[at] = torch.bmm(slope, window).mul_(root).unflatten(0, shape)
            source.fold(grad_key, torch.bmm(slope.mT, rows), at)
        grad_key *= math.log(2)
        return grad_query, source.close(grad_key, key), source.close(grad_value, value), None, None


def _scaled(query: Tensor) -> Tensor:
    """Return queries for scores in base 2."""
    return query * (query.shape[4] ** -0.5 / math.log(2))


class Layout:
    """Layout of the scores, and the portions in which they are taken."""

    def __init__(self, query: Tensor, visible: Tensor, banded: bool) -> None:
        self.b, self.h, self.n, self.block, _ = query.shape
        self.width = visible.shape[3]
        self.corners: tuple[Tensor, ...] = ()
        if banded:
            corner = query.new_full((self.block, self.block), FLOOR)
            self.corners = corner.tril(-1), corner.triu(1)
        self.hidden = (~visible).expand(self.b, self.h, self.n, -1)

    def chunks(self) -> Iterator[At]:
        """Yield slices of rows, heads and blocks with at most SCORES scores together, or with one block."""
        rest, slices = max(1, SCORES // (self.block * self.width)), []
        for length in (self.n, self.h, self.b):
            size = -(-length // -(-length // rest))
            slices.append([slice(first, min(first + size, length)) for first in range(0, length, size)])
            rest = max(1, rest // size)
        blocks, heads, rows = slices
        yield from itertools.product(rows, heads, blocks)

    def space(self, like: Tensor) -> Tensor:
        """Return room for the scores of a chunk."""
        rows, heads, blocks = (part.stop for part in next(self.chunks()))
        return like.new_empty(rows * heads * blocks, self.block, self.width)

    def scores(self, query: Tensor, window: Tensor, at: At, space: Tensor) -> Tensor:
        """Return the scores of scaled queries (windows, q, e) in `space`, those of unseen keys far below all others."""
        scores = torch.bmm(query, window.mT, out=space[: len(query)])
        if self.corners:
            scores[:, :, : self.block] += self.corners[0]
            scores[:, :, -self.block :] += self.corners[1]
        hidden = self.hidden[at]
        if hidden.any():
            scores += (hidden.flatten(0, 2).unsqueeze(1) * FLOOR).to(scores.dtype)
        return scores
