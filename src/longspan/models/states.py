"""The states of a causal model after the sequences so far, used in place of transformers' cache."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils import _pytree as pytree
from transformers.modeling_outputs import BaseModelOutputWithPast

from longspan.errors import UserError
from longspan.models.backbone import Backbone
from longspan.models.parts.ngrams import NOTHING

#: Name of states in outputs, and in `generate` of transformers, which calls them `cache` from 5.24 on.
CACHE = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"
#: Prefix of the names of tensors of `MixerStates.history` in saved files.
_HISTORY = "history."
#: Likewise of `MixerStates.context`.
_CONTEXT = "context."


_Method = TypeVar("_Method", bound=Callable[..., Any])


def accept_cache(method: _Method) -> _Method:
    """Let a method take its `past_key_values` as `cache` too, whichever of them transformers says.

    Raises UserError for both.
    """

    @functools.wraps(method)
    def named(self: Any, *arguments: Any, cache: "MixerStates | None" = None, **options: Any) -> Any:
        if cache is not None:
            if options.get("past_key_values") is not None:
                raise UserError("expected states as either cache or past_key_values, got both; leave one of them out.")
            options["past_key_values"] = cache
        return method(self, *arguments, **options)

    return named  # type: ignore[return-value]


class Resettable(Protocol):
    """Owner of a state."""

    def reset(self, state: Any, rows: Tensor) -> Any:
        """Return `state` with the rows where `rows` is True as before the first position."""


def _of_sources(context: Tensor, rows: Int[Tensor, " b"]) -> Tensor:
    """The context (c, m, ...) of these rows, as it is where each keeps its own."""
    sources = rows // (len(rows) // len(context))
    same = torch.arange(len(context), device=rows.device).repeat_interleave(len(rows) // len(context))
    return context if torch.equal(sources, same) else context.index_select(0, sources)


class MixerStates:
    """One state per layer for a batch of sequences, which models take and return as `past_key_values` or `cache`.

    A model's forward pass does not change the states it is given and returns new ones, so generation can continue from
    the states after a prompt many times. Only `reorder_cache` and `batch_repeat_interleave`, which transformers calls
    for their effect, change an object.

    Attributes:
        layers: the state of each layer (`Block.init_state`); all tensors have the batch first.
        seen: (b,) int64, the number of real positions of each row since it started; absolute positions continue from
            it.
        length: the number of positions so far, padding included.
        recent: (b, w) int64, the last token ids, as `NgramEmbedding` sees them, newest last; None without n-grams.
        history: what the head of the model remembers of the last positions, by name, (b, m, ...), newest last; empty
            before the first one, and for heads that remember nothing.
        context: what the head of the model keeps of a context, by name, (c, m, ...), the same at all positions, of
            which the first b / c rows have the first, and so on; empty for heads that keep nothing. What layers keep is
            in their states.
    """

    # What transformers asks a cache before it compiles a step, takes one back in place, or gives only new tokens.
    is_compileable = False
    is_croppable = False
    is_linear = (False,)

    def __init__(
        self,
        layers: Sequence[Any],
        seen: Tensor,
        length: int,
        blocks: Sequence[Resettable],
        recent: Int[Tensor, "b w"] | None = None,
        history: Mapping[str, Tensor] | None = None,
        context: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.history = dict(history or {})
        self.context = dict(context or {})
        self.layers = tuple(layers)
        self.seen = seen
        self.length = length
        self.recent = recent
        self._blocks = tuple(blocks)

    @property
    def batch_size(self) -> int:
        """Number of rows."""
        return self.seen.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in pytree.tree_leaves((self.layers, self._by_row())))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of positions so far, padding included, as transformers counts them."""
        return self.length

    def step(
        self,
        backbone: Backbone,
        x: Float[Tensor, "b n d"],
        mask: Bool[Tensor, "b n"] | None,
        hidden_states: list[Tensor] | None = None,
        ids: Int[Tensor, "b n"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], "MixerStates"]:
        """Continue by `n` positions; return the outputs and the states after. See `Backbone.step`.

        `ids` are those of the tokens, as `recent` has them, if the model has n-grams.
        """
        y, layers = backbone.step(x, self.layers, mask, hidden_states)
        real = self.seen.new_tensor(x.shape[1]) if mask is None else mask.sum(1)
        return y, self.after(layers, real, x.shape[1], ids)

    def after(self, layers: Sequence[Any], real: Tensor, length: int, ids: Tensor | None) -> "MixerStates":
        """Return the states `length` positions later, of which `real` (b,) were real, without `history`."""
        recent = self.recent
        if recent is not None and ids is not None:
            recent = followed(recent, ids)
        return MixerStates(layers, self.seen + real, self.length + length, self._blocks, recent, context=self.context)

    def lengthened(self, history: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the `history` of these states, positions before them followed by `new` ones, as long as before."""
        return {name: followed(history[name], tensor) for name, tensor in new.items()}

    def detach(self) -> "MixerStates":
        """Return the same states without their history: no gradient flows to earlier positions."""
        return self._mapped(Tensor.detach)

    def reset(self, rows: Tensor) -> "MixerStates":
        """Return states in which the rows where `rows` (b,) is True start from scratch, and the others continue.

        All keep their context.
        """
        layers = [block.reset(state, rows) for block, state in zip(self._blocks, self.layers, strict=True)]
        recent = None if self.recent is None else _forgotten(self.recent, rows)
        history = {name: _forgotten(tensor, rows) for name, tensor in self.history.items()}
        seen = self.seen.masked_fill(rows, 0)
        return MixerStates(layers, seen, self.length, self._blocks, recent, history, self.context)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace row i by row `beam_idx[i]`."""
        context, self.context = self.context, {}
        self._become(self._mapped(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device))))
        self.context = {name: _of_sources(tensor, beam_idx.to(tensor.device)) for name, tensor in context.items()}

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Replace each row by `repeats` copies of it."""
        context, self.context = self.context, {}
        self._become(self._mapped(lambda tensor: tensor.repeat_interleave(repeats, 0)))
        self.context = context

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of all tensors by name, for safetensors; `LongspanModel.states_from` reads them back."""
        named = {name: leaf.detach().clone(memory_format=torch.contiguous_format) for name, leaf in _named(self.layers)}
        rows, *others = ({name: tensor.clone() for name, tensor in each.items()} for each in self._by_row())
        for prefix, tensors in zip((_HISTORY, _CONTEXT), others, strict=True):
            rows |= {prefix + name: tensor for name, tensor in tensors.items()}
        return {**named, **rows, "length": torch.tensor(self.length)}

    def filled(self, tensors: Mapping[str, Tensor]) -> "MixerStates":
        """Return states of this structure with the values of `tensors`, on this object's device.

        Raises UserError if the names are not those of this structure.
        """
        own, *_ = self._by_row()
        expected = {*(name for name, _ in _named(self.layers)), *own, "length"}
        remembered = {name for name in tensors if name.startswith((_HISTORY, _CONTEXT))}
        if other := (tensors.keys() - remembered) ^ expected:
            raise UserError(
                f"expected the states of a model with {len(self.layers)} layers of these mixers, got other tensors "
                f"({', '.join(sorted(other)[:4])}); use states that this model saved."
            )
        # Copies: tensors mapped from a file have other alignments, and products may round differently.
        leaves = [tensors[name].to(leaf.device, copy=True) for name, leaf in _named(self.layers)]
        layers = pytree.tree_unflatten(leaves, pytree.tree_structure(self.layers))
        rows = {name: tensors[name].to(self.seen.device) for name in own}
        history, context = (
            {
                name.removeprefix(prefix): tensors[name].to(self.seen.device)
                for name in sorted(remembered)
                if name.startswith(prefix)
            }
            for prefix in (_HISTORY, _CONTEXT)
        )
        length = int(tensors["length"])
        return MixerStates(layers, length=length, blocks=self._blocks, history=history, context=context, **rows)

    def __deepcopy__(self, memo: dict[int, Any]) -> "MixerStates":
        # Copies the states, but not the layers of the model.
        return self._like(copy.deepcopy((self.layers, self._by_row()), memo))

    def _mapped(self, change: Any) -> "MixerStates":
        return self._like(pytree.tree_map(change, (self.layers, self._by_row())))

    def _like(self, found: Any) -> "MixerStates":
        layers, (rows, history, context) = found
        return MixerStates(layers, length=self.length, blocks=self._blocks, history=history, context=context, **rows)

    def _become(self, other: "MixerStates") -> None:
        self.layers, self.seen, self.recent = other.layers, other.seen, other.recent
        self.history, self.context = other.history, other.context

    def _by_row(self) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Tensors besides the layers' states, by name, the `history` and the `context`."""
        own = {"seen": self.seen} | ({} if self.recent is None else {"recent": self.recent})
        return own, self.history, self.context


def followed(earlier: Tensor, later: Tensor) -> Tensor:
    """Return (b, m, ...) of the last m of `earlier` (b, m, ...) and `later` positions."""
    return torch.cat((earlier, later), 1)[:, later.shape[1] :]


def _forgotten(remembered: Tensor, rows: Tensor) -> Tensor:
    """The remembered values, cleared in the rows where `rows` (b,) is True."""
    rows = rows.view(-1, *(1 for _ in remembered.shape[1:]))
    return remembered.masked_fill(rows, 0 if remembered.is_floating_point() else NOTHING)


def _named(layers: tuple[Any, ...]) -> list[tuple[str, Tensor]]:
    leaves, _ = pytree.tree_flatten_with_path(layers)
    return [(f"layers{pytree.keystr(path)}", leaf) for path, leaf in leaves]
