"""Competitive gate: positions compete for one query and one value, and each lets through what its key allows."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from longspan.mixers._competing import CompetingQueries
from longspan.mixers._naive import faded
from longspan.mixers.base import Look
from longspan.mixers.looks import time_constants
from longspan.ops import slices
from longspan.ops.affine import weight_and_bias
from longspan.ops.blocks import carried_through_blocks
from longspan.ops.competition import against_keys, position_softmax, project_heads
from longspan.ops.counts import present
from longspan.ops.pooling import PrefixMean, empty_prefix, extend, mean_of_all, slice_mean
from longspan.ops.reads import joint_reads, pool, score
from longspan.ops.scan import accumulation_dtype, lerp_scan, softmax_gates


class CompetitiveGateState(NamedTuple):
    """The log of the competition's normaliser (b, h), and the running query and value (b, h, e)."""

    normaliser: Tensor
    query: Tensor
    value: Tensor


class CompetitiveGate(CompetingQueries):
    """Positions compete for one query and one value per head; each key gates how much of the value it receives.

    Equations (per head, of width e = dim / heads; softmax over positions):
        z_t = w·x_t, α = softmax(z)
        Q = Σ_t α_t W_q x_t, V = Σ_t α_t W_v x_t
        y_t = W_o concat_h(relu(Q·W_k x_t) V)
        causal: Q_t and V_t are the means over positions <= t, and y_t = W_o concat_h(relu(Q_t·W_k x_t) V_t)
            forgetting: position j weighs exp(-Σ_{j<i<=t} f_i) of what it weighed when new, in both means

    Order of computation: every projection folds. One mean x̄ = Σ α_t x_t gives Q = W_q x̄ and V = W_v x̄; the gate is
    relu(x_t·(W_kᵀ Q) + b_k·Q), so no key is formed; W_o acts on the values of the heads, y_t = Σ_h g_th (W_o,h V_h). x
    is read for two scores and one sum of `heads` numbers per position, and no product of size t x dim x dim is left.

    The causal form is parallel as well. Written as a loop it looks sequential, as query and value differ at every
    step. But both are prefix means, Σ_{j<=t} exp(z_j) W x_j / Σ_{j<=t} exp(z_j), whose state (the log of the sum of
    weights, the mean) merges associatively. So all prefixes come from one scan, in log t rounds, and the rest, the
    gate, looks at one position at a time. It is also exact: each y_t is what the bidirectional form gives at the end of
    the prefix.

    Cost: 4·t·heads·dim + 4·dim² time, t·dim memory; causal 4·t·dim² time, constant state
    Source: competing queries, second form; the global query is that of Wu et al. 2021, https://arxiv.org/abs/2108.09084
    Deviations: heads and W_o are this project's; heads=1 and output_projection=False give the bare formula. w has no
        bias, as softmax ignores it, and W_o has none, so that a closed gate gives nothing. W_k has one: it affects the
        gate. Query and value share the competition z. A row without real positions gives zeros.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        causal: whether a position sees only itself and those before it.
        bias: whether W_q, W_k and W_v have biases.
        output_projection: whether heads are mixed by W_o; without it their concatenation is the output.
        forget: decay of each head's memory, when causal: "none" (the mean of all earlier positions), "fixed" (constant
            rates), "learned" (trained rates), or "input" (rates that depend on x_t). Time constants begin at 2 to 4,096
            positions.

    Raises:
        UserError: when `heads` does not divide `dim`; for forgetting without causal=True.
    """

    NAME = "competitive_gate"
    KEY_BIAS = True

    def mix_both_ways(self, x: Tensor, mask: Tensor | None) -> Tensor:
        reads = joint_reads(x, self.heads, self.heads, self.heads)
        # Softmax ignores the scores' bias.
        logits = score(reads, weight_and_bias(self.score)[0])
        mean = pool(reads, position_softmax(logits, mask))
        parts = [project_heads(mean, *weight_and_bias(each)) for each in (self.query, self.value)]
        query, value = mean_of_all(torch.cat(parts, -1), logits, mask).chunk(2, -1)
        key_weight, key_bias = weight_and_bias(self.key)
        met = score(reads, against_keys(query, key_weight))
        if key_bias is not None:
            met = met + (query * key_bias.view(self.heads, -1)).sum(-1, keepdim=True)
        gates = met.relu() if mask is None else met.relu() * present(mask).unsqueeze(1)
        return self.hand_out(gates, value, mask)

    def operations(self, length: int) -> int:
        projections = 3 if isinstance(self.output, nn.Identity) else 4
        if self.causal:
            return 2 * length * self.dim * (projections * self.dim + self.heads) + self.forgetting.operations(length)
        return 8 * length * self.heads * self.dim + 2 * projections * self.dim**2

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> CompetitiveGateState:
        normaliser, mean = empty_prefix(batch_size, self.heads, self.width, dtype, device)
        return CompetitiveGateState(normaliser, mean, mean.clone())

    def mix_causally(
        self, x: Tensor, mask: Tensor | None, state: CompetitiveGateState, starts: Tensor | None
    ) -> tuple[Tensor, CompetitiveGateState]:
        heads = [self.split(projection(x)) for projection in (self.query, self.key, self.value)]
        rates, logits = self.forgetting(x, mask), self.competing(x, mask)
        if slices.current() is not None:
            before = PrefixMean(state.normaliser, torch.cat((state.query, state.value), -1))
            normaliser, mean = slices.state_before(
                before, lambda: slice_mean(logits, heads[0], heads[2], rates=rates), extend
            )
            state = CompetitiveGateState(normaliser, *mean.chunk(2, -1))
        y, state = carried_through_blocks(_gate, 1, state, logits, *heads, starts, rates)
        return self.output(y), state

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        """ "shares": those of the competition; the "gate" of each position, by its own query where causal."""
        shares, met = self.query_shares(x, mask, at)
        times = time_constants(self.forgetting(x, mask), mask)
        return Look({"shares": shares}, time_constants=times, gates={"gate": met.relu().mT})


def _gate(
    state: CompetitiveGateState,
    logits: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor | None,
    rates: Tensor | None,
) -> tuple[Tensor, CompetitiveGateState]:
    """Outputs of gates (b, t, d), from logits (b, t, h) and heads (b, t, h, e), and the state after."""
    # The weight of a position within its own prefix is all that both means need.
    shares, normaliser = softmax_gates(logits, state.normaliser, starts, rates)
    query, last_query = lerp_scan(query, shares, state.query, starts)
    value, last_value = lerp_scan(value, shares, state.value, starts)
    met = query * key
    gates = met.sum(-1, dtype=accumulation_dtype(met.dtype)).relu().to(value.dtype)
    y = (gates.unsqueeze(-1) * value).flatten(2)
    return y, CompetitiveGateState(normaliser, last_query, last_value)


def naive(mixer: CompetitiveGate, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` in the order of the equations, row by row (causal: prefix by prefix)."""
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = torch.arange(x.shape[1]) if mask is None else mask[row].nonzero().squeeze(1)
        if not len(real):
            continue
        if not mixer.causal:
            y[row, real] = _naive_row(mixer, x[row, real])
            continue
        for i in range(len(real)):
            y[row, real[i]] = _naive_row(mixer, x[row, real[: i + 1]])[-1]
    return y


def _naive_row(mixer: CompetitiveGate, x: Tensor) -> Tensor:
    """Compute one document (t, d)."""
    # Of the causal form, only what the last position receives is used.
    heads, fades = [], faded(mixer.forgetting, x)[:, -1]
    projected = (mixer.query(x), mixer.key(x), mixer.value(x))
    parts = zip(*(tensor.chunk(mixer.heads, 1) for tensor in projected), strict=True)
    for z, fade, (query, key, value) in zip(mixer.score(x).unbind(1), fades, parts, strict=True):
        share = (z - fade).softmax(0)
        heads.append((key @ (share @ query)).relu().unsqueeze(1) * (share @ value))
    y: Tensor = mixer.output(torch.cat(heads, 1))
    return y
