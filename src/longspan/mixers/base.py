"""What every mixer is, can do and costs: the one interface that models, training and tools rely on.

A mixer is a `Mixer` that implements

    mix(x, mask)                                    its mathematics, on rows whose padding holds zeros
    operations(length)                              its cost

and, where its `capabilities` say so,

    mix_context(x, mask, context, context_mask)     cross attention                             (context)
    empty_state, advance(x, mask, state)            streams                                     (streaming)
    state_size, reset, bounded_state                where a state grows                         (streaming)
    mix_documents(x, mask, document_ids)            packed rows, where one row per document is not the best way

`Mixer.forward` and `Mixer.step` surround them with what all mixers have in common: checks, padding, empty inputs,
packing. `longspan.testing.check_mixer` checks a mixer against the whole contract.
"""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from longspan.errors import UserError
from longspan.ops.attention import check_context, served
from longspan.ops.packing import by_document, zero_padding

State = Any
# A length at which the fastest-growing term outweighs all others.
LONG = 1 << 20


@dataclass(frozen=True)
class Capabilities:
    """What a class of mixers can do.

    Attributes:
        causal: there is a form in which no position sees a later one, chosen by the option `causal`.
        streaming: that form continues from a state: `init_state`, `step`, `reset`.
        context: x may attend to another sequence instead of itself (cross attention).
        packing: one row may hold several documents (`document_ids`).
        edges: `forward` takes the edges of a graph.
    """

    causal: bool = False
    streaming: bool = False
    context: bool = False
    packing: bool = True
    edges: bool = False


class Mixer(nn.Module, ABC):
    """A layer that moves information between positions: (b, t, dim) to (b, t, dim).

    The constructor's first argument is the width; all others are keyword-only options with defaults, whose names and
    values are what recipes and `longspan show` offer.

    Attributes:
        capabilities: what the class can do.
        dim: width of the input and the output.
        causal: whether this mixer is of the causal form.
        max_length: the maximum number of real positions in a row, or None.
        memory: how many positions `step` remembers if that can be set (`set_memory`), otherwise None.
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
    ) -> Float[Tensor, "b n d"] | tuple[Float[Tensor, "b n d"], State]:
        """Mix whole sequences.

        Args:
            x: the sequences.
            mask: True at real tokens. Values elsewhere, NaN included, have no effect; outputs there are zeros.
            document_ids: the number of each token's document, where rows contain several; its tokens are contiguous.
            context: sequences that x attends to instead of itself.
            context_mask: True at the context's real tokens. Rows without any give zeros.
            state: continue from it, as `step` does, and also return the new state; only x and mask may be given with
                it. (`step` calls the module itself, so that hooks run, such as those that fetch offloaded weights.)

        Raises:
            UserError: for a wrong shape or type, a row longer than `max_length`, a context or packed documents that
                this mixer does not support, or both at once; ValueError when a document's tokens are not contiguous.
        """
        self._check(x, mask)
        if state is not None:
            self._check_state(x, state)
            return self._advance(x, mask, state, document_ids, context)
        self._check_documents(x, document_ids)
        self._check_context(x, document_ids, context, context_mask)
        if not x.shape[0] or not x.shape[1]:
            return x
        x = zero_padding(x, mask)
        if document_ids is not None:
            return zero_padding(self.mix_documents(x, mask, document_ids), mask)
        if context is None:
            return self._mix(x, mask)
        if not context.shape[1]:
            return x.masked_fill(torch.ones_like(x[..., :1], dtype=torch.bool), 0)
        y = self.mix_context(x, mask, zero_padding(context, context_mask), context_mask)
        return y if self.zeroes_padding else zero_padding(y, served(x, mask, context_mask))

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
        self, batch_size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> State:
        """Return the state before the first position: tensors in a NamedTuple, the batch first in each.

        Args:
            batch_size: number of rows.
            dtype: what the mixer computes in, by default its parameters' type. Sums are kept in at least float32.
            device: by default where the parameters are.

        Raises:
            UserError: when the mixer is not causal or cannot stream.
        """
        self._check_streaming()
        placed = next((tensor for tensor in self.parameters() if tensor.is_floating_point()), None)
        if dtype is None:
            dtype = torch.get_default_dtype() if placed is None else placed.dtype
        if device is None:
            # Weights on no device at all are offloaded.
            known = None if placed is None or placed.device.type == "meta" else placed.device
            device = known or torch.get_default_device()
        return self.empty_state(batch_size, dtype, torch.device(device))

    def reset(self, state: State, rows: Bool[Tensor, " b"]) -> State:
        """Return `state` with the rows where `rows` is True as `init_state` gives them: another document begins there.

        Mixers whose states grow override it.
        """

        def renewed(old: Tensor, new: Tensor) -> Tensor:
            if old.shape != new.shape:
                raise NotImplementedError(f"{self._name} has a state that grows, and must implement reset")
            return torch.where(rows.view(-1, *[1] * (old.ndim - 1)), new.to(old), old)

        return tree_map(renewed, state, self.init_state(len(rows)))

    def state_size(self, positions: int) -> int:
        """Return how many numbers one row's state holds after `positions` positions, none of them masked.

        This is for states of constant size; mixers whose states grow override it.
        """
        return sum(tensor.numel() for tensor in tree_leaves(self.init_state(1, device="meta")))

    @abstractmethod
    def operations(self, length: int) -> int:
        """Return how many operations (multiplications and additions each count) the matrix products of a forward pass
        over one row of `length` positions take."""

    @property
    def exact_length(self) -> int | None:
        """How many positions `step` reads before its outputs depend on where segments end; None if they never do."""
        return None

    @property
    def linear(self) -> bool:
        """Whether the cost grows linearly with the length."""
        return self.operations(2 * LONG) < 3 * self.operations(LONG)

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

        What is returned at padding, and in rows without any real context, does not matter unless `zeroes_padding`.
        """
        raise NotImplementedError(f"{self._name} declares that it takes a context, and must implement mix_context")

    def mix_documents(self, x: Tensor, mask: Tensor | None, document_ids: Tensor) -> Tensor:
        """Return the outputs of packed rows; by default each document temporarily becomes a separate row."""
        return by_document(self._mix, x, document_ids, mask)

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return what `init_state` does."""
        raise NotImplementedError(f"{self._name} declares that it streams, and must implement empty_state")

    def advance(self, x: Tensor, mask: Tensor | None, state: State) -> tuple[Tensor, State]:
        """Return the outputs of `step` and the state after it, x (b, n, dim) being zero where `mask` is False; n >= 1.

        What is returned there does not matter.
        """
        raise NotImplementedError(f"{self._name} declares that it streams, and must implement advance")

    @property
    def _name(self) -> str:
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def _mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        self._check_length(x, mask)
        y = self.mix(x, mask)
        return y if self.zeroes_padding else zero_padding(y, mask)

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
        y, state = self.advance(zero_padding(x, mask), mask, state)
        return zero_padding(y, mask), state

    def _check(self, x: Tensor, mask: Tensor | None) -> None:
        if x.ndim != 3 or x.shape[2] != self.dim:
            raise UserError(
                f"{self._name} expected x of (batch, positions, {self.dim}), got {_shape(x)}; reshape it, or build the "
                "mixer with another dim."
            )
        _check_mask("mask", mask, x)

    def _check_streaming(self) -> None:
        if not self.capabilities.streaming:
            raise UserError(
                f"expected a mixer that continues from a state, got {self._name}, which has none; choose another mixer "
                "or run whole sequences."
            )
        if not self.causal:
            raise UserError("expected a causal mixer for a state, got causal=False; build it with causal=True.")

    def _check_state(self, x: Tensor, state: State) -> None:
        rows = {tensor.shape[0] for tensor in tree_leaves(state) if isinstance(tensor, Tensor) and tensor.ndim}
        if rows - {x.shape[0]}:
            raise UserError(
                f"{self._name} expected a state with {x.shape[0]} rows, like x, got one with {max(rows)}; begin with "
                f"init_state({x.shape[0]})."
            )

    def _check_documents(self, x: Tensor, document_ids: Tensor | None) -> None:
        if document_ids is None:
            return
        if not self.capabilities.packing:
            raise UserError(
                f"{self._name} expected one document per row, got packed documents in document_ids; pad each document "
                "to its own row."
            )
        if document_ids.shape != x.shape[:2] or document_ids.dtype.is_floating_point:
            raise UserError(
                f"expected document_ids to be integers of shape (batch, positions) = {_shape(x[..., 0])}, got "
                f"{_shape(document_ids)} of {document_ids.dtype}; number each token's document."
            )

    def _check_context(
        self, x: Tensor, document_ids: Tensor | None, context: Tensor | None, context_mask: Tensor | None
    ) -> None:
        if context is not None and not self.capabilities.context:
            raise UserError(
                f"{self._name} expected no context, as it has no cross attention, got one; choose another mixer or "
                "leave it out."
            )
        check_context(self.causal, document_ids, context, context_mask)
        if context is None:
            return
        if context.ndim != 3 or context.shape[::2] != x.shape[::2]:
            raise UserError(
                f"expected a context of ({x.shape[0]}, positions, {self.dim}), as x has as many rows and this width, "
                f"got {_shape(context)}; give each row of x its context."
            )
        _check_mask("context_mask", context_mask, context)

    def _check_length(self, x: Tensor, mask: Tensor | None) -> None:
        """Raise UserError when a row has more real positions than `max_length`."""
        longest = x.shape[1]
        if self.max_length is None or longest <= self.max_length:
            return
        if mask is not None:
            # A batch may be padded beyond what its documents need.
            longest = int(mask.sum(1).max())
        if longest > self.max_length:
            raise UserError(
                f"{self._name} expected rows of at most {self.max_length} positions, got {longest}; shorten them or "
                "build it with a larger max_length."
            )


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _check_mask(name: str, mask: Tensor | None, x: Tensor) -> None:
    if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
        raise UserError(
            f"expected {name} to be bool of (batch, positions) = {_shape(x[..., 0])}, True at real tokens, got "
            f"{_shape(mask)} of {mask.dtype}; convert it with {name}.bool(), or pass the mask of these rows."
        )
