"""Attention to a bounded memory: slots gather keys and values from all positions, and queries attend to slots."""

import functools
from dataclasses import replace

import torch
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.mixers._forgetting import Forgetting, refuse_context
from longspan.mixers._naive import attend, faded
from longspan.mixers.base import Capabilities, ContextState, Look
from longspan.mixers.looks import Pairwise, time_constants
from longspan.ops import slices
from longspan.ops.affine import weight_and_bias
from longspan.ops.attention import attention, attention_weights
from longspan.ops.blocks import carried_through_blocks
from longspan.ops.chunks import in_chunks, whole
from longspan.ops.competition import position_softmax
from longspan.ops.execution import exporting
from longspan.ops.heads import head_width, merge_heads, split_heads, weighted
from longspan.ops.pooling import (
    PrefixMean,
    empty_prefix,
    extend,
    masked_logits,
    mean_of_all,
    prefix_softmax_mean,
    slice_slots,
)
from longspan.ops.reads import joint_reads, pool, score
from longspan.ops.scan import FLOOR, accumulation_dtype
from longspan.ops.scan.plain import exact_dtype, logaddexp, logcumsumexp

# Positions per chunk of the causal form. Weights within chunks take CHUNK·slots numbers per position and the slots
# before each chunk 2·slots·dim/CHUNK: equally many at a width of 128.
CHUNK = 16
# Standard deviation of the logits of φ at the beginning, of normalised x: slots take in a few positions each. With 1,
# slots are alike, and translation is learned more slowly; with 6, more slowly too (benchmarks/cross_attention.py).
SPREAD = 3.0


class BoundedMemory(Pairwise):
    """Attention with bounded memory: a few slots gather keys and values, and every position attends to the slots.

    Equations (φ: softmax over positions, per slot, the same for all heads):
        q_t = W_q x_t, k_t = W_k x_t, v_t = W_v x_t, split into heads of width e = dim / heads; φ = softmax_t(W_φ x_t)
        K_s = Σ_j φ_js k_j, V_s = Σ_j φ_js v_j
        y_t = W_o concat_h( Σ_s softmax_s(q_t·K_s / √e) V_s )
        causal: K_ts and V_ts are means over positions <= t, as φ is
            forgetting: position j weighs exp(-Σ_{j<i<=t} f_is) of what it weighed when new, in both means
        cross attention: slots gather from the context, q from x. Each position of x reads the slots by itself, so both
            forms give the same, and steps keep nothing of x.

    Order of computation: K_s = W_k (Σ_j φ_js x_j), so that keys and values are formed of slots, not of positions. The
    causal form forms them of positions, and never stores its t x slots x dim slots: within a chunk of C positions
    q_t·K_ts = Σ_j (q_t·k_j) exp(z_js - L_ts) for logits z = W_φ x and L_ts their logsumexp over the prefix, and the
    outputs likewise. The exponents, none above zero, are those of all heads. What came before the chunk enters through
    its slots.

    Cost: 2·t·dim² + 4·t·slots·dim + 2·slots·dim² time, t·dim memory; causal t·(4·dim² + (2·C + 5·slots)·dim +
        2·C·slots·heads) time, 2·slots·dim state; with a context 2·dim² + 2·slots·dim per step, whatever its length
    Source: Peng et al. 2022, "ABC: Attention with Bounded-memory Control", https://arxiv.org/abs/2110.02488
    Deviations: W_φ starts with weights large enough for slots to differ from the beginning. Forgetting is this
        project's; gated slot attention (Zhang et al. 2024, https://arxiv.org/abs/2409.07146) has another gate. A row
        without real positions, or without a real context, gives zeros.

    Args:
        dim: width of the input and the output.
        slots: number of slots.
        heads: number of heads; must divide `dim`.
        causal: whether a position sees only itself and those before it.
        bias: whether the four projections have biases.
        forget: decay of each slot, when causal: "none" (means of all earlier positions), "fixed" (constant rates),
            "learned" (trained rates), or "input" (rates that depend on x_t). Time constants begin at 2 to 4,096
            positions.

    Raises:
        UserError: when `slots` is less than one or `heads` does not divide `dim`; when a context meets packed documents
            or forgetting; for forgetting without causal=True.
    """

    capabilities = Capabilities(
        causal=True, streaming=True, context=True, weights=True, counts=True, looks=True, slices=True
    )

    def __init__(
        self,
        dim: int,
        *,
        slots: int = 32,
        heads: int = 8,
        causal: bool = False,
        bias: bool = True,
        forget: str = "none",
    ) -> None:
        super().__init__(dim, causal=causal)
        if slots < 1:
            raise UserError(f"bounded_memory expected at least one slot, got slots={slots}; choose 1 or more.")
        head_width("bounded_memory", dim, heads)
        self.slots = slots
        self.heads = heads
        self.gather = nn.Linear(dim, slots, bias=False)
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)
        self.forgetting = Forgetting("bounded_memory", dim, slots, forget, causal=causal)
        nn.init.normal_(self.gather.weight, std=SPREAD * dim**-0.5)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.causal:
            return self.advance(x, mask, self.init_state(x.shape[0], x.dtype, x.device))[0]
        return self._attend(x, self._filled(x, mask))

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        return replace(super().look_at(x, mask, at), time_constants=time_constants(self.forgetting(x, mask), mask))

    def gather_values(self, x: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
        if self.causal:
            empty = self.empty_state(x.shape[0], x.dtype, x.device)
            return split_heads(self._through(x, mask, empty, merge_heads(values))[0], self.heads)
        gathering, slots = self._gathered(x, mask)
        query, key = split_heads(self.query(x), self.heads), split_heads(self.key(slots), self.heads)
        return attention(query, key, gathering.to(values.dtype).unsqueeze(1) @ values)

    @property
    def takes_context(self) -> bool:
        return self.forgetting.kind == "none"

    def read_context(self, context: Tensor, context_mask: Tensor | None) -> ContextState:
        refuse_context("bounded_memory", self.forgetting)
        return ContextState(self._filled(context, context_mask))

    def advance_context(self, x: Tensor, mask: Tensor | None, state: ContextState) -> tuple[Tensor, ContextState]:
        return self._attend(x, state.context), state

    def weigh_context(self, x: Tensor, mask: Tensor | None, context: Tensor, context_mask: Tensor | None) -> Tensor:
        refuse_context("bounded_memory", self.forgetting)
        gathering, slots = self._gathered(context, context_mask)
        asked = attention_weights(split_heads(self.query(x), self.heads), split_heads(self.key(slots), self.heads))
        return asked @ gathering.unsqueeze(1)

    def pool_context(self, weights: Tensor, context: Tensor) -> Tensor:
        y: Tensor = self.output(weighted(weights, self.value(context)))
        return y

    def operations(self, length: int) -> int:
        dim, slots = self.dim, self.slots
        if not self.causal:
            return self.context_operations(length, length)
        chunk = min(CHUNK, length)
        # The last chunk is padded.
        within = -(-length // chunk) * chunk * (2 * chunk * (dim + self.heads * slots) + 4 * slots * dim)
        return 2 * (length * (4 * dim**2 + slots * dim) + within) + self.forgetting.operations(length)

    def context_operations(self, length: int, context_length: int) -> int:
        filling = 4 * context_length * self.slots * self.dim + 4 * self.slots * self.dim**2
        return filling + 4 * length * self.dim * (self.dim + self.slots)

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> PrefixMean:
        return empty_prefix(batch_size, self.slots, 2 * self.dim, dtype, device)

    def advance(self, x: Tensor, mask: Tensor | None, state: PrefixMean) -> tuple[Tensor, PrefixMean]:
        mixed, after = self._through(x, mask, state, self.value(x))
        y: Tensor = self.output(mixed)
        return y, after

    def _through(self, x: Tensor, mask: Tensor | None, state: PrefixMean, value: Tensor) -> tuple[Tensor, PrefixMean]:
        """Outputs that each position reads of values (b, t, dim) up to it, and the state after the last."""
        query = self.query(x)
        # Keys and values are gathered by the same weights.
        pairs = torch.cat((self.key(x), value), 2)
        # Normalisers grow to the size of the logits, and near 1e4 float32 resolves only 1e-3.
        logits = self.gather(x).to(exact_dtype(x.device))
        logits = masked_logits(logits, mask)
        rates, passed = self.forgetting(x, mask), None
        if rates is not None:
            # n_t + Σ_{i<=t} f_i is an ordinary sum, of logits to which the same is added: weights are as they were.
            passed = rates.to(logits.dtype).cumsum(1)
            logits = logits + passed
        state = slices.state_before(state, lambda: slice_slots(pairs, logits, passed), extend)
        before = state._replace(normaliser=state.normaliser.to(logits.dtype))
        with torch.autocast(x.device.type, enabled=False):
            wide = accumulation_dtype(query.dtype)
            asked, gathered = query.to(wide), pairs.to(wide)
            if not exporting() and x.shape[1] == 1:
                # A single step of a stream: chunking would not pay off.
                contents, after = prefix_softmax_mean(
                    gathered.unsqueeze(2).expand(-1, -1, self.slots, -1), logits, None, before
                )
                key, value = (split_heads(each, self.heads) for each in contents[:, 0].chunk(2, -1))
                mixed = merge_heads(attention(split_heads(asked, self.heads), key, value))
            else:
                widening = max(1, CHUNK * self.slots // self.dim)
                through = functools.partial(_through_prefixes, self.heads)
                mixed, after = carried_through_blocks(through, 1, before, asked, gathered, logits, widening=widening)
        normaliser = after.normaliser if passed is None else after.normaliser - passed[:, -1]
        return mixed.to(query.dtype), PrefixMean(normaliser.to(state.normaliser.dtype), after.mean)

    def _filled(self, source: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the slots' keys and values, each (b, heads, slots, e)."""
        _, slots = self._gathered(source, mask)
        return split_heads(self.key(slots), self.heads), split_heads(self.value(slots), self.heads)

    def _gathered(self, source: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return φ (b, slots, m), and the means of a source's positions (b, slots, dim) by these weights."""
        reads = joint_reads(source, self.slots, self.slots)
        logits = score(reads, weight_and_bias(self.gather)[0])
        weights = position_softmax(logits, mask)
        return weights, mean_of_all(pool(reads, weights), logits, mask)

    def _attend(self, x: Tensor, memory: tuple[Tensor, Tensor]) -> Tensor:
        query = split_heads(self.query(x), self.heads)
        y: Tensor = self.output(merge_heads(attention(query, *memory)))
        return y


def _through_prefixes(
    heads: int, before: PrefixMean, query: Tensor, pairs: Tensor, logits: Tensor
) -> tuple[Tensor, PrefixMean]:
    """Outputs (b, t, d) of queries (b, t, d), from the slots' means up to each position, and the means after the last.

    `pairs` (b, t, 2·d) are keys and values, `logits` (b, t, slots) those of φ.
    """
    t = query.shape[1]
    size = CHUNK if exporting() else min(CHUNK, t)
    dtype = query.dtype
    start = before.normaliser.unsqueeze(1)
    prefix = logaddexp(logcumsumexp(logits), start)
    pairs = in_chunks(pairs, 1, size)
    logits, against = in_chunks(logits, 1, size, FLOOR), in_chunks(-prefix, 1, size, FLOOR)
    # Each (b, heads, chunks, positions, e).
    query, key, value = (_by_head(each, heads) for each in (in_chunks(query, 1, size), *pairs.chunk(2, -1)))

    # What each chunk gathers by itself, and what all chunks before it have gathered.
    normaliser = logits.logsumexp(2)
    means = (logits - normaliser.unsqueeze(2)).exp().to(dtype).mT @ pairs
    contents, after = prefix_softmax_mean(means, normaliser, None, before)
    contents = torch.cat((before.mean.unsqueeze(1), contents), 1)[:, :-1]
    carried = torch.cat((start, logaddexp(logcumsumexp(normaliser), start)), 1)[:, :-1]
    old_key, old_value = (_by_head(each, heads) for each in contents.chunk(2, -1))

    # (b, t, chunks, j, slots): the weight of each position j of a chunk in each slot at its position t. `share`, (b, 1,
    # chunks, t, slots), is that of all before the chunk.
    later = torch.ones(size, size, dtype=torch.bool, device=query.device).triu(1).view(size, 1, size, 1)
    weights = (logits.unsqueeze(1) + against.transpose(1, 2).unsqueeze(3)).to(dtype).masked_fill(later, FLOOR).exp()
    share = (carried.unsqueeze(2) + against).exp().to(dtype).unsqueeze(1)
    scores = _swapped(_swapped(query @ key.mT) @ weights) + (query @ old_key.mT) * share
    chosen = (scores / query.shape[-1] ** 0.5).softmax(-1)
    within = _swapped(_swapped(chosen) @ weights.mT)
    y = within @ value + (chosen * share) @ old_value
    return whole(y.permute(0, 2, 3, 1, 4).flatten(3), 1, t), after


def _by_head(x: Tensor, heads: int) -> Tensor:
    """Return (b, chunks, n, d) as (b, heads, chunks, n, e), contiguous for the products to come."""
    return x.unflatten(-1, (heads, -1)).permute(0, 3, 1, 2, 4).contiguous()


def _swapped(x: Tensor) -> Tensor:
    """Return (b, heads, chunks, t, n) as (b, t, chunks, heads, n), and back."""
    return x.transpose(1, 3).contiguous()


def naive(
    mixer: BoundedMemory,
    x: Tensor,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """Compute `mixer(x, mask, context=context, context_mask=context_mask)` from the formula, query by query."""
    source, source_mask = (x, mask) if context is None else (context, context_mask)
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        known = source[row] if source_mask is None else source[row, source_mask[row]]
        real = range(x.shape[1]) if mask is None else mask[row].nonzero().flatten().tolist()
        for number, i in enumerate(real):
            seen = known[: number + 1] if mixer.causal and context is None else known
            if not len(seen):
                continue
            fade = faded(mixer.forgetting, seen)[:, -1].T
            weights = (mixer.gather(seen) - fade).softmax(0).T
            keys, values = weights @ mixer.key(seen), weights @ mixer.value(seen)
            y[row, i] = mixer.output(attend(mixer.query(x[row, i]), keys, values, mixer.heads))
    return y
