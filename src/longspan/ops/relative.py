"""Attention whose scores depend on the distance between query and key, as in Transformer-XL, in blocks of queries.

One product of the queries with the encoded distances gives the part of a score that depends on the distance. It has a
row per query and a column per distance. Shifting each row by one more column turns columns of distances into columns of
keys. A block of queries needs as many distances as it has keys and queries, so the full matrix of queries x keys is
never held. The backward pass recomputes a block's weights.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from longspan.ops.chunks import chunks, in_chunks, whole
from longspan.ops.execution import by_hand, differentiated_further, exporting, on_cpu, plain_gradients, transformed
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

    def keys_and_values(self, part: Part) -> tuple[Tensor, Tensor]:
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
        (key, _), distance_key = self.keys_and_values(part), self.distance_key[part.heads, part.distances]
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
            _, value = scores.keys_and_values(part)
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
            (key, value), distance_key = scores.keys_and_values(part), scores.distance_key[part.heads, part.distances]
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


# Queries per block: with fewer, the products are small; with more, the weights of a block outgrow the activations.
BLOCK = 128


def distance_encoding(distances: Int[Tensor, " r"], dim: int, dtype: torch.dtype) -> Float[Tensor, "r d"]:
    """Return Transformer-XL's sinusoid of each distance: `dim`/2 sines, then `dim`/2 cosines (not interleaved).

    Angles are computed in at least float32, as bfloat16 cannot tell neighbouring distances apart from 256 on; only the
    result has the type `dtype`.
    """
    exact = accumulation_dtype(dtype)
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, dtype=exact, device=distances.device) / dim)
    angles = distances.to(exact).unsqueeze(1) * frequencies
    return torch.cat((angles.sin(), angles.cos()), 1).to(dtype)


def distance_range(queries: int, keys: int, causal: bool, window: int | None) -> tuple[int, int]:
    """Return the largest and the smallest distance that `relative_attention` may ask for, both included.

    The queries are at the last positions of the keys. Some of these distances belong to keys that no query sees.
    """
    if exporting():
        return keys - 1, -queries
    largest = keys - 1 if window is None else min(keys - 1, window + 2 * BLOCK - 2)
    return largest, -min(BLOCK, queries) if causal else -queries


def relative_attention(
    content: Float[Tensor, "b h n e"],
    position: Float[Tensor, "b h n p"],
    key: Float[Tensor, "b *shared m e"],
    value: Float[Tensor, "b *shared m v"],
    distance_key: Float[Tensor, "*shared r p"],
    mask: Bool[Tensor, "b m"] | None = None,
    causal: bool = False,
    window: int | None = None,
) -> Float[Tensor, "b h n v"]:
    """Return, for each query i, Σ_j softmax_j(content_i·key_j + position_i·distance_key(i - j)) value_j.

    The queries are the last `n` of the `m` positions. Keys, values and distance keys have heads, or all heads share
    them and they have none. The rows of `distance_key` are the distances of `distance_range`, from the largest to the
    smallest. Keys where `mask` is False are not seen; `causal` hides the keys after a query, and `window` those more
    than `window` positions before it. A query that sees no key gives zeros.

    Scores and their softmax are in at least float32, other products in the type of `value`. Cost: n·m·(e + p + v) time.
    Memory besides the arguments and the result: BLOCK·(m + BLOCK) for each head, on a CPU for a few heads at a time.
    With a window, m is at most window + 2·BLOCK.
    """
    dtype = value.dtype
    content, position, key, distance_key = (tensor.to(dtype) for tensor in (content, position, key, distance_key))
    given = (content, position, key, value, distance_key, mask, causal, window)
    if not by_hand():
        return _in_plain_operations(*given)
    out: Tensor = _Attention.apply(*given)
    return out


class _Attention(Function):
    """`relative_attention` with a gradient written by hand."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        with torch.autocast(arguments[0].device.type, enabled=False):
            return attend(_scores(*arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.causal, ctx.window = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        content, position, key, value, distance_key, mask, out = ctx.saved_tensors
        given = (content, position, key, value, distance_key)
        options = (mask, ctx.causal, ctx.window)
        with torch.autocast(gradient.device.type, enabled=False):
            if differentiated_further():
                return plain_gradients(_in_plain_operations, (*given, *options), (gradient,))
            return *gradients(_scores(*given, *options), gradient, out), None, None, None


def _scores(
    content: Tensor,
    position: Tensor,
    key: Tensor,
    value: Tensor,
    distance_key: Tensor,
    mask: Tensor | None,
    causal: bool,
    window: int | None,
) -> Scores:
    largest, _ = distance_range(content.shape[2], key.shape[-2], causal, window)
    arguments = (content, position, key, value, distance_key, mask, causal, window)
    return Scores(*arguments, block=BLOCK, largest=largest)


def _in_plain_operations(
    content: Tensor,
    position: Tensor,
    key: Tensor,
    value: Tensor,
    distance_key: Tensor,
    mask: Tensor | None,
    causal: bool,
    window: int | None,
) -> Tensor:
    """Compute `relative_attention` from operations that compilers know and whose gradients have gradients."""
    n, m = content.shape[2], key.shape[-2]
    if exporting():
        return _block_after_block(content, position, key, value, distance_key, mask, causal, window)
    largest, _ = distance_range(n, m, causal, window)
    # The keys are split at every start of a block of queries, and as often before the first; or not at all.
    piece, offset = (BLOCK, (n - m) % BLOCK) if window is not None or (causal and n > BLOCK) else (m, 0)
    cuts = [*(max(0, at - offset) for at in range(0, m + offset, piece)), m]
    # Views of pieces, not slices of the whole: the gradient of a slice is as long as the whole.
    sizes = [end - start for start, end in itertools.pairwise(cuts)]
    keys, values = key.split(sizes, -2), value.split(sizes, -2)
    queries = zip(content.split(BLOCK, 2), position.split(BLOCK, 2), strict=True)
    # With several blocks, none keeps its weights for the backward pass. No transform can look into a checkpoint.
    forgets = n > BLOCK and torch.is_grad_enabled() and not transformed()
    out = []
    with torch.autocast(value.device.type, enabled=False):
        for number, (contents, positions) in enumerate(queries):
            first = m - n + number * BLOCK
            last = first + contents.shape[2] - 1
            from_piece = 0 if window is None else (max(0, first - window) + offset) // piece
            to_piece = (last + offset) // piece + 1 if causal else len(sizes)
            low, high = cuts[from_piece], cuts[to_piece]
            # From the distance between the last query and the first key; one more than there are, for rows to shift.
            skipped = largest - (last - low)
            arguments = (
                contents,
                positions,
                keys[from_piece:to_piece],
                values[from_piece:to_piece],
                distance_key[..., skipped : skipped + contents.shape[2] + high - low, :],
                None if mask is None else mask[:, low:high],
                first - low,
                causal,
                window,
            )
            if forgets:
                out.append(checkpoint(_block, *arguments, use_reentrant=False, preserve_rng_state=False))
            else:
                out.append(_block(*arguments))
    return torch.cat(out, 2)


def _block_after_block(
    content: Tensor,
    position: Tensor,
    key: Tensor,
    value: Tensor,
    distance_key: Tensor,
    mask: Tensor | None,
    causal: bool,
    window: int | None,
) -> Tensor:
    """Compute the same in one operation of a program, however many blocks there are; each meets all keys."""
    n, m = content.shape[2], key.shape[-2]
    heads, distance_heads = ("bh", "h") if key.ndim == 4 else ("b", "")
    exact = accumulation_dtype(key.dtype)
    contents, positions = (in_chunks(x.to(exact), 2, BLOCK).movedim(2, 0) for x in (content, position))
    wide, distance_key = key.to(exact), distance_key.to(exact)
    starts = torch.arange(chunks(n, BLOCK), device=key.device) * BLOCK + (m - n)
    # No size may be computed within the loop, as a file could not hold it. Here are the distances of a block at 0, and
    # the row of `distance_key` for none.
    base = torch.arange(BLOCK, device=key.device).unsqueeze(1) - torch.arange(m, device=key.device)
    origin = base.new_zeros(1) + (m - 1)
    last = origin + n
    hidden = ~(torch.ones_like(base[:1], dtype=torch.bool) if mask is None else mask)[:, None, None]

    def attend_from(nothing: Tensor, block: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        contents, positions, first = block
        distance = base + first
        scores = torch.einsum(f"bhne,{heads}me->bhnm", contents, wide)
        by_distance = torch.einsum(f"bhnp,{distance_heads}rp->bhnr", positions, distance_key)
        # What fills up the last block may lie beyond.
        rows = torch.minimum((origin - distance).clamp_min(0), last)
        scores = scores + by_distance.gather(3, rows.expand_as(scores))
        unseen = hidden
        if causal:
            unseen = unseen | (distance < 0)
        if window is not None:
            unseen = unseen | (distance > window)
        weights = scores.masked_fill(unseen, FLOOR).softmax(-1).to(value.dtype)
        out = torch.einsum(f"bhnm,{heads}mv->bhnv", weights, value)
        return nothing.clone(), out.masked_fill(unseen.all(-1, keepdim=True), 0)

    out = scan(attend_from, starts.new_zeros(1), (contents, positions, starts))[1]
    return whole(out.movedim(0, 2), 2, n)


def _block(
    content: Tensor,
    position: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    distance_key: Tensor,
    mask: Tensor | None,
    first: int,
    causal: bool,
    window: int | None,
) -> Tensor:
    """Attend from a block of queries, the first of which is at index `first` of the keys, which are given in pieces."""
    key, value = (pieces[0] if len(pieces) == 1 else torch.cat(tuple(pieces), -2) for pieces in (keys, values))
    heads, distance_heads = ("bh", "h") if key.ndim == 4 else ("b", "")
    # Before the products: scores rounded to half precision would be wrong by several units where they are large.
    exact = accumulation_dtype(key.dtype)
    content, position, wide, distance_key = (tensor.to(exact) for tensor in (content, position, key, distance_key))
    scores = torch.einsum(f"bhne,{heads}me->bhnm", content, wide)
    scores = scores + shift(torch.einsum(f"bhnp,{distance_heads}rp->bhnr", position, distance_key))
    n, m = scores.shape[-2:]
    visible = torch.ones(1, 1, 1, m, dtype=torch.bool, device=key.device) if mask is None else mask[:, None, None]
    distance = torch.arange(first, first + n, device=key.device).unsqueeze(1) - torch.arange(m, device=key.device)
    if causal:
        visible = visible & (distance >= 0)
    if window is not None:
        visible = visible & (distance <= window)
    weights = scores.masked_fill(~visible, FLOOR).softmax(-1).to(value.dtype)
    out = torch.einsum(f"bhnm,{heads}mv->bhnv", weights, value)
    return out.masked_fill(~visible.any(-1, keepdim=True), 0)


def relative_attention_naive(
    content: Tensor,
    position: Tensor,
    key: Tensor,
    value: Tensor,
    distance_key: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """Compute `relative_attention` pair by pair, query by query, over the keys each may see."""
    b, h, n, _ = content.shape
    if key.ndim == 3:
        key, value = key.unsqueeze(1).expand(-1, h, -1, -1), value.unsqueeze(1).expand(-1, h, -1, -1)
        distance_key = distance_key.expand(h, -1, -1)
    m = key.shape[2]
    largest, _ = distance_range(n, m, causal, window)
    out = content.new_zeros(b, h, n, value.shape[3])
    for row in range(b):
        for query in range(n):
            seen, scores = [], []
            for at in range(m):
                distance = query + m - n - at
                if (mask is not None and not mask[row, at]) or (causal and distance < 0):
                    continue
                if window is not None and distance > window:
                    continue
                seen.append(at)
                by_distance = position[row, :, query] * distance_key[:, largest - distance]
                scores.append((content[row, :, query] * key[row, :, at]).sum(-1) + by_distance.sum(-1))
            if seen:
                weights = torch.stack(scores, 1).softmax(1).unsqueeze(1)
                out[row, :, query] = (weights @ value[row][:, seen])[:, 0]
    return out
