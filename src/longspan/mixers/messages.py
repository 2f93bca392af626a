"""Messages: a few slots gather from all positions with one softmax and distribute to all positions with another."""

from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.mixers._forgetting import Forgetting
from longspan.mixers._naive import faded
from longspan.mixers.base import Capabilities, ContextState, Look, Mixer, State
from longspan.mixers.looks import time_constants, weights_at
from longspan.ops import slices
from longspan.ops.affine import weight_and_bias
from longspan.ops.blocks import carried_through_blocks
from longspan.ops.chunks import in_chunks, whole
from longspan.ops.competition import position_softmax
from longspan.ops.counts import each_once, logits_of_one, present
from longspan.ops.execution import exporting
from longspan.ops.heads import weighted
from longspan.ops.pooling import (
    PrefixMean,
    SliceMean,
    after_rates,
    empty_prefix,
    end_logits,
    extend,
    masked_logits,
    merge,
    prefix_softmax_mean,
    slice_slots,
)
from longspan.ops.reads import joint_reads, pool, score
from longspan.ops.scan import FLOOR, accumulation_dtype
from longspan.ops.scan.plain import logaddexp, logcumsumexp

# Positions per chunk of the causal form. Weights within chunks take CHUNK·slots numbers per position and the slots
# before each chunk slots·dim/CHUNK: equally many at a width of 256.
CHUNK = 16


class MessagesState(NamedTuple):
    """The running contents of the slots, and the log-normaliser of each slot's output weights, (b, slots)."""

    gathered: PrefixMean
    handed: Tensor


class Messages(Mixer):
    """Message passing through a few slots: positions compete to fill them and compete for what they hold.

    Equations (softmax over positions, per slot; S and M are slots x dim):
        m = softmax(M x), s = softmax(S x)
        slot_k = Σ_t m_tk Q x_t
        y_t = Σ_k s_tk slot_k;  altogether, y = softmax(Sx) · softmax(Mx)ᵀ · (Qx)
        causal: slot_tk is the mean over positions <= t, and s_tk = exp(S_k x_t) / Σ_{j<=t} exp(S_k x_j)
            forgetting: position j weighs exp(-Σ_{j<i<=t} f_ik) of what it weighed when new, in the mean and in the sum
            of s_tk. So a position competes for what a slot hands out with its recent past, and its share no longer
            shrinks as 1/t.
        cross attention: the slots gather from the context (m, Q) and distribute to x (s). Causal, they gather once,
            and s_tk is as above, forgetting too: only what is handed out depends on what came before in x.

    Order of computation: Q is linear and the weights of a slot add up to one, so slot_k = Q (Σ_t m_tk x_t): Q acts on
    slots, not on positions, and no product of size t x dim x dim is left. The causal form has to apply Q once per
    position, as the slots differ at each position. It never stores these t x slots x dim contents: within a chunk of C
    positions y_t = Σ_j [Σ_k exp(M_k x_j - L_tk + log s_tk)] Q x_j, L_tk being the logsumexp of M_k x over the prefix,
    and what came before the chunk enters through its slots. No exponent is above zero.

    Cost: 4·t·slots·dim + slots·dim² time, t·dim memory; causal t·(dim² + (C + 3·slots)·dim) time, slots·dim state
    Source: message passing; closest to Chen et al. 2018, "Double Attention Networks", https://arxiv.org/abs/1810.11579
    Deviations: that paper distributes with a softmax over slots, this formula with one over positions, whose weights
        add up to one, so that outputs shrink as 1/t. The causal form and cross attention are this project's. S and M
        have no bias: softmax ignores it. A row without real positions, or without a real context, gives zeros.

    Args:
        dim: width of the input and the output.
        slots: number of slots.
        causal: whether a position sees only itself and those before it.
        bias: whether Q has a bias.
        forget: decay of each slot, when causal: "none" (the mean of all earlier positions), "fixed" (constant rates),
            "learned" (trained rates), or "input" (rates that depend on x_t). Time constants begin at 2 to 4,096
            positions.

    Raises:
        UserError: when `slots` is less than one; when a context meets packed documents; for forgetting without
            causal=True.
    """

    capabilities = Capabilities(
        causal=True, streaming=True, context=True, weights=True, counts=True, looks=True, slices=True
    )

    def __init__(
        self, dim: int, *, slots: int = 8, causal: bool = False, bias: bool = True, forget: str = "none"
    ) -> None:
        super().__init__(dim, causal=causal)
        if slots < 1:
            raise UserError(f"messages expected at least one slot, got slots={slots}; choose 1 or more.")
        self.slots = slots
        self.zeroes_padding = not causal
        self.hand_out = nn.Linear(dim, slots, bias=False)
        self.gather = nn.Linear(dim, slots, bias=False)
        self.message = nn.Linear(dim, dim, bias=bias)
        self.forgetting = Forgetting("messages", dim, slots, forget, causal=causal)
        for scores in (self.hand_out, self.gather):
            nn.init.normal_(scores.weight, std=dim**-0.5)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.causal:
            return self.advance(x, mask, self.init_state(x.shape[0], x.dtype, x.device))[0]
        # Padding needs no separate pass: nothing is distributed to it. One product gives both sets of logits.
        reads = joint_reads(x, 2 * self.slots, self.slots)
        logits = score(reads, torch.cat((_matrix(self.gather), _matrix(self.hand_out))))
        gathering, handing = position_softmax(logits, mask).split(self.slots, 1)
        slots = self.message(pool(reads, gathering))
        if slices.current() is not None:
            gathered, handed = end_logits(logits.mT, mask, None)[1].split(self.slots, 1)
            every, total = slices.state_of_all((PrefixMean(gathered, slots.to(gathered.dtype)), handed), _both)
            slots, handing = every.mean.to(slots.dtype), handing * (handed - total).exp().unsqueeze(2)
        return _handed(_alone(handing, mask), slots)

    def mix_context(self, x: Tensor, mask: Tensor | None, context: Tensor, context_mask: Tensor | None) -> Tensor:
        if self.causal:
            return super().mix_context(x, mask, context, context_mask)
        handing = position_softmax(self.hand_out(x).mT, mask)
        slots = self._filled(context, context_mask)
        if context_mask is not None:
            # An empty context would still send the bias.
            slots = slots * present(context_mask).any(1)[:, None, None]
        return _handed(_alone(handing, mask), slots)

    def read_context(self, context: Tensor, context_mask: Tensor | None) -> ContextState:
        dtype, device = context.dtype, context.device
        handed = empty_prefix(context.shape[0], self.slots, 0, dtype, device).normaliser
        return ContextState(self._filled(context, context_mask), handed)

    def advance_context(self, x: Tensor, mask: Tensor | None, state: ContextState) -> tuple[Tensor, ContextState]:
        weights, after = self._handing(x, mask, state.prefix)
        # A copy: a state that is a view would keep all positions alive.
        return weights.to(state.context.dtype) @ state.context, state._replace(prefix=after.to(state.prefix, copy=True))

    def weigh_context(self, x: Tensor, mask: Tensor | None, context: Tensor, context_mask: Tensor | None) -> Tensor:
        reads = joint_reads(context, self.slots)
        gathering = position_softmax(score(reads, _matrix(self.gather)), context_mask)
        if self.causal:
            start = empty_prefix(x.shape[0], self.slots, 0, x.dtype, x.device).normaliser
            handing = self._handing(x, mask, start)[0]
        else:
            handing = position_softmax(self.hand_out(x).mT, mask).mT
        return (handing.to(gathering.dtype) @ gathering).unsqueeze(1)

    def pool_context(self, weights: Tensor, context: Tensor) -> Tensor:
        return weighted(weights, self.message(context))

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        """ "send": what each position puts into each slot; "receive": its share of what the slot hands out."""
        rates = self.forgetting(x, mask)
        sent, handed = (x @ _matrix(scores).T for scores in (self.gather, self.hand_out))
        send, receive = (weights_at(logits, mask, at, rates, self.causal) for logits in (sent, handed))
        return Look({"send": send, "receive": receive}, time_constants=time_constants(rates, mask))

    def reset(self, state: State, rows: Bool[Tensor, " b"]) -> State:
        if isinstance(state, ContextState):
            return state._replace(prefix=state.prefix.masked_fill(rows.unsqueeze(1), FLOOR))
        return super().reset(state, rows)

    def context_operations(self, length: int, context_length: int) -> int:
        products = 4 * (length + context_length) * self.slots * self.dim + 2 * self.slots * self.dim**2
        return products + (self.forgetting.operations(length) if self.causal else 0)

    def operations(self, length: int) -> int:
        if not self.causal:
            return 8 * length * self.slots * self.dim + 2 * self.slots * self.dim**2
        within = min(CHUNK, length) + 2 * self.slots
        return 2 * length * self.dim * (self.dim + 2 * self.slots + within) + self.forgetting.operations(length)

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> MessagesState:
        gathered = empty_prefix(batch_size, self.slots, self.dim, dtype, device)
        return MessagesState(gathered, gathered.normaliser.clone())

    def advance(self, x: Tensor, mask: Tensor | None, state: MessagesState) -> tuple[Tensor, MessagesState]:
        values = self.message(x)
        logits = x @ torch.cat((_matrix(self.gather), _matrix(self.hand_out))).T
        logits = self._wide(logits, mask)
        rates, passed = self.forgetting(x, mask), None
        if rates is not None:
            # n_t + Σ_{i<=t} f_i is an ordinary sum, of logits to which the same is added: weights are as they were.
            passed = rates.to(logits.dtype).cumsum(1)
            logits = logits + torch.cat((passed, passed), 2)
        state = slices.state_before(
            state, lambda: _slice_slots(values, passed, *logits.split(self.slots, 2)), _after_slice
        )
        before = torch.cat((state.gathered.normaliser, state.handed), 1)
        normalisers = logaddexp(logcumsumexp(logits), before.unsqueeze(1))
        gathering, handing = logits.split(self.slots, 2)
        gathered, handed = normalisers.split(self.slots, 2)
        handing = logits_of_one(handing, mask)
        weights = handing - handed - gathered
        if mask is not None:
            # Before anything has been seen, this would be the difference of FLOOR and FLOOR.
            weights = weights.masked_fill(~present(mask).unsqueeze(-1), FLOOR)
        with torch.autocast(x.device.type, enabled=False):
            wide = values.to(accumulation_dtype(values.dtype))
            gathered_before = state.gathered._replace(normaliser=state.gathered.normaliser.to(logits.dtype))
            if not exporting() and x.shape[1] == 1:
                # A single step of a stream: chunking would not pay off.
                sent = wide.unsqueeze(2).expand(-1, -1, self.slots, -1)
                contents, slots = prefix_softmax_mean(sent, gathering, None, gathered_before)
                y = (handing - handed).exp().to(wide.dtype) @ contents[:, 0]
            else:
                y, slots = carried_through_blocks(_hand_out_prefixes, 1, gathered_before, wide, gathering, weights)
        # A copy: a state that is a view would keep all positions alive.
        gathered_after, handed_after = slots.normaliser, handed[:, -1].clone()
        if passed is not None:
            gathered_after, handed_after = gathered_after - passed[:, -1], handed_after - passed[:, -1]
        gathered_after, handed_after = gathered_after.to(state.handed.dtype), handed_after.to(state.handed.dtype)
        return y.to(values.dtype), MessagesState(PrefixMean(gathered_after, slots.mean), handed_after)

    def _filled(self, context: Tensor, context_mask: Tensor | None) -> Tensor:
        """Return the slots (b, slots, dim) that have gathered from a context."""
        reads = joint_reads(context, self.slots, self.slots)
        gathering = position_softmax(score(reads, _matrix(self.gather)), context_mask)
        slots: Tensor = self.message(pool(reads, gathering))
        return slots

    def _handing(self, x: Tensor, mask: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return s (b, t, slots) of prefixes of x, and the log-normalisers (b, slots) after it, given those before."""
        logits = self._wide(x @ _matrix(self.hand_out).T, mask)
        rates, passed = self.forgetting(x, mask), None
        if rates is not None:
            passed = rates.to(logits.dtype).cumsum(1)
            logits = logits + passed
        handed = logaddexp(logcumsumexp(logits), before.unsqueeze(1))
        after = handed[:, -1] if passed is None else handed[:, -1] - passed[:, -1]
        return (logits_of_one(logits, mask) - handed).exp(), after

    def _wide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        """Return logits of prefixes in a type in which they can be added up; those of padding are FLOOR."""
        # Normalisers grow to the size of the logits, and near 1e4 float32 resolves only 1e-3.
        logits = logits.to(torch.float32 if logits.device.type == "mps" else torch.float64)
        return masked_logits(logits, mask)


def _slice_slots(values: Tensor, passed: Tensor | None, gathering: Tensor, handing: Tensor) -> tuple[SliceMean, Tensor]:
    """Sum of a slice: slots gathered from values (b, t, d), and the log-normaliser (b, slots) of handing out.

    `passed` (b, t, slots) are running totals of rates, which the logits (b, t, slots) of both contain.
    """
    gathered, handed = slice_slots(values, gathering, passed), handing.logsumexp(1)
    if passed is not None:
        handed = handed - passed[:, -1]
    return gathered, handed.clamp_min(FLOOR).to(gathered.mean.dtype)


def _both(one: tuple[PrefixMean, Tensor], other: tuple[PrefixMean, Tensor]) -> tuple[PrefixMean, Tensor]:
    return merge(one[0], other[0]), logaddexp(one[1], other[1])


def _after_slice(state: MessagesState, part: tuple[SliceMean, Tensor]) -> MessagesState:
    gathered, handed = part
    before = after_rates(state.handed, gathered.passed)
    return MessagesState(extend(state.gathered, gathered), logaddexp(before, handed.to(before.dtype)))


def _matrix(scores: nn.Module) -> Tensor:
    """Return the rows of a projection to logits; softmax over positions ignores a bias."""
    return weight_and_bias(scores)[0]


def _alone(weights: Tensor, mask: Tensor | None) -> Tensor:
    """Return each position's own part of weights (b, slots, t) that count it several times."""
    return each_once(weights, None if mask is None else mask.unsqueeze(1))


def _handed(weights: Tensor, slots: Tensor) -> Tensor:
    return weights.to(slots.dtype).mT @ slots


def _hand_out_prefixes(
    before: PrefixMean, values: Tensor, gathering: Tensor, handing: Tensor
) -> tuple[Tensor, PrefixMean]:
    """Return y_t = Σ_{j<=t} Σ_k exp(gathering_jk + handing_tk) values_j, and the slots after the last position.

    `gathering` holds the logits M_k x_j and `handing` log s_tk - L_tk, where L counts what came `before`: (b, t, k).
    """
    t = values.shape[1]
    size = CHUNK if exporting() else min(CHUNK, t)
    values = in_chunks(values, 1, size)
    gathering, handing = in_chunks(gathering, 1, size, FLOOR).mT, in_chunks(handing, 1, size, FLOOR).mT
    dtype = values.dtype
    # (b, chunks, k, t, j), summed over the slots before it meets the values.
    later = torch.ones(size, size, dtype=torch.bool, device=values.device).triu(1)
    exponents = (gathering.unsqueeze(-2) + handing.unsqueeze(-1)).to(dtype)
    y = exponents.masked_fill(later, FLOOR).exp().sum(2) @ values

    normaliser = gathering.logsumexp(-1)
    means = (gathering - normaliser.unsqueeze(-1)).exp().to(dtype) @ values
    contents, after = prefix_softmax_mean(means, normaliser, None, before)
    # Each chunk receives what all chunks before it have gathered.
    contents = torch.cat((before.mean.unsqueeze(1), contents), 1)[:, :-1]
    start = before.normaliser.unsqueeze(1)
    carried = torch.cat((start, logaddexp(logcumsumexp(normaliser), start)), 1)[:, :-1]
    y = y + (handing + carried.unsqueeze(-1)).exp().to(dtype).mT @ contents
    return whole(y, 1, t), after


def naive(
    mixer: Messages,
    x: Tensor,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """Compute `mixer(x, mask, context=context, context_mask=context_mask)` row by row (causal: prefix by prefix)."""
    source, source_mask = (x, mask) if context is None else (context, context_mask)
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = torch.arange(x.shape[1]) if mask is None else mask[row].nonzero().squeeze(1)
        known = source[row] if source_mask is None else source[row, source_mask[row]]
        if not len(real) or not len(known):
            continue
        if not mixer.causal:
            y[row, real] = _naive_row(mixer, x[row, real], known)
            continue
        for i in range(len(real)):
            seen = x[row, real[: i + 1]]
            y[row, real[i]] = _naive_row(mixer, seen, seen if context is None else known, context is not None)[-1]
    return y


def _naive_row(mixer: Messages, x: Tensor, source: Tensor, across: bool = False) -> Tensor:
    """Compute one document (t, d) from the formula, in the formula's order; `across` if `source` is another."""
    # Of the causal form, only what the last position receives is used.
    fade = faded(mixer.forgetting, x)[:, -1].T if mixer.causal else 0
    handing, gathering = (mixer.hand_out(x) - fade).softmax(0), mixer.gather(source) - (0 if across else fade)
    y: Tensor = handing @ (gathering.softmax(0).T @ mixer.message(source))
    return y
