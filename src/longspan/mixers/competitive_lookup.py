"""Competitive lookup: positions compete for one query, and share what it finds."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from longspan.mixers._competing import CompetingQueries
from longspan.mixers._naive import faded
from longspan.mixers.base import Look
from longspan.mixers.looks import time_constants, weights_at
from longspan.ops import slices
from longspan.ops.affine import weight_and_bias
from longspan.ops.blocks import carried_through_blocks
from longspan.ops.competition import against_keys, position_softmax, project_heads
from longspan.ops.counts import each_once
from longspan.ops.pooling import (
    PrefixMean,
    empty_prefix,
    extend,
    mean_and_share,
    mean_of_all,
    prefix_softmax_mean,
    slice_mean,
)
from longspan.ops.reads import joint_reads, pool, score
from longspan.ops.scan import accumulation_dtype, lerp_scan, softmax_gates


class CompetitiveLookupState(NamedTuple):
    """The running query and the running answer of a causal sequence."""

    query: PrefixMean
    answer: PrefixMean


class CompetitiveLookup(CompetingQueries):
    """Positions compete for one query per head, which looks up one answer, and each receives its share of it.

    Equations (per head, of width e = dim / heads; softmax over positions):
        z_t = w·x_t, α = softmax(z)
        Q = Σ_t α_t W_q x_t
        A = Σ_m softmax_m(Q·W_k x_m / √e) W_v x_m
        y_t = W_o concat_h(α_t A)
        causal: Q_m and A_m are the means over positions <= m, the logit of key m is Q_m·W_k x_m / √e, and
            α_t = exp(z_t) / Σ_{j<=t} exp(z_j)
            forgetting: position j weighs exp(-Σ_{j<i<=t} f_i) of what it weighed when new, in both means and in the
            sum of α_t, whose shares then no longer shrink as 1/t

    Order of computation: every projection folds. Q = W_q (Σ α_t x_t); its logits are x_m·(W_kᵀ Q), so no key is
    formed; A = W_v (Σ β_m x_m); and W_o acts on the answers of the heads, y_t = Σ_h α_th (W_o,h A_h). x is read for two
    scores and two sums of `heads` numbers per position, and no product of size t x dim x dim is left.

    Cost: 5·t·heads·dim + 4·dim² time, t·dim memory; causal 4·t·dim² time, constant state
    Source: competing queries, first form; the global query is that of Wu et al. 2021, https://arxiv.org/abs/2108.09084
    Deviations: heads, the scale 1/√e and W_o are this project's, as in softmax attention; heads=1 and
        output_projection=False give the bare formula. w and W_k have no bias: softmax ignores it. W_o has none
        either, so that a position receives its share of the answer and nothing else; as shares add up to one, outputs
        shrink as 1/t. The causal form is linear because each key is scored once, by the query at its position. The
        bidirectional form on every prefix would score all earlier keys again with the newest query, which costs t²;
        the two agree at the first position, and wherever the query never changes. A row without real positions gives
        zeros.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        causal: whether a position sees only itself and those before it.
        bias: whether W_q and W_v have biases.
        output_projection: whether heads are mixed by W_o; without it their concatenation is the output.
        forget: decay of each head's memory, when causal: "none" (the mean of all earlier positions), "fixed" (constant
            rates), "learned" (trained rates), or "input" (rates that depend on x_t). Time constants begin at 2 to 4,096
            positions.

    Raises:
        UserError: when `heads` does not divide `dim`; for forgetting without causal=True.
    """

    NAME = "competitive_lookup"
    KEY_BIAS = False

    def mix_both_ways(self, x: Tensor, mask: Tensor | None) -> Tensor:
        reads = joint_reads(x, self.heads, self.heads, self.heads, self.heads)
        # Softmax ignores the biases of scores and keys.
        logits = score(reads, weight_and_bias(self.score)[0])
        shares = position_softmax(logits, mask)
        query = project_heads(pool(reads, shares), *weight_and_bias(self.query))
        query, share = mean_and_share(query, logits, mask)
        if share is not None:
            shares = shares * share.unsqueeze(2)
        scores = score(reads, against_keys(query, weight_and_bias(self.key)[0]) / self.width**0.5)
        answer = project_heads(pool(reads, position_softmax(scores, mask)), *weight_and_bias(self.value))
        answer = mean_of_all(answer, scores, mask)
        # Padding needs no separate pass: its shares are zero.
        own = each_once(shares, None if mask is None else mask.unsqueeze(1))
        return self.hand_out(own, answer, mask)

    def operations(self, length: int) -> int:
        projections = 3 if isinstance(self.output, nn.Identity) else 4
        if self.causal:
            return 2 * length * self.dim * (projections * self.dim + self.heads) + self.forgetting.operations(length)
        return 10 * length * self.heads * self.dim + 2 * projections * self.dim**2

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> CompetitiveLookupState:
        return CompetitiveLookupState(
            *(empty_prefix(batch_size, self.heads, self.width, dtype, device) for _ in range(2))
        )

    def mix_causally(
        self, x: Tensor, mask: Tensor | None, state: CompetitiveLookupState, starts: Tensor | None
    ) -> tuple[Tensor, CompetitiveLookupState]:
        heads = [self.split(projection(x)) for projection in (self.query, self.key, self.value)]
        rates = self.forgetting(x, mask)
        query, key, value = heads
        logits = self.competing(x, mask)
        before = slices.state_before(state.query, lambda: slice_mean(logits, query, rates=rates), extend)
        met, after = carried_through_blocks(_ask, 1, before, logits, query, key, starts, rates)
        asked, shares = met.chunk(2, 2)
        answer = slices.state_before(state.answer, lambda: slice_mean(asked, value, mask=mask, rates=rates), extend)
        y, answer = carried_through_blocks(_answer, 1, answer, asked, shares, value, mask, starts, rates)
        return self.output(y), CompetitiveLookupState(after, answer)

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        """ "shares": those of the competition; "lookup": what the query attends to."""
        rates, (shares, met) = self.forgetting(x, mask), self.query_shares(x, mask, at)
        lookup = weights_at(met / self.width**0.5, mask, at, rates, self.causal)
        return Look({"shares": shares, "lookup": lookup}, time_constants=time_constants(rates, mask))


def _ask(
    state: PrefixMean, logits: Tensor, query: Tensor, key: Tensor, starts: Tensor | None, rates: Tensor | None
) -> tuple[Tensor, PrefixMean]:
    """Return scores of keys and shares of positions (b, t, 2·h), from logits (b, t, h) and heads (b, t, h, e), and
    the state of the query after.
    """
    # The weight of a position within its own prefix is its share, and the gate of the running query.
    shares, normaliser = softmax_gates(logits, state.normaliser, starts, rates)
    query, last = lerp_scan(query, shares, state.mean, starts)
    met = query * key
    met_logits = met.sum(-1, dtype=accumulation_dtype(met.dtype)) / key.shape[-1] ** 0.5
    return torch.cat((met_logits, shares), 2), PrefixMean(normaliser, last)


def _answer(
    state: PrefixMean,
    logits: Tensor,
    shares: Tensor,
    value: Tensor,
    mask: Tensor | None,
    starts: Tensor | None,
    rates: Tensor | None,
) -> tuple[Tensor, PrefixMean]:
    """Return shared-out answers (b, t, d), from scores and shares (b, t, h), and the state of the answer after."""
    answer, after = prefix_softmax_mean(value, logits, mask, state, starts, rates)
    own = each_once(shares, None if mask is None else mask.unsqueeze(2))
    return (own.to(answer.dtype).unsqueeze(-1) * answer).flatten(2), after


def naive(mixer: CompetitiveLookup, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` in the order of the equations, row by row (causal: position by position)."""
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = torch.arange(x.shape[1]) if mask is None else mask[row].nonzero().squeeze(1)
        if len(real):
            y[row, real] = _naive_row(mixer, x[row, real])
    return y


def _naive_row(mixer: CompetitiveLookup, x: Tensor) -> Tensor:
    """Compute one document (t, d)."""
    heads, fades = [], faded(mixer.forgetting, x)
    projected = (mixer.query(x), mixer.key(x), mixer.value(x))
    parts = zip(*(tensor.chunk(mixer.heads, 1) for tensor in projected), strict=True)
    for z, fade, (query, key, value) in zip(mixer.score(x).unbind(1), fades, parts, strict=True):
        if not mixer.causal:
            share = z.softmax(0)
            scores = key @ (share @ query) / mixer.width**0.5
            heads.append(share.unsqueeze(1) * (scores.softmax(0) @ value))
            continue
        scores, rows = z.new_zeros(0), []
        for i in range(1, len(x) + 1):
            lost = fade[i - 1, :i]
            share = (z[:i] - lost).softmax(0)
            # Scored once, by the query at its position.
            scores = torch.cat((scores, (share @ query[:i] * key[i - 1]).sum().view(1) / mixer.width**0.5))
            rows.append(share[-1] * ((scores - lost).softmax(0) @ value[:i]))
        heads.append(torch.stack(rows))
    y: Tensor = mixer.output(torch.cat(heads, 1))
    return y
