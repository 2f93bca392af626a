"""One backbone for every mixer: [norm, mixer, residual, feed-forward] x depth, with cross attention if wanted."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan import mixers
from longspan.errors import UserError, check_choice, suggestion
from longspan.mixers._forgetting import KINDS
from longspan.mixers.base import Mixer
from longspan.models.short_convolution import ShortConvolution
from longspan.ops.dropout import Dropout
from longspan.ops.execution import by_hand

NORMS = ("pre", "post", "none")
#: Options of every mixer that knows them, which one of a model must: the value that asks for nothing, what is wanted by
#: others, and a mixer that has it.
WANTED: Mapping[str, tuple[Any, str, str]] = {
    "forget": ("none", "a mixer that can forget", "additive"),
    "rotary": (False, "a mixer with rotary positions", "softmax"),
}
ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}
#: Numbers in the middle of a feed-forward network at a time, where none are kept: 64 MB in float32.
FED_AT_ONCE = 1 << 24


def known_to(mixer_names: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a model without those of WANTED that none of its mixers knows."""
    known = {option for name in mixer_names for option in mixers.options(name)}
    return {key: value for key, value in settings.items() if key not in WANTED or key in known}


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
        edges: Int[Tensor, "3 n"] | None = None,
        edge_features: Float[Tensor, "n f"] | None = None,
    ) -> Any:
        """Run full sequences, or continue from a `state` (`init_state`) and return the outputs and the new one.

        Both are calls of the module, so that checkpointing, sharding and offloading, which hook into calls, apply.
        Without a `context` a cross mixer does nothing; a state holds the one it was made with. `edges`, and features
        of them, are for mixers that take them. Raises UserError for a context without a cross mixer, or together with
        packed documents.
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
            entered, _ = self.convolution(entered, mask, document_ids)
        along = {}
        if edges is not None and self.mixer.capabilities.edges:
            along = {"edges": edges, "edge_features": edge_features}
        x = self._leave(self.mixer_norm, x, self.mixer(entered, mask, document_ids=document_ids, **along))
        if context is not None:
            read = self._reader()(
                self._enter(self.cross_norm, x),
                mask,
                document_ids=document_ids,
                context=context,
                context_mask=context_mask,
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


class Backbone(nn.Module):
    """A stack of blocks whose mixers repeat a list over the depth: the same one everywhere, or a hybrid.

    Args:
        dim: width.
        depth: number of layers.
        mixer_names: names or dotted paths of mixers; layer i uses `mixer_names[i % len(mixer_names)]`.
        mixer_options: options per mixer name; they take precedence over `shared_options`.
        shared_options: options for every mixer (heads, causal and those of WANTED). A mixer skips those that it does
            not have. Each option of WANTED must be one of some mixer, and a causal model needs causal mixers.
        feed_forward_dim, norm, residual, dropout, activation, feed_forward_dropout, short_convolution: see `Block`.
        share_layers: whether layers share their weights (each position of the mixer list keeps its own).
        cross_mixer_names: names of mixers with cross attention, repeated over the depth like `mixer_names`, through
            which layers attend to a context; they have `mixer_options` too. None or an empty list means none. In a
            causal model they are causal, too: no position depends on what a later one reads.
        block: the class of the layers.

    Raises:
        UserError: for an unknown norm, activation, mixer or option, options for a mixer that is not used, and an option
            of WANTED that no mixer has. Also for cross mixers without cross attention.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        *,
        mixer_names: Sequence[str],
        mixer_options: Mapping[str, Mapping[str, Any]],
        shared_options: Mapping[str, Any],
        feed_forward_dim: int,
        norm: str = "pre",
        residual: bool = True,
        dropout: float = 0.0,
        activation: str = "gelu",
        feed_forward_dropout: bool = False,
        short_convolution: int = 0,
        share_layers: bool = False,
        cross_mixer_names: Sequence[str] | None = None,
        block: type[Block] = Block,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, NORMS)
        check_choice("activation", activation, ACTIVATIONS)
        if not mixer_names:
            raise UserError("expected at least one mixer, got an empty list; name one in model.mixers.")
        cross_names = list(cross_mixer_names or [])
        _check_cross(cross_names)
        used = [*mixer_names, *cross_names]
        for name in mixer_options:
            if name not in used:
                raise UserError(f"mixer_options names {name!r}, which model.mixers lacks; {suggestion(name, used)}")
        check_choice("forget", shared_options.get("forget", "none"), KINDS)
        for option, (unset, what, example) in WANTED.items():
            value = shared_options.get(option, unset)
            if value != unset and not any(option in mixers.options(name) for name in mixer_names):
                raise UserError(
                    f"expected {what} with {option}={value!r}, got {', '.join(mixer_names)}; leave model.{option} out, "
                    f"set it to {str(unset).lower()} where a recipe has it, or choose another mixer, such as {example}."
                )
        self.depth = depth
        # Decay and rotary positions depend on distances, which two sequences do not have.
        heads = {key: value for key, value in shared_options.items() if key not in WANTED}
        different = depth
        if share_layers:
            different = min(depth, math.lcm(len(mixer_names), len(cross_names) or 1))
        crossed = [
            _build_mixer(name, dim, mixer_options.get(name, {}), heads) for name in _tile(cross_names, different)
        ]
        self.blocks = nn.ModuleList(
            block(
                _build_mixer(name, dim, mixer_options.get(name, {}), shared_options),
                dim,
                feed_forward_dim=feed_forward_dim,
                norm=norm,
                residual=residual,
                dropout=dropout,
                activation=activation,
                feed_forward_dropout=feed_forward_dropout,
                short_convolution=short_convolution,
                cross_mixer=cross,
            )
            for name, cross in itertools.zip_longest(_tile(mixer_names, different), crossed)
        )
        self.final_norm = nn.LayerNorm(dim) if norm == "pre" else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        mask: Bool[Tensor, "b t"] | None = None,
        document_ids: Int[Tensor, "b t"] | None = None,
        hidden_states: list[Tensor] | None = None,
        context: Float[Tensor, "b m d"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
        edges: Int[Tensor, "3 n"] | None = None,
        edge_features: Float[Tensor, "n f"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Run the stack; the input of every block is appended to `hidden_states`, if given.

        Every layer attends to `context`, if given, where `context_mask` is True. `edges` of a graph, each with its row,
        source and target, and features of each, are for the mixers that take them. Raises UserError if none does.
        """
        if edges is not None and not self.takes_edges:
            raise UserError(
                "expected a mixer that takes the edges of a graph, such as graph, got none of them; choose one in "
                "model.mixers, or leave the edges out."
            )
        for block in self.layers:
            if hidden_states is not None:
                hidden_states.append(x)
            x = block(x, mask, document_ids, None, context, context_mask, edges, edge_features)
        y: Tensor = self.final_norm(x)
        return y

    @property
    def takes_edges(self) -> bool:
        """Whether a mixer takes the edges of a graph."""
        return any(block.mixer.capabilities.edges for block in self.layers)

    @property
    def layers(self) -> list[Any]:
        """The block of each layer; layers that share weights have the same block."""
        return [self.blocks[layer % len(self.blocks)] for layer in range(self.depth)]

    def init_states(
        self,
        batch_size: int,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        context: Float[Tensor, "b m d"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Any, ...]:
        """Return each layer's state before the first position, by default with the weights' dtype and device.

        With a `context`, every layer reads it once, where `context_mask` is True, and keeps what it needs of it.

        Raises UserError if a mixer cannot continue from a state, and for a context without cross attention.
        """
        return tuple(block.init_state(batch_size, dtype, device, context, context_mask) for block in self.layers)

    def step(
        self,
        x: Float[Tensor, "b n d"],
        states: Sequence[Any],
        mask: Bool[Tensor, "b n"] | None = None,
        hidden_states: list[Tensor] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], tuple[Any, ...]]:
        """Continue a sequence by `n` positions from one state per layer; return the outputs and the new states."""
        after = []
        for block, state in zip(self.layers, states, strict=True):
            if hidden_states is not None:
                hidden_states.append(x)
            x, state_after = block(x, mask, None, state)
            after.append(state_after)
        y: Tensor = self.final_norm(x)
        return y, tuple(after)


def _tile(names: Sequence[str], depth: int) -> list[str]:
    return list(itertools.islice(itertools.cycle(names), depth))


def _check_cross(names: Sequence[str]) -> None:
    for name in names:
        if not mixers.load(name).capabilities.context:
            able = [each for each in mixers.names() if mixers.load(each).capabilities.context]
            raise UserError(
                f"expected mixers with cross attention in model.cross_mixers, got {name!r}; choose among "
                f"{', '.join(able)}."
            )


def _build_mixer(name: str, dim: int, chosen: Mapping[str, Any], shared: Mapping[str, Any]) -> Mixer:
    if shared.get("causal") and not mixers.load(name).capabilities.causal:
        raise UserError(f"mixer {name!r} has no causal form; choose another mixer or causal=false.")
    # What an alias sets wins over what is offered to all mixers.
    preset = mixers.aliases()[name].options if name in mixers.aliases() else {}
    known = mixers.options(name)
    offered = {option: value for option, value in shared.items() if option in known and option not in preset}
    return mixers.build(name, dim, **offered | dict(chosen))
