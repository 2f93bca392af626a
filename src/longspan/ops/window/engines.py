"""The three ways to let blocks of queries attend to windows: in portions, fused, and in plain operations."""

import itertools
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from longspan.ops.alibi import biases
from longspan.ops.blocks import block_by_block
from longspan.ops.execution import by_hand, exporting, on_cpu, transformed, without_autocast
from longspan.ops.scan import FLOOR, accumulation_dtype
from longspan.ops.window import engines
from longspan.ops.window.portions import Windows, in_plain_operations, plain_attention
from longspan.ops.window.windows import Chosen, Sliding, visible_keys, windows


class Shared(NamedTuple):
    """Keys and values (b, h, g, e) that every query sees besides its window; `mask` (b, g) is False at absent ones."""

    key: Tensor
    value: Tensor
    mask: Tensor


def attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, source: Sliding | Chosen, shared: Shared | None = None
) -> Tensor:
    """Return the attention of blocks (b, h, n, q, e) to their windows of keys and values (b, h, p, e), and to `shared`.

    `visible` (b or 1, h or 1, n, k) says which keys of a window may be seen. The outputs of queries that see nothing
    are undefined.
    """
    if not query.numel():
        return query @ query.new_zeros(query.shape[4], value.shape[3])
    if transformed() or in_portions(query):
        function = in_plain_operations if transformed() else Windows.apply
        dtype, exact = query.dtype, accumulation_dtype(query.dtype)
        with without_autocast(query):
            query, key, value = (x.to(exact) for x in (query, key, value))
            out, normaliser = function(query, key, value, visible, source)
            if shared is not None:
                shared = Shared(shared.key.to(exact), shared.value.to(exact), shared.mask)
                out = _add_shared(out, normaliser, query, shared)
        return out.to(dtype)
    visible = visible_keys(source, visible, query)
    keys, values = windows(source, key), windows(source, value)
    found = (keys, values, visible) if shared is None else _with_shared(shared, keys, values, visible)
    return plain_attention(query, *found)[0] if exporting() else _fused(query, *found)


def attend_by_distance(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, source: Sliding, at: Tensor, numbers: Tensor
) -> Tensor:
    """Return the same with scores that fall with the distance (`ops.alibi`) from queries to the keys of their window.

    `at`, of shape `(b or 1, 1, n, q)`, numbers the queries; `numbers`, of shape `(b or 1, 1, n, k)`, the keys.
    """
    if not query.numel():
        return query @ query.new_zeros(query.shape[4], value.shape[3])
    keys, values = windows(source, key), windows(source, value)
    # Biases of a few blocks at a time, and again in the backward pass.
    wider = max(1, keys.shape[3] // query.shape[4])
    parts = block_by_block(
        _biased, 2, query, keys, values, visible_keys(source, visible, query), at, numbers, widening=wider
    )
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _biased(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, at: Tensor, numbers: Tensor) -> Tensor:
    exact, dtype = accumulation_dtype(values.dtype), values.dtype
    with without_autocast(query):
        query, keys, values = (x.to(exact) for x in (query, keys, values))
        scores = query @ keys.mT / query.shape[4] ** 0.5 + biases(at, numbers, query)
        return (scores.masked_fill(~seen, FLOOR).softmax(-1) @ values).to(dtype)


def in_portions(query: Tensor) -> bool:
    """Return whether `Windows` is the faster way: on a CPU, in half precision only where there will be gradients.

    The fused kernels' gradients in half precision take longer than those of `Windows` in float32.
    """
    if not (on_cpu(query) and by_hand()):
        return False
    if query.dtype in (torch.float16, torch.bfloat16):
        return torch.is_grad_enabled() and query.requires_grad
    return not torch.is_autocast_enabled("cpu")


def _add_shared(out: Tensor, normaliser: Tensor, query: Tensor, shared: Shared) -> Tensor:
    """Return softmax over a window as one key, whose logit is its normaliser, and the shared keys as they are."""
    blocks = query.shape[2:4]
    logits = query.flatten(2, 3) @ shared.key.mT / query.shape[4] ** 0.5
    logits = logits.masked_fill(~shared.mask[:, None, None, :], FLOOR).unflatten(2, blocks)
    weights = torch.cat((normaliser.unsqueeze(-1), logits), -1).softmax(-1)
    return out * weights[..., :1] + (weights[..., 1:].flatten(2, 3) @ shared.value).unflatten(2, blocks)


def _with_shared(shared: Shared, keys: Tensor, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the windows and what is seen of them with the shared keys before the others."""
    keys, values = (
        torch.cat((x.unsqueeze(2).expand(-1, -1, windows.shape[2], -1, -1), windows), 3)
        for x, windows in ((shared.key, keys), (shared.value, values))
    )
    present = shared.mask[:, None, None, None, :].expand(-1, *seen.shape[1:4], -1)
    return keys, values, torch.cat((present, seen.expand(present.shape[0], -1, -1, -1, -1)), 4)


def _fused(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Return the attention of blocks (b, h, n, q, e) over windows (b, h, n, k, e) by scaled_dot_product_attention.

    `seen` is (b or 1, h or 1, n, q or 1, k).
    """
    b, _, n, block, _ = query.shape
    # Where nothing is seen, let everything be seen: some kernels give NaN otherwise. The callers set it to zero.
    seen = (seen | ~seen.any(-1, keepdim=True)).expand(b, -1, -1, -1, -1)
    query, keys, values, seen = (x.transpose(1, 2).flatten(0, 1) for x in (query, keys, values, seen))
    out = scaled_dot_product_attention(query, keys, values, attn_mask=seen.expand(-1, -1, block, -1))
    return out.unflatten(0, (b, n)).transpose(1, 2)


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
    if exporting():
        keys, values = (x[row, head, numbers].flatten(3, 4) for x in (key, value))
        out = plain_attention(query, keys, values, visible.unsqueeze(3))[0]
        return out * visible.any(-1)[..., None, None]
    source = Chosen((row * h + head) * m + numbers, size)
    out = engines.attend(query, key.flatten(2, 3), value.flatten(2, 3), visible, source)
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
