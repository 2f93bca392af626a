"""One layer of the backbone: a mixer and a feed-forward network, each with norm, dropout and residual."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.mixers.base import Mixer
from longspan.models.parts.short_convolution import ShortConvolution
from longspan.ops.dropout import Dropout
from longspan.ops.execution import by_hand

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}
#: Numbers in the middle of a feed-forward network at a time, where none are kept: 64 MB in float32.
FED_AT_ONCE = 1 << 24


class ConvolvedState(NamedTuple):
    """The state of a layer with a short convolution: the convolution's last `inputs` and the `mixer`'s state."""

    inputs: Tensor
    mixer: Any


class CrossedState(NamedTuple):
    """The state of a layer that attends to a context: the layer's `own` without it, and that of its `cross` mixer."""

    own: Any
    cross: Any


class Block(nn.Module):
    """A mixer and a feed-forward network, each with norm, dropout and residual.

    Pre-norm is x + f(norm(x)); post-norm is norm(x + f(x)). A short convolution comes after the norm, so f is then the
    mixer of what it returns. A cross mixer comes after the mixer, in the same form. It lets positions attend to a
    context, another sequence, as in the decoder of Vaswani et al. 2017, section 3.1.

    Args:
        mixer: the module that mixes positions.
        dim: width of input and output.
        feed_forward_dim: hidden width of the feed-forward network; 0 leaves it out.
        norm: "pre", "post" or "none".
        residual: whether inputs are added to outputs.
        dropout: probability with which outputs of mixer and feed-forward are zeroed in training.
        activation: "gelu" or "relu", between the two products of the feed-forward network.
        feed_forward_dropout: whether dropout is also applied after the activation.
        short_convolution: width of the convolution before the mixer; 0 leaves it out.
        cross_mixer: the mixer through which positions attend to a context; None leaves it out.
    """

    def __init__(
        self,
        mixer: Mixer,
        dim: int,
        *,
        feed_forward_dim: int,
        norm: str,
        residual: bool,
        dropout: float,
        activation: str,
        feed_forward_dropout: bool,
        short_convolution: int,
        cross_mixer: Mixer | None = None,
    ) -> None:
        super().__init__()
        self.pre = norm == "pre"
        self.residual = residual
        self.mixer = mixer
        self.mixer_norm = nn.Identity() if norm == "none" else nn.LayerNorm(dim)
        self.convolution: ShortConvolution | None = None
        if short_convolution:
            self.convolution = ShortConvolution(dim, short_convolution, causal=mixer.causal)
        self.cross_mixer = cross_mixer
        if cross_mixer is not None:
            self.cross_norm = nn.Identity() if norm == "none" else nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)
        self.feed_forward: nn.Module | None = None
        self.feed_forward_dim = feed_forward_dim
        if feed_forward_dim:
            between = ACTIVATIONS[activation]()
            self.feed_forward = nn.Sequential(
                nn.Linear(dim, feed_forward_dim),
                nn.Sequential(between, Dropout(dropout)) if feed_forward_dropout else between,
                nn.Linear(feed_forward_dim, dim),
            )
            self.feed_forward_norm = nn.Identity() if norm == "none" else nn.LayerNorm(dim)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        mask: Bool[Tensor, "b t"] | None = None,
        document_ids: Int[Tensor, "b t"] | None = None,
        state: Any = None,
        context: Float[Tensor, "b m d"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
        structure: Any = None,
        counts: Float[Tensor, "b t"] | None = None,
        context_counts: Float[Tensor, "b m"] | None = None,
    ) -> Any:
        """Run full sequences, or continue from a `state` (`init_state`) and return the outputs and the new one.

        Both are calls of the module, so that checkpointing, sharding and offloading, which hook into calls, apply.
        Without a `context` a cross mixer does nothing; a state holds the one it was made with. A `structure` is for
        the mixers that read it. `counts` and `context_counts` are those of mixers. Raises UserError for a context
        without a cross mixer, or together with packed documents.
        """
        entered = self._enter(self.mixer_norm, x)
        if state is not None:
            own, crossed = (state.own, True) if isinstance(state, CrossedState) else (state, False)
            mixed, own = self._step(entered, own, mask)
            x = self._leave(self.mixer_norm, x, mixed)
            if not crossed:
                return self._fed_forward(x), own
            read, cross = self._reader().step(self._enter(self.cross_norm, x), state.cross, mask)
            return self._fed_forward(self._leave(self.cross_norm, x, read)), CrossedState(own, cross)
        if self.convolution is not None:
            entered, _ = self.convolution(entered, mask, document_ids, counts=counts)
        along: dict[str, Any] = {} if counts is None else {"counts": counts}
        if structure is not None and self.mixer.capabilities.structure is type(structure):
            along["structure"] = structure
        x = self._leave(self.mixer_norm, x, self.mixer(entered, mask, document_ids=document_ids, **along))
        if context is not None:
            read = self._reader()(
                self._enter(self.cross_norm, x),
                mask,
                document_ids=document_ids,
                context=context,
                context_mask=context_mask,
                counts=counts,
                context_counts=context_counts,
            )
            x = self._leave(self.cross_norm, x, read)
        return self._fed_forward(x)

    def init_state(
        self,
        batch_size: int,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        context: Float[Tensor, "b m d"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Any:
        """Return the state before the first position: the mixer's, in a `ConvolvedState` if there is a convolution.

        With a `context`, which the cross mixer reads here and only here, all of it is in a `CrossedState`.

        Raises UserError if the mixer cannot continue from a state, and for a context without a cross mixer.
        """
        state = self.mixer.init_state(batch_size, dtype, device)
        if self.convolution is not None:
            state = ConvolvedState(self.convolution.init_state(batch_size, dtype, device), state)
        if context is None:
            return state
        read = self._reader().init_state(batch_size, dtype, device, context=context, context_mask=context_mask)
        return CrossedState(state, read)

    def reset(self, state: Any, rows: Bool[Tensor, " b"]) -> Any:
        """Return `state` with the rows where `rows` is True as `init_state` gives them, with the same context."""
        if isinstance(state, CrossedState):
            return CrossedState(self.reset(state.own, rows), self._reader().reset(state.cross, rows))
        if self.convolution is None:
            return self.mixer.reset(state, rows)
        return ConvolvedState(state.inputs.masked_fill(rows.view(-1, 1, 1), 0), self.mixer.reset(state.mixer, rows))

    def _reader(self) -> Mixer:
        if self.cross_mixer is None:
            raise UserError(
                "expected no context, as this model has no cross attention, got one; build it with cross_mixers, "
                "such as ['linear'], or leave it out."
            )
        return self.cross_mixer

    def _step(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        if self.convolution is None:
            return self.mixer.step(x, state, mask)
        x, inputs = self.convolution(x, mask, state=state.inputs)
        mixed, after = self.mixer.step(x, state.mixer, mask)
        return mixed, ConvolvedState(inputs, after)

    def _fed_forward(self, x: Tensor) -> Tensor:
        if self.feed_forward is None:
            return x
        rows = max(1, FED_AT_ONCE // max(1, x.shape[0] * self.feed_forward_dim))
        # What is not saved for a backward pass need not be there at once, and dropout draws for all positions.
        if by_hand() and not (torch.is_grad_enabled() or self.training) and x.shape[1] > rows:
            return torch.cat([self._fed_at_once(part) for part in x.split(rows, 1)], 1)
        return self._fed_at_once(x)

    def _fed_at_once(self, x: Tensor) -> Tensor:
        assert self.feed_forward is not None
        return self._leave(self.feed_forward_norm, x, self.feed_forward(self._enter(self.feed_forward_norm, x)))

    def _enter(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.pre else x

    def _leave(self, norm: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        y = self.dropout(y)
        y = x + y if self.residual else y
        return y if self.pre else norm(y)
