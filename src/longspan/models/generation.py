"""transformers' `generate` with the states of mixers as its cache, assisted decoding included."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import CandidateGenerator, GenerationMode
from typing_extensions import override

from longspan.errors import UserError
from longspan.models.backbone import Backbone
from longspan.models.model import LongspanModel
from longspan.models.states import CACHE, MixerStates, accept_cache

#: State of `generate` for the sources.
_SOURCE = ("encoder_outputs", "attention_mask", "source_ids")


class LongspanGenerationMixin(GenerationMixin):
    """`generate` of models with a causal `LongspanModel`, which is what `get_decoder` returns.

    With an `assistant_model` or `prompt_lookup_num_tokens`, states are used whose last positions can be taken back
    (`RewindableStates`): what is generated is the same as without. UserError is raised where it would not be.
    """

    @accept_cache
    def generate(self, *arguments: Any, past_key_values: MixerStates | None = None, **options: Any) -> Any:
        """Generate tokens; see transformers. `past_key_values` or `cache` are states to continue from."""
        if past_key_values is not None:
            options[CACHE] = past_key_values
        return super().generate(*arguments, **options)

    @classmethod
    @override
    def _supports_default_dynamic_cache(cls) -> bool:
        """Return False, as `forward` creates its own cache."""
        return False

    @override
    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )
        assisted = generation_mode == GenerationMode.ASSISTED_GENERATION
        if not (assisted or generation_config.is_assistant) or generation_config.use_cache is False:
            return
        states = model_kwargs.get(CACHE)
        if assisted:
            _check_assisted(generation_config, self._backbone, states, max_cache_length)
        if states is None:
            states = self._first_states(model_kwargs, batch_size)
        if not isinstance(states, RewindableStates):
            states = RewindableStates(states, self._backbone)
        model_kwargs[CACHE] = states

    @property
    def _backbone(self) -> Backbone:
        decoder: LongspanModel = self.get_decoder()
        return decoder.backbone

    def _first_states(self, model_kwargs: Mapping[str, Any], batch_size: int) -> MixerStates:
        """Return the states before the first token of `batch_size` sequences."""
        decoder: LongspanModel = self.get_decoder()
        return decoder.init_states(batch_size)

    @override
    def _get_candidate_generator(self, generation_config: GenerationConfig, **options: Any) -> CandidateGenerator:
        generator = super()._get_candidate_generator(generation_config=generation_config, **options)
        candidates = generator.get_candidates

        def no_longer_than_asked(input_ids: Tensor, **others: Any) -> tuple[Tensor, Tensor | None]:
            # What follows in a prompt may be longer, and reach further than learned positions do.
            ids, logits = candidates(input_ids, **others)
            room = max(0, generation_config.max_length - 1 - input_ids.shape[1])
            return ids[:, : input_ids.shape[1] + room], None if logits is None else logits[:, :room]

        generator.get_candidates = no_longer_than_asked
        return generator


class SourceGenerationMixin(LongspanGenerationMixin):
    """`generate` of models with an encoder and a decoder, which read each source once, whatever the number of beams."""

    read_source: Callable[[Tensor, Tensor | None, Tensor | None], MixerStates]

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        *,
        source_ids: Tensor | None = None,
        cache: MixerStates | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the arguments of `forward` for the next tokens; see transformers."""
        if cache is not None:
            kwargs[CACHE] = cache
        return {**super().prepare_inputs_for_generation(input_ids, **kwargs), "input_ids": source_ids}

    @override
    def _prepare_model_inputs(
        self, inputs: Tensor | None, bos_token_id: Tensor | None, model_kwargs: dict[str, Any]
    ) -> tuple[Tensor, str | None, dict[str, Any]]:
        inputs, name, model_kwargs = super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)
        # transformers makes up ids below 0 for a source of which only the encoder's outputs are known.
        if name == "input_ids" and inputs.numel() and bool((inputs >= 0).all()):
            model_kwargs["source_ids"] = inputs
        return inputs, name, model_kwargs

    @override
    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Tensor | None = None,
        **model_kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        # What is known of the sources follows when they have been read.
        sources = {name: model_kwargs.pop(name) for name in _SOURCE if name in model_kwargs}
        input_ids, model_kwargs = super()._expand_inputs_for_generation(expand_size, False, input_ids, **model_kwargs)
        return input_ids, model_kwargs | sources

    @override
    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )
        beams = max(generation_config.num_beams, generation_config.num_return_sequences)
        if model_kwargs.get(CACHE) is None and generation_config.use_cache is not False:
            states = self._first_states(model_kwargs, batch_size)
            if beams > 1:
                states.batch_repeat_interleave(beams)
            model_kwargs[CACHE] = states
        elif beams > 1:
            sources = {name: model_kwargs.pop(name) for name in _SOURCE if name in model_kwargs}
            _, expanded = super()._expand_inputs_for_generation(beams, True, **sources)
            model_kwargs |= expanded

    def _first_states(self, model_kwargs: Mapping[str, Any], batch_size: int) -> MixerStates:
        encoded, mask, ids = (model_kwargs.get(name) for name in _SOURCE)
        assert encoded is not None
        return self.read_source(encoded[0], mask, ids)


def _check_assisted(config: GenerationConfig, backbone: Backbone, states: Any, length: int) -> None:
    """Raise UserError if assisted decoding is not possible, or could give other tokens once `length` have been read."""
    if config.assistant_early_exit is not None:
        raise UserError(
            "expected another model as the assistant, got assistant_early_exit, for which the layers of longspan "
            "models are not trained; give an assistant_model or prompt_lookup_num_tokens."
        )
    if states is not None and states.get_seq_length():
        raise UserError("expected assisted decoding from the start of a sequence, got past_key_values; leave them out.")
    for block in backbone.layers:
        most = block.mixer.exact_length
        if most is not None and length > most:
            raise UserError(
                f"expected assisted decoding of at most {most + 1} tokens, as what a mixer of this model forgets after "
                f"that depends on how many it reads at a time, got {length + 1}; generate fewer or without assistance, "
                "or build the mixer with same_length=True."
            )


#: Positions that are rather read again together with the next ones than in a pass of their own.
_FEW = 16
#: Minimum number of positions that can be taken back in all, even those that were kept once.
_BACK = 32


class Piece(NamedTuple):
    """Some positions: each layer's state before them, x (b, n, dim) as it entered the backbone, and their mask."""

    layers: tuple[Any, ...]
    x: Tensor
    mask: Tensor | None

    @property
    def positions(self) -> int:
        """Number of positions."""
        return self.x.shape[1]

    def split(self, position: int) -> list["Piece"]:
        """Positions before `position`, and the others, which have no states yet."""
        masks = [None, None] if self.mask is None else [self.mask[:, :position], self.mask[:, position:]]
        # Copies, as a few positions would keep those of a whole prompt in memory.
        parts = [self.x[:, :position].clone(), self.x[:, position:].clone()]
        return [Piece(self.layers, parts[0], masks[0]), Piece((), parts[1], masks[1])]

    def with_(self, x: Tensor, mask: Tensor | None) -> "Piece":
        """Return these and more positions."""
        joined = None
        if mask is not None or self.mask is not None:
            joined = torch.cat((_spelled_out(self.x, self.mask), _spelled_out(x, mask)), 1)
        return Piece(self.layers, torch.cat((self.x, x), 1), joined)


class RewindableStates(MixerStates):
    """States that remember the last positions and the states before them, so that `crop` can take positions back.

    A state of constant size holds nothing that could be cut off. After a crop, the remaining positions of the cropped
    piece are therefore read again from the state before it, together with the next ones. A step still takes one pass.
    That serves every mixer, for the memory of up to three earlier states and a few vectors.
    """

    is_croppable = True
    # None while the last piece, which a crop has shortened, is to be read again.
    _layers: tuple[Any, ...] | None

    def __init__(self, states: MixerStates, backbone: Backbone, pieces: Sequence[Piece] = ()) -> None:
        super().__init__(
            states.layers, states.seen, states.length, states._blocks, states.recent, states.history, states.context
        )
        self._backbone = backbone
        self._pieces = tuple(pieces)

    @property
    def layers(self) -> tuple[Any, ...]:
        """The state of each layer."""
        if self._layers is None:
            piece = self._pieces[-1]
            with torch.no_grad():
                _, self._layers = self._backbone.step(piece.x, piece.layers, piece.mask)
        return self._layers

    @layers.setter
    def layers(self, layers: tuple[Any, ...]) -> None:
        self._layers = layers

    def step(
        self,
        backbone: Backbone,
        x: Tensor,
        mask: Tensor | None,
        hidden_states: list[Tensor] | None = None,
        ids: Tensor | None = None,
    ) -> tuple[Tensor, MixerStates]:
        new = x.shape[1]
        if self._layers is None and self._pieces[-1].positions <= _FEW:
            *pieces, last = self._pieces
            todo = [last.with_(x, mask)]
        else:
            layers = self.layers
            pieces, todo = list(self._pieces), [Piece(layers, x, mask)]
        if not pieces and new > 2 * _BACK:
            # Of a prompt, only the end is read again, where candidates are.
            todo = todo[0].split(todo[0].positions - _BACK)
        outputs, layers = [], todo[0].layers
        collected: list[list[Tensor]] = []
        for piece in todo:
            pieces.append(piece._replace(layers=layers))
            collected.append([])
            y, layers = backbone.step(piece.x, layers, piece.mask, collected[-1])
            outputs.append(y)
        if hidden_states is not None:
            hidden_states += [torch.cat(parts, 1)[:, -new:] for parts in zip(*collected, strict=True)]
        after = self.after(layers, _spelled_out(x, mask).sum(1), new, ids)
        if self.recent is not None and ids is not None:
            # All of them, as a crop takes back the last ones.
            after.recent = torch.cat((self.recent, ids), 1)
        return torch.cat(outputs, 1)[:, -new:], RewindableStates(after, backbone, pieces)

    def lengthened(self, history: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # All of them, likewise.
        return {name: torch.cat((history[name], tensor), 1) for name, tensor in new.items()}

    def activate_past_recording(self) -> None:
        """Do nothing: transformers asks for what these states always do."""

    def crop(self, positions: int) -> None:
        """Take back the last `-positions` positions; transformers counts what its caches are to remove below 0.

        Raises:
            UserError: for more positions than are remembered.
        """
        remove = -positions
        pieces = list(self._pieces)
        known = sum(piece.positions for piece in pieces)
        if not 0 <= remove <= known:
            raise UserError(
                f"expected to take back at most the {known} positions that these states remember, got {remove}; start "
                "again from the prompt."
            )
        self.length -= remove
        self.recent = None if self.recent is None else self.recent[:, : self.recent.shape[1] - remove]
        self.history = {name: tensor[:, : tensor.shape[1] - remove] for name, tensor in self.history.items()}
        while remove:
            piece = pieces.pop()
            left, gone = piece.split(max(0, piece.positions - remove))
            self.seen = self.seen - _spelled_out(gone.x, gone.mask).sum(1)
            remove -= gone.positions
            self._layers = None if left.positions else piece.layers
            pieces += [left] if left.positions else []
        read = len(pieces) if self._layers is not None else len(pieces) - 1
        self._pieces = (*_thinned(pieces[:read]), *pieces[read:])

    def _become(self, other: MixerStates) -> None:
        super()._become(other)
        # They are of other rows now.
        self._pieces = ()


def _thinned(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Pieces needed to take back _BACK positions, with few earlier states."""
    kept: list[Piece] = []
    for piece in reversed(pieces):
        if sum(later.positions for later in kept) >= _BACK:
            break
        if kept and kept[-1].positions + piece.positions <= _BACK:
            kept[-1] = piece.with_(kept[-1].x, kept[-1].mask)
        else:
            kept.append(piece)
    return tuple(reversed(kept))


def _spelled_out(x: Tensor, mask: Tensor | None) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
