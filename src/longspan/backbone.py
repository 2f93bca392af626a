"""One backbone for every mixer: [norm, mixer, residual, feed-forward] x depth."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan import mixers
from longspan.errors import UserError, check_choice, suggestion
from longspan.ops.dropout import Dropout

NORMS = ("pre", "post", "none")


class Block(nn.Module):
    """A mixer and a feed-forward network, each with norm, dropout and residual.

    Pre-norm is x + f(norm(x)); post-norm is norm(x + f(x)).

    Args:
        mixer: the module that moves information between positions.
        dim: width of input and output.
        feed_forward_dim: hidden width of the feed-forward network; 0 leaves it out.
        norm: "pre", "post" or "none".
        residual: whether inputs are added to outputs.
        dropout: probability with which outputs of mixer and feed-forward are zeroed in training.
    """

    def __init__(
        self, mixer: nn.Module, dim: int, *, feed_forward_dim: int, norm: str, residual: bool, dropout: float
    ) -> None:
        super().__init__()
        self.pre = norm == "pre"
        self.residual = residual
        self.mixer = mixer
        self.mixer_norm = nn.Identity() if norm == "none" else nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)
        self.feed_forward: nn.Module | None = None
        if feed_forward_dim:
            self.feed_forward = nn.Sequential(
                nn.Linear(dim, feed_forward_dim), nn.GELU(), nn.Linear(feed_forward_dim, dim)
            )
            self.feed_forward_norm = nn.Identity() if norm == "none" else nn.LayerNorm(dim)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        mask: Bool[Tensor, "b t"] | None = None,
        segments: Int[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        # Mixers that cannot pack have no `segments`: passing it only when given lets Python say so.
        packed = {} if segments is None else {"segments": segments}
        x = self._sublayer(lambda inner: self.mixer(inner, mask, **packed), self.mixer_norm, x)
        if self.feed_forward is not None:
            x = self._sublayer(self.feed_forward, self.feed_forward_norm, x)
        return x

    def _sublayer(self, f: Callable[[Tensor], Tensor], norm: nn.Module, x: Tensor) -> Tensor:
        y = self.dropout(f(norm(x) if self.pre else x))
        y = x + y if self.residual else y
        return y if self.pre else norm(y)


class Backbone(nn.Module):
    """A stack of blocks whose mixers are a list tiled over the depth: one name everywhere, or a hybrid.

    Args:
        dim: width.
        depth: number of layers.
        mixer_names: names or dotted paths of mixers; layer i uses `mixer_names[i % len(mixer_names)]`.
        mixer_options: options per mixer name; they win over `shared_options`.
        shared_options: options offered to every mixer (heads, causal); one that a mixer does not have is left out,
            but a causal model refuses mixers without a causal form.
        feed_forward_dim, norm, residual, dropout: see `Block`.
        share_layers: whether layers share their weights (each position of the mixer list keeps its own).

    Raises:
        UserError: for an unknown norm, mixer or option, or options for a mixer that is not used.
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
        share_layers: bool = False,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, NORMS)
        if not mixer_names:
            raise UserError("a model needs at least one mixer, got an empty list; name one in model.mixers.")
        for name in mixer_options:
            if name not in mixer_names:
                raise UserError(
                    f"mixer_options names {name!r}, which model.mixers lacks; {suggestion(name, mixer_names)}"
                )
        self.depth = depth
        self.gradient_checkpointing = False
        self._gradient_checkpointing_func: Callable[..., Tensor] | None = None
        self.blocks = nn.ModuleList(
            Block(
                _build_mixer(name, dim, mixer_options.get(name, {}), shared_options),
                dim,
                feed_forward_dim=feed_forward_dim,
                norm=norm,
                residual=residual,
                dropout=dropout,
            )
            for name in _tile(mixer_names, min(depth, len(mixer_names)) if share_layers else depth)
        )
        self.final_norm = nn.LayerNorm(dim) if norm == "pre" else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        mask: Bool[Tensor, "b t"] | None = None,
        segments: Int[Tensor, "b t"] | None = None,
        hidden_states: list[Tensor] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Run the stack; `hidden_states`, if given, receives the input of every block."""
        for layer in range(self.depth):
            if hidden_states is not None:
                hidden_states.append(x)
            block = self.blocks[layer % len(self.blocks)]
            if self.gradient_checkpointing and self.training and self._gradient_checkpointing_func is not None:
                x = self._gradient_checkpointing_func(block.__call__, x, mask, segments)
            else:
                x = block(x, mask, segments)
        y: Tensor = self.final_norm(x)
        return y


def _tile(names: Sequence[str], depth: int) -> list[str]:
    return [names[layer % len(names)] for layer in range(depth)]


def _build_mixer(name: str, dim: int, chosen: Mapping[str, Any], shared: Mapping[str, Any]) -> nn.Module:
    known = mixers.options(name)
    if shared.get("causal") and "causal" not in known:
        raise UserError(f"mixer {name!r} has no causal form; choose another mixer or causal=false.")
    return mixers.build(name, dim, **{k: v for k, v in shared.items() if k in known} | dict(chosen))
