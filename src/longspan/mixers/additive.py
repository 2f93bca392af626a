"""Additive attention (Fastformer): global vectors instead of pairwise scores."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from longspan.errors import UserError, check_choice
from longspan.mixers._forgetting import Forgetting, refuse_context
from longspan.mixers._naive import faded
from longspan.mixers.base import Capabilities, ContextState, Look, Mixer
from longspan.mixers.looks import softmax_mean, time_constants, weights_at
from longspan.ops import slices
from longspan.ops.affine import weight_and_bias
from longspan.ops.blocks import carried_through_blocks
from longspan.ops.competition import against_keys, position_softmax, project_heads
from longspan.ops.execution import exporting
from longspan.ops.heads import head_width
from longspan.ops.packing import document_starts
from longspan.ops.pooling import (
    PrefixMean,
    empty_prefix,
    extend,
    mean_of_all,
    prefix_softmax_mean,
    slice_mean,
    window_softmax_mean,
)
from longspan.ops.reads import JointReads, joint_reads, pool, score, transform

INTERACTIONS = ("product", "add", "concat")
SHARINGS = ("none", "query-value", "head-wise")
OUTPUTS = ("r+q", "r", "q")
SCORINGS = ("per-head", "all-heads")


class AdditiveState(NamedTuple):
    """The running global query and global key of a causal sequence."""

    query: PrefixMean
    key: PrefixMean


class Additive(Mixer):
    """Fastformer's additive attention: a global query and a global key, each a softmax-weighted mean.

    Equations (per head, of width e = dim / heads):
        q_t = W_q x_t, k_t = W_k x_t, v_t = W_v x_t
        q̄ = Σ_t softmax_t(w_q·q_t / √e) q_t
        p_t = q̄ ⊙ k_t,  k̄ = Σ_t softmax_t(w_k·p_t / √e) p_t
        u_t = k̄ ⊙ v_t,  y_t = W_r u_t + q_t
        causal: q̄_t and k̄_t are the means over positions <= t, and p_t = q̄_t ⊙ k_t
            forgetting: position j weighs exp(-Σ_{j<i<=t} f_i) of what it weighed when new, in both means
            both ways: means over all j, at exp(-|F_i - F_j|) of their weight, F_i = Σ_{j<=i} f_j: windows of soft reach
        cross attention: q̄ pools over x, p_j = q̄ ⊙ k_j and k̄ over the context; u_t and y_t as above, of x
            causal: q̄ pools over the context too, as x is not known yet: k̄ is the same at each position of x

    Order of computation: pooling is linear in the values and the logits are linear in x, so the projections fold
    through both, exactly. w_q·(W_q x_t) = (W_qᵀ w_q)·x_t and Σ α_t W_q x_t = W_q Σ α_t x_t: neither queries nor keys
    are formed. The output is one product per position, y_t = (W_r diag(k̄) W_v + W_q) x_t + c. The causal form has other
    global vectors at each position, so it forms queries and keys, and takes their prefix means in one pass each.

    Cost: t·dim² + 4·t·dim·heads + dim³ time, t·dim memory; causal 3·t·dim² time (4· with values apart), constant state
    Source: Wu et al. 2021, "Fastformer: Additive Attention Can Be All You Need", https://arxiv.org/abs/2108.09084
    Deviations: the causal form is this project's (the paper has none; its exact form per prefix would be quadratic).
        So is cross attention: x asks (q̄) and the context is summed up (k̄), but the values are those of x, as the output
        has one position for each of x. The context thus acts through k̄ alone, one vector per head: it can tell x what
        the context is about, and no position of x can look up one of the context. Use another mixer to translate.
        `interaction="concat"` is the plain concatenation: p_t = [q̄; k_t] and u_t = [k̄; v_t], with w_k and W_r wider
        to match. `sharing="head-wise"` gives all heads one e x dim matrix per projection; heads then differ by their
        score vectors. A row without real positions, or without a real context, gives zeros.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        causal: whether a position sees only itself and those before it.
        interaction: how a global vector meets each position: "product", "add" or "concat".
        sharing: "none"; "query-value" (W_v = W_q, the paper's choice); "head-wise" (that, and all heads share their
            projections). Sharing over layers is the backbone's `share_layers`.
        output: "r+q" (the paper), "r" (without the residual query) or "q" (the query alone: no attention at all).
        scoring: "per-head" (the paper: w_q and w_k see their own head) or "all-heads" (the authors' code: they see
            the whole vector).
        bias: whether the projections have biases.
        forget: decay of each head's memory: "none" (means over everything), "fixed" (constant rates), "learned"
            (trained rates) or "input" (rates that depend on x_t). Time constants begin at 2 to 4,096 positions. With
            decay and without causal, each position has its own means, so nothing folds: the cost is that of the causal
            form and another scan.

    Raises:
        UserError: when `heads` does not divide `dim` or an option has an unknown value; when a context meets packed
            documents or forgetting; for forgetting with output="q".
    """

    capabilities = Capabilities(causal=True, streaming=True, context=True, counts=True, looks=True, slices=True)

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        causal: bool = False,
        interaction: str = "product",
        sharing: str = "query-value",
        output: str = "r+q",
        scoring: str = "per-head",
        bias: bool = True,
        forget: str = "none",
    ) -> None:
        super().__init__(dim, causal=causal)
        width = head_width("additive", dim, heads)
        for option, value, known in (
            ("interaction", interaction, INTERACTIONS),
            ("sharing", sharing, SHARINGS),
            ("output", output, OUTPUTS),
            ("scoring", scoring, SCORINGS),
        ):
            check_choice(f"additive {option}", value, known)
        self.heads = heads
        self.interaction = interaction
        self.adds_query = output != "r"
        self.projected = rows = width if sharing == "head-wise" else dim
        self.query = nn.Linear(dim, rows, bias=bias)
        self.attends = output != "q"
        self.forgetting = Forgetting("additive", dim, heads, forget, causal=True)
        # Whether each position has global vectors of its own.
        self.differs_by_position = causal or forget != "none"
        if not self.attends:
            if forget != "none":
                raise UserError(
                    f"additive expected forget='none' with output='q', which attends to nothing, got {forget!r}; leave "
                    "it out."
                )
            return
        self.key = nn.Linear(dim, rows, bias=bias)
        self.value = nn.Linear(dim, rows, bias=bias) if sharing == "none" else None
        scored = width if scoring == "per-head" else dim
        self.query_score = nn.Parameter(torch.empty(heads, scored))
        self.key_score = nn.Parameter(torch.empty(heads, scored * (2 if interaction == "concat" else 1)))
        self.output = nn.Linear(dim * (3 if interaction == "concat" else 1), dim, bias=bias)
        for vectors in (self.query_score, self.key_score):
            nn.init.normal_(vectors, std=vectors.shape[1] ** -0.5)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if not self.attends:
            return self.project(self.query, x)
        if self.differs_by_position:
            return self._at_each_position(x, mask, self.empty_state(x.shape[0], x.dtype, x.device))[0]
        reads = joint_reads(x, *4 * [self.heads], self.dim)
        return self._with_global_key(reads, self._global_key(reads, mask, reads, mask))

    def mix_context(self, x: Tensor, mask: Tensor | None, context: Tensor, context_mask: Tensor | None) -> Tensor:
        if self.causal or not self.attends:
            return super().mix_context(x, mask, context, context_mask)
        refuse_context("additive", self.forgetting)
        reads = joint_reads(x, self.heads, self.heads, self.dim)
        return self._with_global_key(
            reads, self._global_key(reads, mask, joint_reads(context, *2 * [self.heads]), context_mask)
        )

    @property
    def takes_slices(self) -> bool:
        return self.causal or not self.differs_by_position

    @property
    def takes_context(self) -> bool:
        return self.forgetting.kind == "none"

    def read_context(self, context: Tensor, context_mask: Tensor | None) -> ContextState:
        refuse_context("additive", self.forgetting)
        if not self.attends:
            return ContextState(())
        reads = joint_reads(context, *4 * [self.heads])
        return ContextState(self._global_key(reads, context_mask, reads, context_mask))

    def advance_context(self, x: Tensor, mask: Tensor | None, state: ContextState) -> tuple[Tensor, ContextState]:
        return (
            self._with_global_key(joint_reads(x, self.dim), state.context)
            if self.attends
            else self.project(self.query, x)
        ), state

    def mix_documents(self, x: Tensor, mask: Tensor | None, document_ids: Tensor) -> Tensor:
        if not (self.causal and self.attends):
            return super().mix_documents(x, mask, document_ids)
        state = self.init_state(x.shape[0], x.dtype, x.device)
        return self._at_each_position(x, mask, state, document_starts(document_ids, mask))[0]

    def operations(self, length: int) -> int:
        dim, projection = self.dim, 2 * length * self.dim * self.projected
        if not self.attends:
            return projection
        output = 2 * length * dim**2
        if self.differs_by_position:
            # Logits per head see their own part alone where there is one position, and are counted as if they did not.
            logits = 2 * length * dim * self.heads * (3 if self.interaction == "concat" else 2)
            projections = projection * (2 if self.value is None else 3)
            output *= 3 if self.interaction == "concat" else 1
            return projections + logits + output + self.forgetting.operations(length)
        return self._pooling(length, length) + self._combine_operations(length)

    def context_operations(self, length: int, context_length: int) -> int:
        if not self.attends:
            return 2 * length * self.dim * self.projected
        return self._pooling(context_length if self.causal else length, context_length) + self._combine_operations(
            length
        )

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> AdditiveState:
        width = self.dim // self.heads
        pooled = width * (2 if self.interaction == "concat" else 1)
        return AdditiveState(
            empty_prefix(batch_size, self.heads, width, dtype, device),
            empty_prefix(batch_size, self.heads, pooled, dtype, device),
        )

    def advance(self, x: Tensor, mask: Tensor | None, state: AdditiveState) -> tuple[Tensor, AdditiveState]:
        return self._at_each_position(x, mask, state) if self.attends else (self.project(self.query, x), state)

    def _pooling(self, asking: int, asked: int) -> int:
        """Number of operations of `_global_key`."""
        rows = 4 * self.dim**2 * (1 if self.query_score.shape[1] < self.dim else self.heads)
        return 4 * (asking + asked) * self.dim * self.heads + rows + 4 * self.dim**2

    def _combine_operations(self, length: int) -> int:
        """Number of operations of `_with_global_key`."""
        output = 2 * length * self.dim**2
        if self.interaction == "product" and length <= self.dim:
            return output * (3 if self.adds_query and self.value is not None else 2)
        return output + 2 * self.dim**3

    def _projection(self, projection: nn.Module) -> tuple[Tensor, Tensor | None]:
        """Return a projection's full matrix (dim, dim) and bias, repeating one that all heads share."""
        weight, bias = weight_and_bias(projection)
        repeats = self.dim // weight.shape[0]
        if repeats == 1:
            return weight, bias
        return weight.repeat(repeats, 1), None if bias is None else bias.repeat(repeats)

    def project(self, projection: nn.Module, x: Tensor) -> Tensor:
        """Return a projection of each position, computing one that all heads share only once."""
        y: Tensor = projection(x)
        return y if y.shape[2] == self.dim else y.repeat(1, 1, self.dim // y.shape[2])

    def _scored(self, score: Tensor, weight: Tensor, asked: Tensor | None = None) -> Tensor:
        """Return rows (b or 1, heads, dim) whose products with x are the scores, scaled by 1/√e, of W x (⊙ asked)."""
        per_head, score = score.shape[1] == self.dim // self.heads, score / (self.dim // self.heads) ** 0.5
        if asked is not None:
            score = score * (asked.unflatten(1, (self.heads, -1)) if per_head else asked.unsqueeze(1))
        score = score if score.ndim == 3 else score.unsqueeze(0)
        return against_keys(score, weight) if per_head else score @ weight

    def _global_key(self, reads: JointReads, mask: Tensor | None, source: JointReads, there: Tensor | None) -> Tensor:
        """Return the global key (b, dim) of `source`, masked by `there`, that x asks for, after two reads of either.

        With "concat" both global vectors (b, 2·dim). Reads are of as many rows as there are heads.
        """
        w_q, b_q = self._projection(self.query)
        w_k, b_k = self._projection(self.key)
        # A bias shifts all of a row's logits equally, so softmax ignores it.
        logits = score(reads, self._scored(self.query_score, w_q))
        alpha = position_softmax(logits, mask)
        global_query = mean_of_all(project_heads(pool(reads, alpha), w_q, b_q), logits, mask).flatten(1)
        # Of "concat", the scores of keys alone: those of the global query shift all logits equally, too.
        for_key = self.key_score.chunk(2 if self.interaction == "concat" else 1, 1)[-1]
        asked = global_query if self.interaction == "product" else None
        logits = score(source, self._scored(for_key, w_k, asked))
        beta = position_softmax(logits, there)
        key_mean = mean_of_all(project_heads(pool(source, beta), w_k, b_k), logits, there).flatten(1)
        if self.interaction == "concat":
            return torch.cat((global_query, key_mean), 1)
        return global_query * key_mean if self.interaction == "product" else global_query + key_mean

    def _with_global_key(self, reads: JointReads, global_key: Tensor) -> Tensor:
        """Return the outputs of x that is told a global key: u_t = k̄ ⊙ v_t, k̄ + v_t or [k̄; v_t]."""
        w_r, b_r = weight_and_bias(self.output)
        query = self._projection(self.query)
        value = query if self.value is None else self._projection(self.value)
        constant, scale = b_r, global_key if self.interaction == "product" else None
        if scale is None:
            before, w_r = w_r.split((2 * self.dim, self.dim), 1) if self.interaction == "concat" else (w_r, w_r)
            constant = linear(global_key, before, b_r)
        constant = None if constant is None else constant.view(-1, 1, self.dim)
        return scaled_between(reads, scale, w_r, value, query if self.adds_query else None, constant)

    def _at_each_position(
        self, x: Tensor, mask: Tensor | None, state: AdditiveState, starts: Tensor | None = None
    ) -> tuple[Tensor, AdditiveState]:
        query, key = self.project(self.query, x), self.project(self.key, x)
        value = query if self.value is None else self.project(self.value, x)
        output: Callable[[Tensor], Tensor] = self.output
        if x.shape[1] > 1:
            # Blocks are computed again in the backward pass, without what an adapter's dropout drew.
            weight, bias = weight_and_bias(self.output)
            output = functools.partial(linear, weight=weight, bias=bias)
        meet = functools.partial(self._meet, output)
        tensors = (query, key, value, mask, starts, self.forgetting(x, mask))
        if slices.current() is not None:
            return self._meet_in_slices(output, state, *tensors)
        return carried_through_blocks(meet, 1, state, *tensors) if self.causal else meet(state, *tensors)

    def _meet_in_slices(
        self,
        output: Callable[[Tensor], Tensor],
        state: AdditiveState,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        starts: Tensor | None,
        rates: Tensor | None,
    ) -> tuple[Tensor, AdditiveState]:
        """Return the same in two rounds: what a slice adds to the global key depends on the global queries before."""
        split, logits = self.split(query), self.logits(query, self.query_score)
        before = slices.state_before(state.query, lambda: slice_mean(logits, split, mask=mask, rates=rates), extend)
        asked, query_state = prefix_softmax_mean(split, logits, mask, before, starts, rates)
        pooled, key_logits = self._pooled(asked, key)
        before = slices.state_before(state.key, lambda: slice_mean(key_logits, pooled, mask=mask, rates=rates), extend)
        read = functools.partial(self._with_global_queries, output)
        y, key_state = carried_through_blocks(read, 1, before, asked, query, key, value, mask, starts, rates)
        return y, AdditiveState(query_state, key_state)

    def _meet(
        self,
        output: Callable[[Tensor], Tensor],
        state: AdditiveState,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        starts: Tensor | None,
        rates: Tensor | None,
    ) -> tuple[Tensor, AdditiveState]:
        """Return the output, and the state after the last position."""
        if self.causal or rates is None:
            pool = functools.partial(prefix_softmax_mean, mask=mask, starts=starts, rates=rates)
        else:
            pool = functools.partial(_window_mean, mask=mask, rates=rates)
        global_query, query_state = pool(self.split(query), self.logits(query, self.query_score), state=state.query)
        global_key, key_state = pool(*self._pooled(global_query, key), state=state.key)
        return self._handed(output, global_key, query, value), AdditiveState(query_state, key_state)

    def _with_global_queries(
        self,
        output: Callable[[Tensor], Tensor],
        state: PrefixMean,
        global_query: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        starts: Tensor | None,
        rates: Tensor | None,
    ) -> tuple[Tensor, PrefixMean]:
        """Return the output for global queries (b, t, heads, e), and the state of the global key after the last."""
        pooled, logits = self._pooled(global_query, key)
        global_key, after = prefix_softmax_mean(pooled, logits, mask, state, starts, rates)
        return self._handed(output, global_key, query, value), after

    def _pooled(self, global_query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors of which global keys are means, and their scores."""
        met, logits = self._met(global_query.flatten(2), key)
        pooled = self.split(met)
        return torch.cat((global_query, pooled), -1) if self.interaction == "concat" else pooled, logits

    def _handed(self, output: Callable[[Tensor], Tensor], global_key: Tensor, query: Tensor, value: Tensor) -> Tensor:
        """Return the output for global keys (b, t, heads, e)."""
        if self.interaction == "product":
            used = global_key.flatten(2) * value
        elif self.interaction == "add":
            used = global_key.flatten(2) + value
        else:
            from_query, from_key = global_key.chunk(2, -1)
            used = torch.cat((from_query.flatten(2), from_key.flatten(2), value), -1)
        y = output(used)
        return y + query if self.adds_query else y

    def _met(self, asked: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return p_t, or with "concat" k_t alone, and its scores, from global queries and keys (b, t, dim)."""
        *for_query, for_key = self.key_score.chunk(2 if self.interaction == "concat" else 1, 1)
        met = asked * key if self.interaction == "product" else asked + key if self.interaction == "add" else key
        logits = self.logits(met, for_key)
        return met, logits + self.logits(asked, *for_query) if for_query else logits

    def logits(self, vectors: Tensor, score: Tensor) -> Tensor:
        """Return the scores (b, t, heads) of full vectors (b, t, dim), scaled by 1/√e."""
        width = self.dim // self.heads
        if vectors.shape[1] == 1 and score.shape[1] == width:
            # A step of a stream: not worth a matrix.
            return (self.split(vectors) * score).sum(-1) / width**0.5
        matrix = torch.block_diag(*score.unsqueeze(1)) if score.shape[1] == width else score
        return vectors @ matrix.T / width**0.5

    def split(self, x: Tensor) -> Tensor:
        """Return (b, t, dim) as (b, t, heads, e)."""
        return x.unflatten(2, (self.heads, -1))

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        """ "alpha" and "beta" of each head."""
        if not self.attends:
            return Look()
        query, key, rates = self.project(self.query, x), self.project(self.key, x), self.forgetting(x, mask)
        logits = self.logits(query, self.query_score)
        global_query = softmax_mean(self.split(query), logits, mask, rates, self.causal)
        _, key_logits = self._met(global_query.flatten(2), key)
        alpha, beta = (weights_at(each, mask, at, rates, self.causal) for each in (logits, key_logits))
        return Look({"alpha": alpha, "beta": beta}, time_constants=time_constants(rates, mask))


def _window_mean(
    values: Tensor, logits: Tensor, mask: Tensor | None, state: PrefixMean, rates: Tensor
) -> tuple[Tensor, PrefixMean]:
    return window_softmax_mean(values, logits, mask, rates), state


def naive(
    mixer: Additive,
    x: Tensor,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """Compute `mixer(x, mask, context=context, context_mask=context_mask)` in the paper's order, row by row and head by
    head (causal: prefix by prefix)."""
    source, source_mask = (x, mask) if context is None else (context, context_mask)
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = torch.arange(x.shape[1]) if mask is None else mask[row].nonzero().squeeze(1)
        known = source[row] if source_mask is None else source[row, source_mask[row]]
        if len(real) and len(known):
            y[row, real] = _naive_row(mixer, x[row, real], known, context is not None)
    return y


def _naive_row(mixer: Additive, x: Tensor, source: Tensor, across: bool) -> Tensor:
    """Compute one document (n, d) from the equations, its keys from `source` (m, d), another sequence if `across`."""
    prefixes = mixer.causal and not across

    def heads(tensor: Tensor) -> list[Tensor]:
        return list(tensor.chunk(mixer.heads, -1))

    fades = faded(mixer.forgetting, source)

    def mean(values: list[Tensor], scores: list[Tensor], whole: Tensor, scale: float) -> list[Tensor]:
        """Pool each head's values over all positions as (1, e), or over each prefix when causal, as (t, e)."""
        means = []
        for value, vector, fade in zip(values, scores, fades, strict=True):
            scored = value if vector.shape[0] == value.shape[1] else whole
            logits = (scored * vector).sum(-1) / scale
            if not prefixes and mixer.forgetting.kind != "none":
                # What lies between, in either order.
                means.append((logits - fade - fade.T).softmax(1) @ value)
            elif prefixes:
                ends = range(1, len(value) + 1)
                means.append(torch.stack([(logits[:n] - fade[n - 1, :n]).softmax(0) @ value[:n] for n in ends]))
            else:
                means.append(logits.softmax(0).unsqueeze(0) @ value)
        return means

    def project(linear: nn.Linear, tensor: Tensor) -> Tensor:
        return torch.cat([linear(tensor)] * (mixer.dim // mixer.projected), -1)

    def join(left: Tensor, right: Tensor) -> Tensor:
        return torch.cat((left.expand(len(right), -1), right), -1)

    def interact(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        known: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"product": torch.mul, "add": torch.add, "concat": join}
        operate = known[mixer.interaction]
        return [operate(*pair) for pair in zip(left, right, strict=True)]

    query = project(mixer.query, x)
    if not mixer.attends:
        return query
    scale = (mixer.dim / mixer.heads) ** 0.5
    key, value = project(mixer.key, source), query if mixer.value is None else project(mixer.value, x)
    asking = project(mixer.query, source) if across and mixer.causal else query
    global_query = mean(heads(asking), list(mixer.query_score), asking, scale)
    met = interact(global_query, heads(key))
    # All heads together: the whole vector, laid out as the score vectors are (global queries first, then keys).
    whole = join(torch.cat(global_query, -1), key) if mixer.interaction == "concat" else torch.cat(met, -1)
    global_key = mean(met, list(mixer.key_score), whole, scale)
    if mixer.interaction == "concat":
        width = mixer.dim // mixer.heads
        used = join(torch.cat([*(k[:, :width] for k in global_key), *(k[:, width:] for k in global_key)], -1), value)
    else:
        used = torch.cat(interact(global_key, heads(value)), -1)
    y: Tensor = mixer.output(used)
    return y + query if mixer.adds_query else y


Affine = tuple[Float[Tensor, "out d"], Float[Tensor, " out"] | None]


def scaled_between(
    reads: JointReads,
    scale: Float[Tensor, "b d"] | None,
    outer: Float[Tensor, "d d"],
    inner: Affine,
    beside: Affine | None = None,
    constant: Float[Tensor, "#b 1 d"] | None = None,
) -> Float[Tensor, "b n d"]:
    """Return outer (scale ⊙ inner(x)) + beside(x) + constant; no `scale` is ones, all else that is None is zero.

    As x times the matrix outer diag(scale) W_inner + W_beside of its row, the last read of x, of width d: n·d² + d³; or
    n·d² for each projection where there are fewer positions than d.
    """
    x = reads.x
    weight, bias = inner
    if scale is not None and (exporting() or x.shape[1] <= x.shape[2]):
        # A matrix per row of the batch costs d³; with fewer positions than d, two products cost less. Where the length
        # is not known they are chosen too: they never cost twice as much, the matrix many times as much.
        value = linear(x, weight, bias)
        y = _plus(linear(value * scale.unsqueeze(1), outer), constant)
        if beside is None:
            return y
        return y + (value if beside[0] is weight else linear(x, *beside))
    scaled = outer if scale is None else outer * scale.unsqueeze(1)
    matrix = scaled @ weight
    if bias is not None:
        constant = _plus((scaled @ bias).view(-1, 1, outer.shape[0]), constant)
    if beside is not None:
        matrix = matrix + beside[0]
        constant = constant if beside[1] is None else _plus(beside[1].view(1, 1, -1), constant)
    return transform(reads, matrix, constant)


def _plus(y: Tensor, constant: Tensor | None) -> Tensor:
    return y if constant is None else y + constant
