"""Softmax attention in which each query sees only keys near it, or only chosen blocks of keys.

Queries are cut into blocks, and each block attends to one window of keys: two small matrix products per block, so that
time and memory grow with the length, not with its square.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, scaled_dot_product_attention

from longspan.ops.attention import attention
from longspan.ops.pooling import FLOOR

# Queries per block, half of it for narrow windows. More of them share a window, with more keys that are not theirs.
BLOCK = 64
# Scores computed together: few enough to stay in the cache until they are used up.
SCORES = 2**20
# Slices of rows, heads and blocks: the windows of one portion.
At = tuple[slice, slice, slice]


class Shared(NamedTuple):
    """Keys and values (b, h, g, e) that every query sees besides its window; `mask` (b, g) is False at absent ones."""

    key: Tensor
    value: Tensor
    mask: Tensor


def window_attention(
    query: Float[Tensor, "b h n e"],
    key: Float[Tensor, "b h m e"],
    value: Float[Tensor, "b h m v"],
    radius: int,
    mask: Bool[Tensor, "b m"] | None = None,
    causal: bool = False,
    shared: Shared | None = None,
) -> Float[Tensor, "b h n v"]:
    """Return softmax(QKᵀ/√e)V over the keys at most `radius` positions away (causal: none ahead) where `mask` is True.

    The last query stands where the last key stands, so that fewer queries than keys continue a sequence. A query that
    sees no key gives zeros. Cost: n·(2·radius + BLOCK)·(e + v); causal n·(radius + BLOCK)·(e + v).
    """
    n, m = query.shape[2], min(key.shape[2], query.shape[2] + radius)
    key, value = key[:, :, key.shape[2] - m :], value[:, :, value.shape[2] - m :]
    mask = None if mask is None else mask[:, mask.shape[1] - m :]
    radius = min(radius, m - 1)
    if radius == m - 1:
        if shared is not None:
            real = key.new_ones(len(key), m, dtype=torch.bool) if mask is None else mask
            key, value = torch.cat((shared.key, key), 2), torch.cat((shared.value, value), 2)
            mask = torch.cat((shared.mask, real), 1)
        return attention(query, key, value, mask, causal)
    behind, ahead = radius, 0 if causal else radius
    block = min(n, BLOCK if behind + ahead >= 2 * BLOCK else BLOCK // 2)
    blocks = -(-n // block)
    width = behind + block + ahead
    # The first window starts `behind` positions before the first query, the last ends `ahead` after its block.
    before, after = behind - (m - n), blocks * block - n + ahead
    query = pad(query, (0, 0, 0, blocks * block - n)).unflatten(2, (blocks, block))
    key, value = pad(key, (0, 0, before, after)), pad(value, (0, 0, before, after))
    real = torch.ones(1, m, dtype=torch.bool, device=query.device) if mask is None else mask
    visible = pad(real, (before, after)).unfold(1, width, block).unsqueeze(1)
    if _in_portions(query):
        out, normaliser = _Windows.apply(query, key, value, visible, _Sliding(width, block), True)
        out = out if shared is None else _add_shared(out, normaliser, query, shared)
    else:
        keys, values = key.unfold(2, width, block).mT, value.unfold(2, width, block).mT
        band = torch.ones(block, width, dtype=torch.bool, device=query.device)
        seen = visible.unsqueeze(3) & band.triu() & band.tril(width - block)
        out = _fused(query, *((keys, values, seen) if shared is None else _beside(shared, keys, values, seen)))
    out = out.flatten(2, 3)[:, :, :n]
    if mask is None:
        return out
    sees = _count(mask, n, behind, ahead) > 0
    if shared is not None:
        sees = sees | shared.mask.any(1, keepdim=True)
    return out * sees[:, None, :, None]


def window_attention_naive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    radius: int,
    mask: Tensor | None = None,
    causal: bool = False,
    shared: Shared | None = None,
) -> Tensor:
    """Compute `window_attention` query by query over the keys each may see."""
    n, m = query.shape[2], key.shape[2]
    out = query.new_zeros(*query.shape[:3], value.shape[3])
    for row, i in itertools.product(range(query.shape[0]), range(n)):
        at = i + m - n
        seen = [j for j in range(m) if -radius <= j - at <= (0 if causal else radius)]
        seen = [j for j in seen if mask is None or mask[row, j]]
        keys, values = key[row][:, seen], value[row][:, seen]
        if shared is not None:
            keys = torch.cat((shared.key[row][:, shared.mask[row]], keys), 1)
            values = torch.cat((shared.value[row][:, shared.mask[row]], values), 1)
        if keys.shape[1]:
            scores = query[row, :, i : i + 1] @ keys.transpose(1, 2) / query.shape[3] ** 0.5
            out[row, :, i] = (scores.softmax(-1) @ values)[:, 0]
    return out


def block_attention(
    query: Float[Tensor, "b h n q e"],
    key: Float[Tensor, "b h m k e"],
    value: Float[Tensor, "b h m k v"],
    chosen: Int[Tensor, "b h n s"],
    mask: Bool[Tensor, "b m k"],
) -> Float[Tensor, "b h n q v"]:
    """Return softmax(QKᵀ/√e)V of each block of queries over the keys of the blocks that `chosen` names.

    A negative number names no block, and keys where `mask` is False are not seen. A block that sees no key gives zeros.
    Cost: n·q·s·k·(e + v).
    """
    b, h, m, size, _ = key.shape
    numbers = chosen.clamp(min=0)
    row, head = torch.arange(b, device=key.device).view(b, 1, 1, 1), torch.arange(h, device=key.device).view(h, 1, 1)
    visible = (mask[row, numbers] & (chosen >= 0).unsqueeze(-1)).flatten(3)
    if _in_portions(query):
        source = _Chosen((row * h + head) * m + numbers, size)
        out, _ = _Windows.apply(query, key.flatten(2, 3), value.flatten(2, 3), visible, source, False)
    else:
        keys, values = key[row, head, numbers].flatten(3, 4), value[row, head, numbers].flatten(3, 4)
        out = _fused(query, keys, values, visible.unsqueeze(3))
    return out * visible.any(-1)[..., None, None]


def block_attention_naive(query: Tensor, key: Tensor, value: Tensor, chosen: Tensor, mask: Tensor) -> Tensor:
    """Compute `block_attention` block by block over the keys each sees."""
    out = query.new_zeros(*query.shape[:4], value.shape[4])
    for row, head, i in itertools.product(*map(range, query.shape[:3])):
        named = [j for j in chosen[row, head, i].tolist() if j >= 0]
        if mask[row, named].any():
            keys, values = (torch.cat([x[row, head, j][mask[row, j]] for j in named]) for x in (key, value))
            scores = query[row, head, i] @ keys.T / query.shape[4] ** 0.5
            out[row, head, i] = scores.softmax(-1) @ values
    return out


def _count(mask: Tensor, n: int, behind: int, ahead: int) -> Tensor:
    """Return how many real keys each of the last `n` positions sees."""
    m = mask.shape[1]
    before = pad(mask.cumsum(1), (1, 0))
    at = torch.arange(m - n, m, device=mask.device)
    return before[:, (at + ahead + 1).clamp(max=m)] - before[:, (at - behind).clamp(min=0)]


def _in_portions(query: Tensor) -> bool:
    """Return whether `_Windows` is the faster way: elsewhere the fused kernels keep half precision's scores right."""
    device, dtype = query.device.type, query.dtype
    if device != "cpu" or dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled(device):
        return False
    return not torch.compiler.is_compiling()


def _add_shared(out: Tensor, normaliser: Tensor, query: Tensor, shared: Shared) -> Tensor:
    """Return softmax over a window as one key, whose logit is its normaliser, and the shared keys as they are."""
    blocks = query.shape[2:4]
    logits = query.flatten(2, 3) @ shared.key.mT / query.shape[4] ** 0.5
    logits = logits.masked_fill(~shared.mask[:, None, None, :], FLOOR).unflatten(2, blocks)
    weights = torch.cat((normaliser.unsqueeze(-1), logits), -1).softmax(-1)
    return out * weights[..., :1] + (weights[..., 1:].flatten(2, 3) @ shared.value).unflatten(2, blocks)


def _beside(shared: Shared, keys: Tensor, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the windows and what is seen of them with the shared keys before the others."""
    keys, values = (
        torch.cat((x.unsqueeze(2).expand(-1, -1, windows.shape[2], -1, -1), windows), 3)
        for x, windows in ((shared.key, keys), (shared.value, values))
    )
    present = shared.mask[:, None, None, None, :].expand(-1, *seen.shape[1:4], -1)
    return keys, values, torch.cat((present, seen.expand(len(present), -1, -1, -1, -1)), 4)


def _fused(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Return the attention of blocks (b, h, n, q, e) over windows (b, h, n, k, e) by scaled_dot_product_attention.

    `seen` is (b or 1, h or 1, n, q or 1, k).
    """
    b, _, n, block, _ = query.shape
    # Where nothing is seen let everything be: some kernels give NaN otherwise. The callers set it to zero.
    seen = (seen | ~seen.any(-1, keepdim=True)).expand(b, -1, -1, -1, -1)
    query, keys, values, seen = (x.transpose(1, 2).flatten(0, 1) for x in (query, keys, values, seen))
    out = scaled_dot_product_attention(query, keys, values, attn_mask=seen.expand(-1, -1, block, -1))
    return out.unflatten(0, (b, n)).transpose(1, 2)


class _Sliding(NamedTuple):
    """Windows of `width` keys, one at every `step` keys."""

    width: int
    step: int

    def open(self, x: Tensor) -> Tensor:
        """Return keys or values (b, h, p, e) in the form that `take` takes windows from."""
        return x.unfold(2, self.width, self.step).mT

    def take(self, opened: Tensor, at: At) -> Tensor:
        """Return the windows of a portion, (windows, width, e)."""
        return opened[at].flatten(0, 2)

    def room(self, opened: Tensor) -> Tensor:
        """Return zeros to which `fold` adds gradients."""
        b, h, n, width, e = opened.shape
        return opened.new_zeros(b, h, n - 1 + -(-width // self.step), self.step, e)

    def fold(self, grad: Tensor, part: Tensor, at: At) -> None:
        """Add gradients of windows to those of the keys they share."""
        rows, heads, blocks = at
        part = part.unflatten(0, [side.stop - side.start for side in at])
        for i, start in enumerate(range(0, self.width, self.step)):
            piece = part[:, :, :, start : start + self.step]
            grad[rows, heads, blocks.start + i : blocks.stop + i, : piece.shape[3]] += piece

    def close(self, grad: Tensor, like: Tensor) -> Tensor:
        """Return the gradient in the form of the keys."""
        return grad.flatten(2, 3)[:, :, : like.shape[2]]


class _Chosen(NamedTuple):
    """Windows put together from blocks of `size` keys: `blocks` (b, h, n, s) numbers them through rows and heads."""

    blocks: Tensor
    size: int

    def open(self, x: Tensor) -> Tensor:
        return x.reshape(-1, self.size * x.shape[3])

    def take(self, opened: Tensor, at: At) -> Tensor:
        blocks = self.blocks[at]
        windows = opened.index_select(0, blocks.flatten())
        return windows.view(-1, blocks.shape[3] * self.size, opened.shape[1] // self.size)

    def room(self, opened: Tensor) -> Tensor:
        return torch.zeros_like(opened)

    def fold(self, grad: Tensor, part: Tensor, at: At) -> None:
        grad.index_add_(0, self.blocks[at].flatten(), part.reshape(-1, grad.shape[1]))

    def close(self, grad: Tensor, like: Tensor) -> Tensor:
        return grad.view(like.shape)


class _Windows(torch.autograd.Function):
    """Attention of blocks over windows for float32 and float64 on a CPU: a few at a time, in buffers used again.

    Maps blocks of queries (b, h, n, q, e) and all keys and values (b, h, p, e) to the output and the logarithm of each
    query's normaliser. `visible` (b or 1, h or 1, n, k) says which keys of a window may be seen; banded: query i of a
    block sees keys i to i + k - q of its window only. Scores are in base 2, as exp2 is several times as
    fast as exp there. The backward pass computes them anew, from the same products and with the same maxima, so that
    logits of any size give the same weights again.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, visible: Tensor, source: _Sliding | _Chosen, banded: bool
    ) -> tuple[Tensor, Tensor]:
        b, h, n, block, e = query.shape
        query = query * (e**-0.5 / math.log(2))
        layout = _Layout(query, visible, banded)
        # Stored position by position, so that merging the heads moves nothing.
        out = query.new_empty(b, n, block, h, value.shape[3]).permute(0, 3, 1, 2, 4)
        peak, total = query.new_empty(2, b, h, n, block, 1)
        keys, values, space = source.open(key), source.open(value), layout.space(query)
        for at in layout.chunks():
            scores = layout.scores(query[at], source.take(keys, at), at, space)
            highest = scores.amax(-1, keepdim=True)
            scores.sub_(highest).exp2_()
            norm = scores.sum(-1, keepdim=True)
            shape = query[at].shape[:3]
            peak[at], total[at] = highest.unflatten(0, shape), norm.unflatten(0, shape)
            out[at] = torch.bmm(scores, source.take(values, at)).div_(norm).unflatten(0, shape)
        ctx.save_for_backward(query, key, value, out, peak, total)
        ctx.layout, ctx.source = layout, source
        return out, (peak + total.log2()).squeeze(-1) * math.log(2)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_normaliser: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, peak, total = ctx.saved_tensors
        layout: _Layout = ctx.layout
        source: _Sliding | _Chosen = ctx.source
        # Weights are exp2(score - peak) / total; the division is made here, once.
        grad_out = grad_out / total
        along = (grad_out * out).sum(-1, keepdim=True) - grad_normaliser.unsqueeze(-1) / total
        keys, values = source.open(key), source.open(value)
        space, slopes = layout.space(query), layout.space(query)
        grad_query, grad_key, grad_value = torch.empty_like(query), source.room(keys), source.room(values)
        for at in layout.chunks():
            window, shape = source.take(keys, at), query[at].shape[:3]
            rows, upstream = query[at].flatten(0, 2), grad_out[at].flatten(0, 2)
            weights = layout.scores(query[at], window, at, space).sub_(peak[at].flatten(0, 2)).exp2_()
            source.fold(grad_value, torch.bmm(weights.mT, upstream), at)
            slope = slopes[: len(weights)]
            torch.baddbmm(along[at].flatten(0, 2), upstream, source.take(values, at).mT, beta=-1, out=slope)
            slope.mul_(weights)
            grad_query[at] = torch.bmm(slope, window).unflatten(0, shape)
            source.fold(grad_key, torch.bmm(slope.mT, rows), at)
        grad_query *= query.shape[4] ** -0.5
        grad_key *= math.log(2)
        return grad_query, source.close(grad_key, key), source.close(grad_value, value), None, None, None


class _Layout:
    """Which scores there are, and in what portions they are taken."""

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
        """Return a chunk's scores in `space`, those of unseen keys far below all others."""
        query = query.flatten(0, 2)
        scores = torch.bmm(query, window.mT, out=space[: len(query)])
        if self.corners:
            scores[:, :, : self.block] += self.corners[0]
            scores[:, :, -self.block :] += self.corners[1]
        hidden = self.hidden[at]
        if hidden.any():
            scores += (hidden.flatten(0, 2).unsqueeze(1) * FLOOR).to(scores.dtype)
        return scores
