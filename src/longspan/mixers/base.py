"""Base class of mixers: the one interface that models, training and tools rely on.

A mixer is a `Mixer` that implements

    mix(x, mask)                                    its mathematics, on rows whose padding holds zeros
    operations(length)                              its cost

and, where its `capabilities` say so,

    read_context(context, context_mask)             cross attention: what is kept of a context  (context)
    advance_context(x, mask, state)                 and what x makes of it                      (context)
    mix_context(x, mask, context, context_mask)     where whole rows take another way           (context)
    context_operations(length, context_length)      its cost                                    (context)
    weigh_context(x, mask, context, context_mask)   what each output takes of the context       (weights)
    pool_context(weights, context)                  and the outputs of these weights            (weights)
    empty_state, advance(x, mask, state)            streams                                     (streaming)
    state_size, reset, bounded_state                where a state grows                         (streaming)
    look_at(x, mask, at)                            how it reads rows (`longspan.mixers.looks`) (looks)
    mix_documents(x, mask, document_ids)            packed rows, where one row per document is not the best way
    mix_along(x, mask, structure, document_ids)     rows of a graph, say                        (structure)
    halo, or calls of `longspan.ops.slices`         slices of rows over processes               (slices)

`Mixer.forward` and `Mixer.step` surround them with what all mixers have in common: checks, padding, empty inputs,
packing. `longspan.testing.check_mixer` checks a mixer against the whole contract.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from longspan.errors import UserError
from longspan.mixers import _checks
from longspan.ops import slices
from longspan.ops.attention import attended_mask
from longspan.ops.execution import without_autocast
from longspan.ops.packing import by_document, zero_padding

State = Any


# A length at which the fastest-growing term outweighs all others.
LONG = 1 << 20
#: Weights that add up to one over the positions that are read.
SHARES = ("alpha", "beta", "send", "receive", "shares", "lookup", "attention")


@dataclass(frozen=True)
class Capabilities:
    """Abilities of a class of mixers.

    Attributes:
        causal: there is a form in which no position sees a later one, chosen by the option `causal`.
        streaming: that form continues from a state: `init_state`, `step`, `reset`.
        context: x may attend to another sequence instead of itself (cross attention).
        weights: cross attention has a weight for each position of the context and each of x (`context_weights`).
        packing: one row may hold several documents (`document_ids`).
        structure: class of the `structure` that `forward` takes, such as `longspan.mixers.graph.Edges`; None for none.
        counts: `mix` and `mix_context` take masks of counts (`longspan.ops.counts`); without it, counts scale the
            inputs.
        looks: it shows how it reads rows (`look`).
        slices: rows may be slices of longer ones (`longspan.ops.slices`).
    """

    causal: bool = False
    streaming: bool = False
    context: bool = False
    weights: bool = False
    packing: bool = True
    structure: type | None = None
    counts: bool = False
    looks: bool = False
    slices: bool = False


class ContextState(NamedTuple):
    """The state of a mixer that attends to a context: tensors, the batch first in each.

    Attributes:
        context: what was read of the context. Steps do not change it.
        prefix: what has been seen of x: no tensors where each output depends on one position of x alone.
        served: (b,) bool, which rows have a real position in their context; the others give zeros.
    """

    context: Any
    prefix: Any = ()
    served: Any = ()


@dataclass(frozen=True, eq=False)
class Look:
    """Weights with which a mixer reads rows of t positions. All numbers are in at least float32.

    Attributes:
        weights: by name, (b, n, t), n being heads, slots or channels: none is negative, and padding weighs nothing.
            Those in `SHARES` add up to one over a row's real positions. "adds" and "subtracts" are the parts of weights
            that have signs, of whole rows those of the mean. "kept" is how much of each position is left.
        distances: (heads, buckets), the shares of the weights by distance, of all rows together. The buckets end at
            powers of two. Distances count real positions. Of whole rows, they are those of some queries, evenly spread.
        reach: (heads,), the distance within which 90 % of the weights lie.
        time_constants: (heads,) or (heads, channels), positions after which a weight has shrunk to 1/e, at the mean
            rate of the real positions.
        gates: by name, (b, heads, t), the mean of what scales each position's output.
    """

    weights: Mapping[str, Tensor] = field(default_factory=dict)
    distances: Tensor | None = None
    reach: Tensor | None = None
    time_constants: Tensor | None = None
    gates: Mapping[str, Tensor] = field(default_factory=dict)

    def strongest(self, name: str, most: int = 10) -> list[list[tuple[int, float]]]:
        """Return the positions with the largest weights of a name in each row, means over heads, largest first.

        Positions without weight are none of them: of a graph's node, only its neighbours are.
        """
        mean = self.weights[name].mean(1)
        best = mean.topk(min(most, mean.shape[1]), 1)
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [[(place, weight) for place, weight in zip(*row, strict=True) if weight > 0] for row in rows]


class Mixer(nn.Module, ABC):
    """A layer that moves information between positions: (b, t, dim) to (b, t, dim).

    The constructor's first argument is the width; all others are keyword-only options with defaults, whose names and
    values are what recipes and `longspan show` offer.

    Attributes:
        capabilities: what the class can do.
        dim: width of the input and the output.
        causal: whether this mixer is of the causal form.
        max_length: the maximum number of real positions in a row, or None.
        memory: number of positions that `step` remembers if that can be set (`set_memory`), otherwise None.
        bounded_state: whether the state stops growing.
        zeroes_padding: whether `mix` and `mix_context` themselves return zeros at padding, and in rows that have
            nothing to attend to; otherwise zeroing takes one more pass over the output.

    Raises:
        UserError: when `causal` is asked of a mixer that has no causal form.
    """

    capabilities: ClassVar[Capabilities] = Capabilities()
    max_length: int | None = None
    memory: int | None = None
    bounded_state: bool = True
    zeroes_padding: bool = False

    def __init__(self, dim: int, *, causal: bool = False) -> None:
        super().__init__()
        if causal and not self.capabilities.causal:
            raise UserError(f"{self._name} has no causal form, got causal=True; choose another mixer or causal=False.")
        self.dim = dim
        self.causal = causal

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        mask: Bool[Tensor, "b n"] | None = None,
        *,
        document_ids: Int[Tensor, "b n"] | None = None,
        context: Float[Tensor, "b m d"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
        state: State | None = None,
        counts: Float[Tensor, "b n"] | None = None,
        context_counts: Float[Tensor, "b m"] | None = None,
        structure: Any = None,
    ) -> Float[Tensor, "b n d"] | tuple[Float[Tensor, "b n d"], State]:
        """Mix whole sequences.

        Args:
            x: the sequences.
            mask: True at real tokens. Values elsewhere, NaN included, have no effect; outputs there are zeros.
            document_ids: the number of each token's document, where rows contain several; its tokens are contiguous.
            context: sequences that x attends to instead of itself.
            context_mask: True at the context's real tokens. Rows without any give zeros.
            state: continue from it, as `step` does, and also return the new state; only x and mask may be given with
                it. Together with a context it must be `()`, and x follows on nothing. (`step` and `init_state` call
                the module itself, so that hooks run, such as those that fetch offloaded weights.)
            counts: how often each position counts in what others read of it, 1 by default. 2 is as if it were there
                twice, and 0 removes it, as the mask does. Outputs are differentiable in them.
            context_counts: the same for the context.
            structure: what joins positions besides their order, of the class `capabilities.structure`, such as the
                `longspan.mixers.graph.Edges` of a graph. It goes with neither a context nor a state.

        Raises:
            UserError: for a wrong shape or type, counts with a state or packed documents, a row longer than
                `max_length`, a context, packed documents or a structure that this mixer does not support, or a context
                together with one of the others; ValueError when the tokens of a document are not contiguous.
        """
        _checks.check_rows(self._name, self.dim, x, mask)
        if slices.current() is not None:
            beside = (document_ids, context, structure, counts, state if self.halo else None)
            _checks.check_slices(self._name, self.takes_slices, beside)
            if not (x.shape[1] or self.halo):
                # A position of padding stands for none, as other slices wait for this one.
                mask = torch.zeros(x.shape[0], 1, dtype=torch.bool, device=x.device)
                y = self(x.new_zeros(x.shape[0], 1, self.dim), mask, state=state)
                return y[:, :0] if state is None else (y[0][:, :0], y[1])
        if structure is not None:
            _checks.check_structure(self._name, self.capabilities.structure, structure, context, state)
        if counts is not None or context_counts is not None:
            _checks.check_counts(self._name, (x, counts), (context, context_counts), document_ids, state)
        if state is not None:
            if context is not None and isinstance(state, tuple) and not state:
                state = self._reading(x, document_ids, context, context_mask)
                document_ids = context = None
            _checks.check_state(self._name, x, state)
            return self._advance(x, mask, state, document_ids, context)
        _checks.check_documents(self._name, self.capabilities.packing, x, document_ids)
        self._check_context(x.shape[0], document_ids, context, context_mask)
        if not x.shape[0] or not (x.shape[1] or slices.current()):
            return x
        x, mask = self._counted(zero_padding(x, mask), mask, counts)
        if structure is not None:
            return zero_padding(self.mix_along(x, mask, structure, document_ids), mask)
        if document_ids is not None:
            return zero_padding(self.mix_documents(x, mask, document_ids), mask)
        if context is None:
            return self._mix(x, mask)
        if not context.shape[1]:
            return x.masked_fill(torch.ones_like(x[..., :1], dtype=torch.bool), 0)
        context, context_mask = self._counted(zero_padding(context, context_mask), context_mask, context_counts)
        y = self.mix_context(x, mask, context, context_mask)
        return y if self.zeroes_padding else zero_padding(y, attended_mask(x, mask, context_mask))

    def step(
        self, x: Float[Tensor, "b n d"], state: State, mask: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n d"], State]:
        """Continue a causal sequence by `n` positions, of which those where `mask` is False are skipped.

        Returns the outputs and the state after these positions; `state` itself is not changed.

        Raises:
            UserError: when the mixer is not causal or cannot stream, and for wrong shapes or types.
        """
        if state is None:
            raise UserError("step expected a state, got None; begin with the mixer's init_state(batch_size).")
        y, state = self(x, mask, state=state)
        return y, state

    def init_state(
        self,
        batch_size: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        *,
        context: Float[Tensor, "b m d"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> State:
        """Return the state before the first position: tensors in a NamedTuple, the batch first in each.

        A context is read here, once, and the state is then a `ContextState`: all steps from it attend to the context.

        Args:
            batch_size: number of rows.
            dtype: what the mixer computes in, by default its parameters' type, or that of the context. Sums are kept
                in at least float32.
            device: by default where the parameters are, or the context.
            context: sequences that x will attend to instead of itself.
            context_mask: True at the context's real tokens.

        Raises:
            UserError: when the mixer is not causal or cannot stream, for a context that it does not support, and for
                wrong shapes or types.
        """
        self._check_streaming()
        self._check_context(batch_size, None, context, context_mask)
        if context is not None:
            context = context.to(device or context.device, dtype or context.dtype)
            state: State = self(context[:, :0], context=context, context_mask=context_mask, state=())[1]
            return state
        placed = next((tensor for tensor in self.parameters() if tensor.is_floating_point()), None)
        if dtype is None:
            dtype = torch.get_default_dtype() if placed is None else placed.dtype
        if device is None:
            # Weights on no device at all are offloaded.
            known = None if placed is None or placed.device.type == "meta" else placed.device
            device = known or torch.get_default_device()
        return self.empty_state(batch_size, dtype, torch.device(device))

    def context_weights(
        self,
        x: Float[Tensor, "b n d"],
        mask: Bool[Tensor, "b n"] | None = None,
        *,
        context: Float[Tensor, "b m d"],
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        """Return the weights of a context's positions in the outputs for x, per head, in at least float32.

        None is negative, those of padding are zero, and `pool_context` makes the outputs of them. Raises UserError
        unless `capabilities.weights`, and for what `forward` refuses.
        """
        _checks.check_weights(self._name, self.capabilities.weights)
        _checks.check_rows(self._name, self.dim, x, mask)
        self._check_context(x.shape[0], None, context, context_mask)
        found = self.weigh_context(zero_padding(x, mask), mask, zero_padding(context, context_mask), context_mask)
        return found if mask is None else found * mask[:, None, :, None]

    def look(
        self,
        x: Float[Tensor, "b t d"],
        mask: Bool[Tensor, "b t"] | None = None,
        *,
        at: int | None = None,
        structure: Any = None,
    ) -> Look:
        """Weights with which rows are read: exactly, without a t x t matrix.

        Args:
            x: the rows, as `forward` takes them.
            mask: True at real positions.
            at: what the position of this number reads; rows where it is padding show zeros. None: how whole rows are
                read, as means over their real positions; of a causal mixer what the last real position reads.
            structure: as `forward` takes it.

        Raises:
            UserError: for a mixer that has nothing to show, a position outside the row, and what `forward` refuses.
        """
        if not self.capabilities.looks:
            raise UserError(
                f"expected a mixer whose weights can be looked at, got {self._name}, which has none; choose another "
                "mixer."
            )
        _checks.check_rows(self._name, self.dim, x, mask)
        _checks.check_length(self._name, self.max_length, x, mask)
        look_at: Callable[..., Look] = self.look_at
        if structure is not None:
            _checks.check_structure(self._name, self.capabilities.structure, structure, None, None)
            look_at = partial(look_at, structure=structure)
        b, t, _ = x.shape
        if not (t if at is None else 0 <= at < t):
            raise UserError(f"{self._name} expected a position of a row of {t}, got {at}; choose one that is there.")
        places = None if at is None else torch.full((b,), at, device=x.device)
        if places is None and self.causal:
            last = torch.arange(1, t + 1, device=x.device)
            places = (last.expand(b, t) if mask is None else last * mask).argmax(1)
        with without_autocast(x):
            look = look_at(zero_padding(x, mask), mask, places)
        if mask is None:
            return look
        shown = mask.unsqueeze(1) if places is None else (mask & mask.gather(1, places.unsqueeze(1))).unsqueeze(1)
        return replace(
            look,
            weights={name: weights * shown for name, weights in look.weights.items()},
            gates={name: gates * mask.unsqueeze(1) for name, gates in look.gates.items()},
        )

    def reset(self, state: State, rows: Bool[Tensor, " b"]) -> State:
        """Return `state` with the rows where `rows` is True as `init_state` gives them: another document begins there.

        With a context, what has been seen of x starts over, and the context stays. Mixers whose states grow override
        it, and those whose `ContextState` has a prefix.
        """
        if isinstance(state, ContextState):
            if tree_leaves(state.prefix):
                raise NotImplementedError(
                    f"{self._name} keeps what it saw of x with a context, and must implement reset"
                )
            return state

        def renewed(old: Tensor, new: Tensor) -> Tensor:
            if old.shape != new.shape:
                raise NotImplementedError(f"{self._name} has a state that grows, and must implement reset")
            return torch.where(rows.view(-1, *[1] * (old.ndim - 1)), new.to(old), old)

        return tree_map(renewed, state, self.init_state(len(rows), device=rows.device))

    def state_size(self, positions: int) -> int:
        """Number of values in one row's state after `positions` positions, none of them masked.

        This is for states of constant size; mixers whose states grow override it.
        """
        return sum(tensor.numel() for tensor in tree_leaves(self.init_state(1, device="meta")))

    @abstractmethod
    def operations(self, length: int) -> int:
        """Number of operations of the matrix products of a forward pass over one row of `length` positions.

        Multiplications and additions each count.
        """

    def context_operations(self, length: int, context_length: int) -> int:
        """Number of such operations of a forward pass that attends to a context of `context_length`.

        Without any positions, those of reading the context.
        """
        raise NotImplementedError(
            f"{self._name} declares that it takes a context, and must implement context_operations"
        )

    @property
    def exact_length(self) -> int | None:
        """Number of positions that `step` reads before its outputs depend on where segments end; None for no limit."""
        return None

    @property
    def takes_slices(self) -> bool:
        """Whether rows may be slices of longer ones, with the options that this mixer was built with."""
        return self.capabilities.slices

    @property
    def halo(self) -> tuple[int, int] | None:
        """Number of positions before a slice and after it that `mix` reads besides; None if it asks other slices."""
        return None

    @property
    def linear(self) -> bool:
        """Whether the cost grows linearly with the length."""
        return self.operations(2 * LONG) < 3 * self.operations(LONG)

    @property
    def takes_context(self) -> bool:
        """Whether x may attend to another sequence, with the options that this mixer was built with."""
        return self.capabilities.context

    @property
    def bounded_context(self) -> bool:
        """Whether what is kept of a context, and the cost of a step that attends to it, do not grow with its length."""
        short, long = (self.context_operations(1, m) - self.context_operations(0, m) for m in (LONG, 2 * LONG))
        return short == long

    def set_memory(self, positions: int) -> None:
        """Let `step` remember the last `positions` positions, in states created from now on.

        Raises UserError for a mixer without a memory that can be set.
        """
        raise UserError(f"{self._name} expected no memory, as it has none to set, got {positions}; leave it out.")

    @abstractmethod
    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the outputs of whole rows, x (b, t, dim) being zero where `mask` (b, t) is False; b, t >= 1.

        What is returned there does not matter unless `zeroes_padding`.
        """

    def mix_context(self, x: Tensor, mask: Tensor | None, context: Tensor, context_mask: Tensor | None) -> Tensor:
        """Return the outputs of x (b, n, dim) attending to `context` (b, m, dim), both zero at their padding; m >= 1.

        By default the context is read, and x is one step from there. What is returned at padding, and in rows without
        any real context, does not matter unless `zeroes_padding`.
        """
        return self.advance_context(x, mask, self.read_context(context, context_mask))[0]

    def read_context(self, context: Tensor, context_mask: Tensor | None) -> ContextState:
        """Return the state that holds what is to be known of `context` (b, m, dim), zero where `context_mask` is False,
        and that nothing of x has been seen; m >= 1. The caller sets `attended_mask`.
        """
        raise NotImplementedError(f"{self._name} declares that it takes a context, and must implement read_context")

    def advance_context(self, x: Tensor, mask: Tensor | None, state: ContextState) -> tuple[Tensor, ContextState]:
        """Return the outputs of `step` with a context and the state after it, x (b, n, dim) being zero where `mask` is
        False; n >= 1.

        What is returned there, and in rows without any real context, does not matter.
        """
        raise NotImplementedError(f"{self._name} declares that it takes a context, and must implement advance_context")

    def weigh_context(self, x: Tensor, mask: Tensor | None, context: Tensor, context_mask: Tensor | None) -> Tensor:
        """The `context_weights`, except that those at padding of x do not matter; inputs are zero there."""
        raise NotImplementedError(f"{self._name} declares that it has weights, and must implement weigh_context")

    def pool_context(self, weights: Tensor, context: Tensor) -> Tensor:
        """Return the outputs (b, n, dim) of weights (b, h, n, m) of `context` (b, m, dim), zero at its padding."""
        raise NotImplementedError(f"{self._name} declares that it has weights, and must implement pool_context")

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        """The result of `look`, x being zero at padding; what is shown of padding does not matter.

        `at` (b,) is None for whole rows of a mixer that is not causal. Mixers that read a structure get it as another
        argument of that name, if there is one.
        """
        raise NotImplementedError(f"{self._name} declares that it shows looks, and must implement look_at")

    def mix_documents(self, x: Tensor, mask: Tensor | None, document_ids: Tensor) -> Tensor:
        """Return the outputs of packed rows; by default each document temporarily becomes a separate row."""
        return by_document(self._mix, x, document_ids, mask)

    def mix_along(self, x: Tensor, mask: Tensor | None, structure: Any, document_ids: Tensor | None) -> Tensor:
        """Return the outputs of rows, packed or not, whose positions `structure` joins; otherwise as `mix`."""
        raise NotImplementedError(f"{self._name} declares that it reads a structure, and must implement mix_along")

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> State:
        """The state of `init_state`."""
        raise NotImplementedError(f"{self._name} declares that it streams, and must implement empty_state")

    def advance(self, x: Tensor, mask: Tensor | None, state: State) -> tuple[Tensor, State]:
        """Return the outputs of `step` and the state after it, x (b, n, dim) being zero where `mask` is False; n >= 1.

        What is returned there does not matter.
        """
        raise NotImplementedError(f"{self._name} declares that it streams, and must implement advance")

    @property
    def _name(self) -> str:
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def _counted(self, x: Tensor, mask: Tensor | None, counts: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return x, zero at padding, and its mask so that they say how often each position counts."""
        if counts is None:
            return x, mask
        counted = counts if mask is None else counts * mask
        if self.capabilities.counts:
            return zero_padding(x, counted), counted
        return x * counted.unsqueeze(-1).to(x.dtype), counted > 0

    def _mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        _checks.check_length(self._name, self.max_length, x, mask)
        if self.halo is not None and slices.current() is not None:
            y = self._mix_with_halo(x, mask, *self.halo)
        else:
            y = self.mix(x, mask)
        return y if self.zeroes_padding else zero_padding(y, mask)

    def _mix_with_halo(self, x: Tensor, mask: Tensor | None, left: int, right: int) -> Tensor:
        # Beyond the ends of the row there is padding.
        real = torch.ones_like(x[..., :1]) if mask is None else mask.unsqueeze(-1).to(x.dtype)
        marked = torch.cat((x, real), 2)
        before, after = slices.halo(marked, left, right)
        seen = torch.cat((before, marked, after), 1)
        if not seen.shape[1]:
            return x
        return self.mix(seen[..., :-1], seen[..., -1] > 0)[:, left : left + x.shape[1]]

    def _advance(
        self, x: Tensor, mask: Tensor | None, state: State, document_ids: Tensor | None, context: Tensor | None
    ) -> tuple[Tensor, State]:
        self._check_streaming()
        if document_ids is not None or context is not None:
            raise UserError(
                "expected neither packed documents nor a context together with a state, got one of them; give each "
                "document its own row."
            )
        if not x.shape[0] or not x.shape[1]:
            return x, state
        if isinstance(state, ContextState):
            y, state = self.advance_context(zero_padding(x, mask), mask, state)
            return zero_padding(y, attended_mask(x, mask, state.served.unsqueeze(1))), state
        y, state = self.advance(zero_padding(x, mask), mask, state)
        return zero_padding(y, mask), state

    def _reading(
        self, x: Tensor, document_ids: Tensor | None, context: Tensor, context_mask: Tensor | None
    ) -> ContextState:
        self._check_streaming()
        self._check_context(x.shape[0], document_ids, context, context_mask)
        if not context.shape[1]:
            # One position of padding stands for none.
            context = context.new_zeros(context.shape[0], 1, self.dim)
            context_mask = context.new_zeros(context.shape[0], 1, dtype=torch.bool)
        state = self.read_context(zero_padding(context, context_mask), context_mask)
        some = context.new_ones(context.shape[0], dtype=torch.bool) if context_mask is None else context_mask.any(1)
        return state._replace(served=some)

    def _check_streaming(self) -> None:
        _checks.check_streaming(self._name, self.capabilities.streaming, self.causal)

    def _check_context(
        self, rows: int | torch.SymInt, document_ids: Tensor | None, context: Tensor | None, context_mask: Tensor | None
    ) -> None:
        given = document_ids, context, context_mask
        _checks.check_contexts(self._name, self.capabilities.context, (rows, self.dim), *given)
