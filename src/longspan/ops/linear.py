"""Attention by products of positive features instead of exponentials of products: linear in the length.

With weights φ(q_i)·φ(k_j), Σ_j (φ(q_i)·φ(k_j)) v_j = φ(q_i)·(Σ_j φ(k_j) v_jᵀ): keys and values are summed once, in a
matrix whose size does not depend on their number.
"""

import functools
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from longspan.ops import linear_sums, slices
from longspan.ops.blocks import block_by_block, carried_through_blocks
from longspan.ops.chunks import in_chunks, whole
from longspan.ops.counts import counting
from longspan.ops.decay import Decay, chunk_decay, left_at_end, running_sums
from longspan.ops.execution import by_hand, exporting, on_cpu, transformed
from longspan.ops.fast_weights import fast_weights, fla
from longspan.ops.linear_sums import plain
from longspan.ops.rotary import rotated
from longspan.ops.scan import accumulation_dtype

# Positions per chunk of the causal form: weights within chunks need CHUNK numbers per position and head, sums before
# each chunk e·e/CHUNK.
CHUNK = 32
# Heads up to this width have compiled loops.
WIDEST = 128


class LinearSums(NamedTuple):
    """The sums over keys and values: Σ φ(k) vᵀ (b, h, e, v) and Σ φ(k) (b, h, e)."""

    values: Tensor
    weights: Tensor


def empty_sums(
    batch_size: int,
    heads: int,
    width: int,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> LinearSums:
    """Return the empty sums, in at least float32."""
    dtype = accumulation_dtype(dtype or torch.get_default_dtype())
    zeros = torch.zeros(batch_size, heads, width, width, dtype=dtype, device=device)
    return LinearSums(zeros, zeros[..., 0])


class SliceSums(NamedTuple):
    """Sums of a slice of a row, as they are at its end, and the `passed` (b, h) total of its rates, (b, 0) without."""

    sums: LinearSums
    passed: Tensor


def slice_sums(
    key: Float[Tensor, "b h m e"],
    value: Float[Tensor, "b h m v"],
    mask: Shaped[Tensor, "b m"] | None,
    rates: Float[Tensor, "b h m"] | None = None,
    numbers: Int[Tensor, "c 1 m"] | None = None,
) -> SliceSums:
    """Return the sums of a slice, whose `extend` of a state is that after `causal_linear_attention`. Cost: m·e·v."""
    if rates is None:
        sums = sum_up(key, value, mask, numbers)
        return SliceSums(sums, sums.weights.new_zeros(len(key), 0))
    with torch.autocast(key.device.type, enabled=False):
        left, passed = left_at_end(rates)
        keys = plain.key_features(key, None if mask is None else mask[:, None, :, None])
        keys = keys * left.to(keys.dtype).unsqueeze(-1)
        turned = plain.rotate(keys, None if numbers is None else numbers.unsqueeze(-1))
        return SliceSums(LinearSums(turned.mT @ value.to(keys.dtype), keys.sum(2)), passed.to(keys.dtype))


def extend(state: LinearSums, part: SliceSums) -> LinearSums:
    """Return the sums after a slice, given those before it."""
    if not part.passed.shape[1]:
        return add(state, part.sums)
    left = (-part.passed).exp().unsqueeze(-1)
    return LinearSums(state.values * left.unsqueeze(-1) + part.sums.values, state.weights * left + part.sums.weights)


def add(one: LinearSums, other: LinearSums) -> LinearSums:
    """Return the sums over the positions of both."""
    return LinearSums(one.values + other.values, one.weights + other.weights)


def linear_attention(
    query: Float[Tensor, "b h n e"],
    key: Float[Tensor, "b h m e"],
    value: Float[Tensor, "b h m v"],
    mask: Shaped[Tensor, "b m"] | None = None,
    numbers: Int[Tensor, "c 1 m"] | None = None,
) -> Float[Tensor, "b h n v"]:
    """Return Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j) over the keys where `mask` is True, φ = elu + 1.

    With `numbers`, those of the positions of both queries and keys, n = m, features are `rotated` by them in the sum of
    values, but not in the normaliser. A query that sees no key gives zeros. Cost: (n + m)·e·v, with sums in at least
    float32.
    """
    sums = slices.state_of_all(sum_up(key, value, mask, numbers), add)
    return read_sums(query, sums, numbers).to(value.dtype)


def sum_up(
    key: Float[Tensor, "b h m e"],
    value: Float[Tensor, "b h m v"],
    mask: Shaped[Tensor, "b m"] | None = None,
    numbers: Int[Tensor, "c 1 m"] | None = None,
) -> LinearSums:
    """Return the sums over the keys where `mask` is True, all that `read_sums` needs of them. Cost: m·e·v."""
    if has_loops(key, key.shape[3]) and _is_plain_sum(mask, numbers):
        return LinearSums(*linear_sums.sums(key, value, mask))
    # As the keys have theirs: (b, 1, m, 1).
    real = None if mask is None else mask[:, None, :, None]
    with torch.autocast(key.device.type, enabled=False):
        numbers = None if numbers is None else numbers.unsqueeze(-1)
        parts = block_by_block(plain.sums, 2, key, value, real, numbers)
        return LinearSums(*(functools.reduce(torch.add, each) for each in zip(*parts, strict=True)))


def read_sums(
    query: Float[Tensor, "b h n e"], sums: LinearSums, numbers: Int[Tensor, "c 1 n"] | None = None
) -> Float[Tensor, "b h n v"]:
    """Outputs of each query from the sums of `sum_up`, in their type. Cost: n·e·v."""
    if has_loops(query, query.shape[3]) and _is_plain_sum(None, numbers):
        return linear_sums.answers(*sums, query)
    with torch.autocast(query.device.type, enabled=False):
        numbers = None if numbers is None else numbers.unsqueeze(-1)
        out = block_by_block(functools.partial(plain.answers, *sums), 2, query, numbers)
    return out[0] if len(out) == 1 else torch.cat(out, 2)


def linear_attention_weights(
    query: Float[Tensor, "b h n e"], key: Float[Tensor, "b h m e"], mask: Shaped[Tensor, "b m"] | None = None
) -> Float[Tensor, "b h n m"]:
    """Return φ(q_i)·φ(k_j) / Σ_j φ(q_i)·φ(k_j), the weights of `linear_attention`, in at least float32.

    A query that sees no key gives zeros. Cost: n·m·e, and it does form all n·m of them.
    """
    with torch.autocast(query.device.type, enabled=False):
        keys = plain.key_features(key, None if mask is None else mask[:, None, :, None])
        queries = plain.query_features(query)
        return queries @ keys.mT * plain.inverse(queries @ keys.sum(2).unsqueeze(-1))


def causal_linear_attention(
    query: Float[Tensor, "b h t e"],
    key: Float[Tensor, "b h t e"],
    value: Float[Tensor, "b h t e"],
    mask: Shaped[Tensor, "b t"] | None,
    state: LinearSums,
    rates: Float[Tensor, "b h t"] | None = None,
    numbers: Int[Tensor, "c 1 t"] | None = None,
) -> tuple[Float[Tensor, "b h t e"], LinearSums]:
    """Return the same over the keys up to each query, and the sums after the last; `state` continues an earlier call.

    At position t the weights of all keys before it shrink by exp(-rates_t): `rates` are at least zero, and zero where
    `mask` is False. By compiled loops or kernels, which carry the sums along (`ops.fast_weights`). Or chunk by chunk,
    all chunks of a block at once: a masked product within, the sums of all earlier chunks before; no exponent is above
    zero. Cost: 2·t·e² per head, in chunks 2·t·e·(CHUNK + e), with sums in at least float32.
    """
    compiled = has_loops(query, query.shape[3]) or fla.has_kernels(value)
    if query.shape[2] > 1 and compiled and _is_plain_sum(mask, numbers):
        with torch.autocast(query.device.type, enabled=False):
            out, state = _causal_by_matrices(state, query, key, value, mask, rates)
        return out.to(value.dtype), state
    real = None if mask is None else mask[:, None, :, None]
    with torch.autocast(query.device.type, enabled=False):
        # Features, scores and sums of chunks together: blocks pay off from half the usual size.
        numbers = None if numbers is None else numbers.unsqueeze(-1)
        parts = (query, key, value, real, rates, numbers)
        out, state = carried_through_blocks(_causal_block, 2, state, *parts, widening=2)
    return out.to(value.dtype), state


def _causal_block(
    state: LinearSums,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    real: Tensor | None,
    rates: Tensor | None,
    numbers: Tensor | None,
) -> tuple[Tensor, LinearSums]:
    t = query.shape[2]
    if t == 0:
        return value, state
    if not exporting() and t == 1:
        # A step of a stream: too short for chunks.
        keys = plain.key_features(key, real)
        if rates is not None:
            kept = (-rates).exp().to(keys.dtype)
            state = LinearSums(state.values * kept.unsqueeze(-1), state.weights * kept)
        sums = state.values + plain.rotate(keys, numbers).mT @ value.to(keys.dtype)
        weights = state.weights + keys[:, :, 0]
        return plain.answers(sums, weights, query, numbers), LinearSums(sums, weights)
    queries, keys = plain.query_features(_chunks(query)), plain.key_features(_chunks(key), None)
    values = _chunks(value).to(keys.dtype)
    if real is not None or exporting() or t % keys.shape[3]:
        real = torch.ones_like(query[:, :1, :, :1], dtype=torch.bool) if real is None else real
        keys = keys * _chunks(real).to(keys.dtype)
    decay = None if rates is None else chunk_decay(_chunks(rates).to(keys.dtype))
    scores = _scores(queries, keys, decay)
    # Rotated features, if there are any, weigh values; the others make up the normaliser.
    turned, weighing = (queries, keys), scores
    if numbers is not None:
        at = _chunks(numbers).squeeze(-1)
        turned = rotated(queries, at), rotated(keys, at)
        weighing = _scores(*turned, decay)
    if decay is not None:
        fades = decay.since_start.unsqueeze(-1), decay.until_end.unsqueeze(-1)
        queries, keys = queries * fades[0], keys * fades[1]
        turned = (queries, keys) if numbers is None else (turned[0] * fades[0], turned[1] * fades[1])
    total = None if decay is None else decay.total
    before, sums = _running(turned[1].mT @ values, state.values, total)
    weights_before, weights = _running(keys.sum(3), state.weights, total)
    normaliser = scores.sum(-1, keepdim=True) + queries @ weights_before.unsqueeze(-1)
    if exporting():
        out = turned[0] @ before + weighing @ values
    else:
        out = (turned[0] @ before).flatten(0, 2)
        out = out.baddbmm(weighing.flatten(0, 2), values.flatten(0, 2)).view_as(values)
    return whole(out * plain.inverse(normaliser), 2, t), LinearSums(sums, weights)


def _is_plain_sum(mask: Tensor | None, numbers: Tensor | None) -> bool:
    """Return whether compiled loops and kernels, which neither count nor rotate, can sum up keys."""
    return numbers is None and not counting(mask) and not (exporting() or transformed())


def has_loops(tensor: Tensor, width: int) -> bool:
    """Return whether heads of a width have compiled loops where `tensor` is."""
    return width <= WIDEST and on_cpu(tensor)


def _causal_by_matrices(
    state: LinearSums, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rates: Tensor | None
) -> tuple[Tensor, LinearSums]:
    """The normaliser is one more column of the values, which are ones."""
    if on_cpu(query):
        queries, keys = linear_sums.features(query, None, True), linear_sums.features(key, mask, False)
    else:
        real = None if mask is None else mask[:, None, :, None]
        queries, keys = (x.to(value.dtype) for x in (plain.query_features(query), plain.key_features(key, real)))
    values = torch.cat((value.to(keys.dtype), keys.new_ones(*keys.shape[:3], 1)), -1)
    sums = torch.cat((state.values, state.weights.unsqueeze(-1)), -1)
    rates = keys.new_zeros(keys.shape[:3]) if rates is None else rates
    out, sums = fast_weights(queries, keys, values, None, rates, sums, backwards=0)
    read, normaliser = out.split((value.shape[3], 1), -1)
    summed, weights = sums.split((value.shape[3], 1), -1)
    return read * plain.inverse(normaliser), LinearSums(summed.contiguous(), weights.squeeze(-1).contiguous())


def _scores(queries: Tensor, keys: Tensor, decay: Decay | None) -> Tensor:
    scores = queries @ keys.mT
    if decay is not None:
        return scores * decay.within
    return scores.tril_() if by_hand() else scores.tril()


def _chunks(tensor: Tensor) -> Tensor:
    """Split (b, h, t, ...) into (b, h, chunks, at most CHUNK, ...), padding the last chunk with zeros."""
    size = CHUNK if exporting() else min(CHUNK, tensor.shape[2])
    # Made contiguous once, for all later products.
    return in_chunks(tensor, 2, size).contiguous()


def _running(chunks: Tensor, start: Tensor, rates: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return `start` plus the sum of all chunks before each, and `start` plus the sum of all chunks. Everything before
    a chunk decays by exp(-rates), (b, h, chunks)."""
    if rates is not None:
        return running_sums(chunks, start, rates)
    before = torch.cat((start.unsqueeze(2), chunks), 2)[:, :, :-1].cumsum(2)
    return before, before[:, :, -1] + chunks[:, :, -1]


def linear_attention_naive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    rates: Tensor | None = None,
) -> Tensor:
    """Compute both forms query by query, from the weights of the keys each may see."""
    out = query.new_zeros(*query.shape[:3], value.shape[3])
    for row in range(query.shape[0]):
        for i in range(query.shape[2]):
            visible = torch.ones(key.shape[2], dtype=torch.bool) if mask is None else mask[row].clone()
            if causal:
                visible[i + 1 :] = False
            if visible.any():
                asked = query[row, :, i : i + 1]
                # A factor of the query's own, which the normaliser cancels: without it, all of its features may vanish.
                features = torch.nn.functional.elu(asked - asked.amax(-1, keepdim=True).clamp_max(0)) + 1
                weights = features @ (torch.nn.functional.elu(key[row][:, visible]) + 1).mT
                if rates is not None:
                    lost = torch.stack([rates[row, :, j + 1 : i + 1].sum(-1) for j in range(i + 1)], -1)
                    weights = weights * (-lost).exp()[:, None, visible[: i + 1]]
                weights = weights / weights.sum(-1, keepdim=True).clamp_min(plain.TINY)
                out[row, :, i] = (weights @ value[row][:, visible])[:, 0]
    return out
