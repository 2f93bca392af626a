"""Transformer-XL's attention and its gradient, computed part by part, in place, in memory shared by all parts.

Scores are read or written a dozen times for a gradient. A pass through memory takes as long as the product that
computes them; a pass through a core's cache takes almost no time. A part is therefore sized to fit there.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.ops.execution import on_cpu
from longspan.ops.pooling import FLOOR, accumulation_dtype

# Scores in a part per core of a CPU: about its cache. Parts of half the size spend more time on starting operations.
TILE = 2**19


class Part(NamedTuple):
    """A block of queries, in some rows and some heads of the keys, and what they may see.

    Attributes:
        heads, rows, queries, keys, distances: slices of the part, which has the queries of all heads that share keys.
        limits: for some of the columns, an upper limit of each query's scores, (n, columns): FLOOR hides a key.
    """

    heads: slice
    rows: slice
    queries: slice
    keys: slice
    distances: slice
    limits: list[tuple[slice, Tensor]]


class Scores:
    """The arguments of `relative_attention`, cut into blocks of queries, and these into parts.

    `block` is the maximum number of queries in a block, and `largest` the distance of the first distance key. Keys,
    values and distance keys that have no heads count as one head, shared by all queries.
    """

    def __init__(
        self,
        content: Tensor,
        position: Tensor,
        key: Tensor,
        value: Tensor,
        distance_key: Tensor,
        mask: Tensor | None,
        causal: bool,
        window: int | None,
        *,
        block: int,
        largest: int,
    ) -> None:
        self.shared = key.ndim == 3
        if self.shared:
            key, value, distance_key = key.unsqueeze(1), value.unsqueeze(1), distance_key.unsqueeze(0)
        self.content, self.position, self.distance_key = content, position, distance_key.contiguous()
        # Heads first, as those of several rows use the same distance keys.
        self.key, self.value = (tensor.transpose(0, 1).contiguous() for tensor in (key, value))
        self.hidden = None if mask is None else ~mask
        self.causal, self.window, self.block, self.largest = causal, window, block, largest
        # The type of scores and sums.
        self.exact = accumulation_dtype(value.dtype)
        self._room: dict[str, Tensor] = {}

    def blocks(self) -> Iterator[Part]:
        """Yield the blocks of queries, with all rows and heads, from the last, which may need the most memory."""
        (heads, b, m, _), n = self.key.shape, self.content.shape[2]
        size = _even(n, self.block)
        for start in reversed(range(0, n, size)):
            end = min(start + size, n)
            first, after = m - n + start, m - n + end
            low = 0 if self.window is None else max(0, first - self.window)
            high = after if self.causal else m
            # From the distance between the last query and the first key; one more than there are, for rows to shift.
            skipped = self.largest - (after - 1 - low)
            distances = slice(skipped, skipped + end - start + high - low)
            # Each covers the columns in which a query's position decides what it sees.
            positions = torch.arange(first, after, device=self.key.device).unsqueeze(1)
            limits = []
            if self.causal:
                later = torch.arange(first + 1, after, device=self.key.device) > positions
                limits.append((slice(first + 1 - low, None), self._limit(later)))
            if self.window is not None:
                first_seen = positions - self.window
                before = torch.arange(low, max(low, after - 1 - self.window), device=self.key.device) < first_seen
                limits.append((slice(before.shape[1]), self._limit(before)))
            yield Part(slice(heads), slice(b), slice(start, end), slice(low, high), distances, limits)

    def parts(self, block: Part) -> Iterator[Part]:
        """Cut a block into parts, some rows of one head or all rows of some heads, none larger than the first."""
        heads, b = self.key.shape[:2]
        fitting = max(1, heads * b)
        if on_cpu(self.key):
            queries, keys = (piece.stop - piece.start for piece in (block.queries, block.keys))
            fitting = max(1, TILE * torch.get_num_threads() // (self.content.shape[1] // heads * queries * keys))
        some_heads, some_rows = _even(heads, max(1, fitting // max(1, b))), _even(b, fitting)
        for head, row in itertools.product(range(0, heads, some_heads), range(0, b, some_rows)):
            chosen = slice(head, min(head + some_heads, heads)), slice(row, min(row + some_rows, b))
            yield block._replace(heads=chosen[0], rows=chosen[1])

    def of_queries(self, tensor: Tensor, part: Part) -> Tensor:
        """Return the slice of a tensor (b, h, n, ·) for a part, as (heads, rows, sharing heads, queries, ·)."""
        by_head = tensor.unflatten(1, (self.key.shape[0], -1)).transpose(0, 1)
        return by_head[part.heads, part.rows, :, part.queries]

    def seen(self, part: Part) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of a part, (heads · rows, keys, ·)."""
        key, value = (tensor[part.heads, part.rows, part.keys] for tensor in (self.key, self.value))
        return key.flatten(0, 1), value.flatten(0, 1)

    def room(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return scratch memory, the same for the same name: new memory costs as much as filling it."""
        size = math.prod(shape)
        if name not in self._room or self._room[name].numel() < size:
            self._room[name] = self.key.new_empty(size, dtype=dtype)
        return self._room[name][:size].view(shape)

    def exact_product(self, left: Tensor, right: Tensor, name: str) -> Tensor:
        """Return left @ right in the type of scores, never rounded to half precision, in the room of that name."""
        if left.is_cuda and left.dtype != self.exact:
            return torch.bmm(left, right, out_dtype=self.exact)
        room = self.room(name, *left.shape[:2], right.shape[2], dtype=self.exact)
        # The factors are small compared to the product; nothing is lost and little is spent by widening them.
        return torch.bmm(left.to(self.exact), right.to(self.exact), out=room)

    def weights(self, part: Part) -> Tensor:
        """Return the weight of each key for each query of a part, (heads · rows, sharing heads · queries, keys)."""
        content, position = (self.of_queries(tensor, part) for tensor in (self.content, self.position))
        heads, rows, sharing, n, _ = content.shape
        (key, _), distance_key = self.seen(part), self.distance_key[part.heads, part.distances]
        together, queries, m = heads * rows, sharing * n, key.shape[1]
        content, position = content.reshape(together, queries, -1), position.reshape(heads, rows * queries, -1)
        columns = self.exact_product(position, distance_key.mT, "columns")
        scores = self.exact_product(content, key.mT, "scores")
        by_place = scores.view(together, sharing, n, m)
        by_place.add_(shift(columns.view(together, sharing, n, n + m)))
        for places, limit in part.limits:
            by_place[..., places].clamp_max_(limit)
        weights = self.room("weights", together, queries, m, dtype=self.exact)
        hidden = None if self.hidden is None else self.hidden[part.rows, part.keys]
        # Checking the values saves work on a CPU; elsewhere it would wait for the device.
        if hidden is None or (on_cpu(hidden) and not hidden.any()):
            return torch.softmax(scores, -1, out=weights)
        scores.view(heads, rows, queries, m).clamp_max_(self._limit(hidden).unsqueeze(1))
        return torch.softmax(scores, -1, out=weights).mul_(scores.amax(-1, keepdim=True) > FLOOR / 2)

    def _limit(self, hidden: Tensor) -> Tensor:
        # Much faster than masked_fill.
        return torch.where(hidden, FLOOR, torch.inf).to(self.exact)


def attend(scores: Scores) -> Tensor:
    """Return the values weighted by the softmax of the scores, (b, h, n, v)."""
    (b, h, n, _), width = scores.content.shape, scores.value.shape[-1]
    # With the heads of a position adjacent in memory, as the next projection needs them.
    out = scores.value.new_empty(b, n, h, width).transpose(1, 2)
    for block in scores.blocks():
        for part in scores.parts(block):
            _, value = scores.seen(part)
            _put(scores.of_queries(out, part), torch.bmm(scores.weights(part).to(value.dtype), value))
    return out


def gradients(scores: Scores, gradient: Tensor, out: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of content, position, key, value and distance key, given that of `out`."""
    dtype = gradient.dtype
    to_content, to_position = torch.empty_like(scores.content), torch.empty_like(scores.position)
    # Sums over blocks, transposed: products are faster when their rows are as long as those of the weights.
    to_key, to_value, to_distance_key = (
        torch.zeros_like(tensor.mT, dtype=scores.exact, memory_format=torch.contiguous_format)
        for tensor in (scores.key, scores.value, scores.distance_key)
    )
    # The common part of the gradients of a query's weights, which the gradient of softmax subtracts.
    common = (gradient.to(scores.exact) * out).sum(-1, keepdim=True)
    for block in scores.blocks():
        shifted = None
        for part in scores.parts(block):
            content, position, given, off = (
                scores.of_queries(tensor, part) for tensor in (scores.content, scores.position, gradient, common)
            )
            (key, value), distance_key = scores.seen(part), scores.distance_key[part.heads, part.distances]
            weights = scores.weights(part)
            (heads, rows, sharing, n, _), (together, queries, m) = content.shape, weights.shape
            given = given.reshape(together, queries, -1)
            _add_product(to_value[part.heads, part.rows, :, part.keys], given.mT, weights.to(dtype))
            # In the memory of the scores, which are no longer needed.
            to_scores = scores.exact_product(given, value.mT, "scores")
            to_scores = to_scores.sub_(off.reshape(together, queries, 1)).mul_(weights).to(dtype)
            content = content.reshape(together, queries, -1)
            _add_product(to_key[part.heads, part.rows, :, part.keys], content.mT, to_scores)
            _put(scores.of_queries(to_content, part), torch.bmm(to_scores, key))
            if shifted is None:
                # The zeros around the keys stay zero from part to part.
                shifted = scores.room("shifted", together, sharing, n, n + m).zero_()
            shift(shifted[:together]).copy_(to_scores.view(together, sharing, n, m))
            columns = shifted[:together].view(heads, rows * queries, n + m)
            position = position.reshape(heads, rows * queries, -1)
            _add_product(to_distance_key[part.heads, :, part.distances], position.mT, columns)
            _put(scores.of_queries(to_position, part), torch.bmm(columns, distance_key))
    to_key, to_value, to_distance_key = (total.mT.to(dtype) for total in (to_key, to_value, to_distance_key))
    if scores.shared:
        return to_content, to_position, to_key[0], to_value[0], to_distance_key[0]
    return to_content, to_position, to_key.transpose(0, 1), to_value.transpose(0, 1), to_distance_key


def shift(columns: Tensor) -> Tensor:
    """Turn (..., n, m + n) scores by distance into (..., n, m) scores by key: row a starts n - 1 - a columns later."""
    n, width = columns.shape[-2:]
    return columns.flatten(-2)[..., n - 1 : n * width - 1].unflatten(-1, (n, width - 1))[..., : width - n]


def _put(place: Tensor, product: Tensor) -> None:
    """Write a product, one matrix for each head and row of a part, to its position in a tensor of queries."""
    place.copy_(product.view(place.shape))


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right to `total`, which has separate dimensions for heads and rows."""
    total = total.view(-1, *total.shape[-2:])
    if total.dtype == left.dtype:
        total.baddbmm_(left, right)
    else:
        total.add_(torch.bmm(left, right))


def _even(length: int, most: int) -> int:
    """Return the size of the fewest equal pieces of `length`, the last perhaps smaller, none larger than `most`."""
    pieces = max(1, math.ceil(length / most))
    return max(1, math.ceil(length / pieces))
