"""Linear attention: softmax attention with the exponential replaced by a product of positive features."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from longspan.mixers._forgetting import Forgetting, refuse_context
from longspan.mixers._naive import faded, steps_to, turn
from longspan.mixers._numbered import Numbered, check_rotary, continued, nothing_seen
from longspan.mixers.base import Capabilities, ContextState, Look
from longspan.mixers.looks import Pairwise, time_constants
from longspan.ops import slices
from longspan.ops.counts import present
from longspan.ops.heads import head_width, merge_heads, split_heads, weighted
from longspan.ops.linear import (
    CHUNK,
    LinearSums,
    causal_linear_attention,
    empty_sums,
    extend,
    has_loops,
    linear_attention,
    linear_attention_weights,
    read_sums,
    slice_sums,
    sum_up,
)
from longspan.ops.linear_sums.plain import TINY
from longspan.ops.rotary import real_numbers


class Linear(Pairwise):
    """Multi-head linear attention: keys and values are summed up once, and every query reads the sums.

    Equations:
        q_t = W_q x_t, k_t = W_k x_t, v_t = W_v x_t, split into heads of width e = dim / heads; φ(u) = elu(u) + 1
        y_i = W_o concat_h( Σ_j (φ(q_i)·φ(k_j)) v_j / Σ_j φ(q_i)·φ(k_j) );  causal: j <= i
            forgetting: the weight of position j at i is exp(-Σ_{j<l<=i} f_l) of φ(q_i)·φ(k_j)
            rotary (Su et al. 2021, section 3.3): φ(q_i) and φ(k_j) are rotated by their position in the numerator, as
            those of `softmax` are, and not in the denominator, so that it stays positive
        cross attention: q from x, k and v from the context, neither rotated. Each position of x reads the sums by
            itself, so both forms give the same, and steps keep nothing of x.

    Order of computation: Σ_j (φ(q_i)·φ(k_j)) v_j = φ(q_i)·S with S = Σ_j φ(k_j) v_jᵀ, and the normaliser is φ(q_i)·z
    with z = Σ_j φ(k_j); with forgetting, S_t = exp(-f_t) S_{t-1} + φ(k_t) v_tᵀ, z likewise. A CPU has compiled loops
    for both forms, for heads of a width up to 128; a GPU has kernels of flash-linear-attention for the causal form in
    bfloat16, where fla-core is installed. Otherwise, and with rotary positions, the causal form goes in chunks of C
    positions: a masked C x C product within a chunk, and the sums S and z over all chunks before it.

    Cost: 4·t·dim² + 2·t·dim·e time, t·dim memory; in chunks 2·t·dim·(2·dim + C + e), rotary C more; dim·e state
    Source: Katharopoulos et al. 2020, "Transformers are RNNs", https://arxiv.org/abs/2006.16236
    Deviations: features of negative numbers are computed as exp, and a query's features are divided by their largest if
        that is below one. The normaliser cancels the division, so no ε is added to it. Sums in at least float32. A
        query for which all weights vanish (below 1e-20), a row without real positions and one without a real context
        give zeros.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        causal: whether a position sees only itself and those before it.
        bias: whether the four projections have biases.
        forget: decay of each head's memory, when causal: "none" (sums of all earlier positions), "fixed" (constant
            rates), "learned" (trained rates), or "input" (rates that depend on x_t). Time constants begin at 2 to 4,096
            positions.
        rotary: whether features are rotated by their position, so that weights know the distance.

    Raises:
        UserError: when `heads` does not divide `dim`; when a context meets packed documents or forgetting; for
            forgetting without causal=True; for rotary positions of heads of an odd width.
    """

    capabilities = Capabilities(
        causal=True, streaming=True, context=True, weights=True, counts=True, looks=True, slices=True
    )

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        causal: bool = False,
        bias: bool = True,
        forget: str = "none",
        rotary: bool = False,
    ) -> None:
        super().__init__(dim, causal=causal)
        self.width = head_width("linear", dim, heads)
        check_rotary("linear", rotary, self.width)
        self.heads = heads
        self.rotary = self.signed = rotary
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)
        self.forgetting = Forgetting("linear", dim, heads, forget, causal=causal)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.causal:
            return self.advance(x, mask, self.init_state(x.shape[0], x.dtype, x.device))[0]
        numbers = self._numbers(x, mask)
        query = split_heads(self.query(x), self.heads)
        y: Tensor = self.output(merge_heads(linear_attention(query, *self._sources(x), mask, numbers)))
        return y

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        return replace(super().look_at(x, mask, at), time_constants=time_constants(self.forgetting(x, mask), mask))

    def gather_values(self, x: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
        if self.causal:
            empty = self.empty_state(x.shape[0], x.dtype, x.device)
            return continued(partial(self._gather, values), x, mask, empty)[0]
        query, key = (split_heads(each(x), self.heads) for each in (self.query, self.key))
        return linear_attention(query, key, values, mask, self._numbers(x, mask))

    @property
    def takes_context(self) -> bool:
        return self.forgetting.kind == "none"

    def read_context(self, context: Tensor, context_mask: Tensor | None) -> ContextState:
        refuse_context("linear", self.forgetting)
        return ContextState(sum_up(*self._sources(context), context_mask))

    def advance_context(self, x: Tensor, mask: Tensor | None, state: ContextState) -> tuple[Tensor, ContextState]:
        query = split_heads(self.query(x), self.heads)
        return self.output(merge_heads(read_sums(query, state.context).to(query.dtype))), state

    def weigh_context(self, x: Tensor, mask: Tensor | None, context: Tensor, context_mask: Tensor | None) -> Tensor:
        refuse_context("linear", self.forgetting)
        query, key = split_heads(self.query(x), self.heads), split_heads(self.key(context), self.heads)
        return linear_attention_weights(query, key, context_mask)

    def pool_context(self, weights: Tensor, context: Tensor) -> Tensor:
        y: Tensor = self.output(weighted(weights, self.value(context)))
        return y

    def operations(self, length: int) -> int:
        projections = 8 * length * self.dim**2
        if not self.causal:
            return projections + 4 * length * self.dim * self.width
        if not self.rotary and has_loops(self.query.weight, self.width):
            # The normaliser is one more column of the values.
            return projections + 4 * length * self.dim * (self.width + 1) + self.forgetting.operations(length)
        # The last chunk is padded.
        chunk = min(CHUNK, length)
        sums = 2 * chunk * -(-length // chunk) * self.dim * (2 * self.width + (2 + self.rotary) * chunk)
        return projections + sums + self.forgetting.operations(length)

    def context_operations(self, length: int, context_length: int) -> int:
        return 2 * (length + context_length) * self.dim * (2 * self.dim + self.width)

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> LinearSums | Numbered:
        sums = empty_sums(batch_size, self.heads, self.width, dtype, device)
        return nothing_seen(sums, batch_size, device) if self.rotary else sums

    def advance(
        self, x: Tensor, mask: Tensor | None, state: LinearSums | Numbered
    ) -> tuple[Tensor, LinearSums | Numbered]:
        return continued(self._continue, x, mask, state)

    def _numbers(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        if not self.rotary:
            return None
        if slices.current() is None:
            return real_numbers(x, mask)
        count = x.shape[1] if mask is None else present(mask).sum(1)
        return real_numbers(x, mask, slices.seen_before(x.new_zeros(x.shape[0], dtype=torch.long), count))

    def _continue(
        self, x: Tensor, mask: Tensor | None, sums: LinearSums, numbers: Tensor | None
    ) -> tuple[Tensor, LinearSums]:
        mixed, sums = self._gather(split_heads(self.value(x), self.heads), x, mask, sums, numbers)
        return self.output(merge_heads(mixed)), sums

    def _gather(
        self, values: Tensor, x: Tensor, mask: Tensor | None, sums: LinearSums, numbers: Tensor | None
    ) -> tuple[Tensor, LinearSums]:
        query, key = (split_heads(each(x), self.heads) for each in (self.query, self.key))
        rates = self.forgetting(x, mask)
        rates = None if rates is None else rates.transpose(1, 2)
        sums = slices.state_before(sums, lambda: slice_sums(key, values, mask, rates, numbers), extend)
        return causal_linear_attention(query, key, values, mask, sums, rates, numbers)

    def _sources(self, source: Tensor) -> tuple[Tensor, Tensor]:
        return split_heads(self.key(source), self.heads), split_heads(self.value(source), self.heads)


def naive(
    mixer: Linear,
    x: Tensor,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """Compute `mixer(x, mask, context=context, context_mask=context_mask)` from the formula, head by head and query by
    query."""

    def features(u: Tensor) -> Tensor:
        return torch.where(u > 0, u + 1, u.exp())

    source, source_mask = (x, mask) if context is None else (context, context_mask)
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        for i in range(x.shape[1]) if mask is None else mask[row].nonzero().flatten().tolist():
            seen = torch.ones(source.shape[1], dtype=torch.bool) if source_mask is None else source_mask[row].clone()
            if mixer.causal and context is None:
                seen[i + 1 :] = False
            if not seen.any():
                continue
            query, keys, values = mixer.query(x[row, i]), mixer.key(source[row, seen]), mixer.value(source[row, seen])
            mixed = []
            fades = faded(mixer.forgetting, source[row, seen])[:, -1]
            for h, fade in enumerate(fades):
                part = slice(h * mixer.width, (h + 1) * mixer.width)
                # A factor per query, which the normaliser cancels: without it, all of its features may vanish.
                asked = features(query[part] - query[part].max().clamp(max=0))
                kept = features(keys[:, part]) * (-fade).exp().unsqueeze(1)
                weights = kept @ asked
                if mixer.rotary and context is None:
                    steps = steps_to(seen.nonzero().flatten(), i, None if mask is None else mask[row])
                    kept = turn(kept, steps)
                mixed.append(kept @ asked @ values[:, part] / weights.sum().clamp_min(TINY))
            y[row, i] = mixer.output(torch.cat(mixed))
    return y
