"""One backbone for every mixer: [norm, mixer, residual, feed-forward] x depth, with cross attention if wanted."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan import mixers
from longspan.errors import UserError, check_choice, suggestion
from longspan.mixers._forgetting import KINDS
from longspan.mixers.base import Mixer
from longspan.models.block import ACTIVATIONS, Block

NORMS = ("pre", "post", "none")
#: Options of every mixer that knows them, which one of a model must: the value that asks for nothing, what is wanted by
#: others, and a mixer that has it.
WANTED: Mapping[str, tuple[Any, str, str]] = {
    "forget": ("none", "a mixer that can forget", "additive"),
    "rotary": (False, "a mixer with rotary positions", "softmax"),
}


def known_to(mixer_names: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a model without those of WANTED that none of its mixers knows."""
    known = {option for name in mixer_names for option in mixers.options(name)}
    return {key: value for key, value in settings.items() if key not in WANTED or key in known}


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
        structure: Any = None,
        counts: Float[Tensor, "b t"] | None = None,
        context_counts: Float[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Run the stack; the input of every block is appended to `hidden_states`, if given.

        Every layer attends to `context`, if given, where `context_mask` is True. `structure`, such as the edges of a
        graph, is for the mixers that read it. `counts` say how often each position counts for others, `context_counts`
        each of the context. Raises UserError if no mixer reads the structure.
        """
        if structure is not None and not self.has_structure(type(structure)):
            raise UserError(
                f"expected a mixer that reads {type(structure).__name__}, such as graph for the edges of graphs, got "
                "none; choose one in model.mixers, or leave the structure out."
            )
        for block in self.layers:
            if hidden_states is not None:
                hidden_states.append(x)
            x = block(x, mask, document_ids, None, context, context_mask, structure, counts, context_counts)
        y: Tensor = self.final_norm(x)
        return y

    def has_structure(self, structure: type) -> bool:
        """Whether a mixer reads structures of a class."""
        return any(block.mixer.capabilities.structure is structure for block in self.layers)

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
