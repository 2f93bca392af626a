"""transformers' `generate` with the states of mixers as its cache, assisted decoding included."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import CandidateGenerator, GenerationMode

from longspan.errors import UserError
from longspan.models.backbone import Backbone
from longspan.models.model import LongspanModel
from longspan.models.rewinding import RewindableStates
from longspan.models.states import MixerStates

#: What `generate` knows of the sources.
_SOURCE = ("encoder_outputs", "attention_mask", "source_ids")


class LongspanGenerationMixin(GenerationMixin):
    """`generate` of models with a causal `LongspanModel`, which is what `get_decoder` returns.

    With an `assistant_model` or `prompt_lookup_num_tokens`, states are used whose last positions can be taken back
    (`RewindableStates`): what is generated is the same as without. UserError is raised where it would not be.
    """

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """Return False, as `forward` creates its own cache."""
        return False

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
        states = model_kwargs.get("past_key_values")
        if assisted:
            _check_assisted(generation_config, self._backbone, states, max_cache_length)
        if states is None:
            states = self._first_states(model_kwargs, batch_size)
        if not isinstance(states, RewindableStates):
            states = RewindableStates(states, self._backbone)
        model_kwargs["past_key_values"] = states

    @property
    def _backbone(self) -> Backbone:
        decoder: LongspanModel = self.get_decoder()
        return decoder.backbone

    def _first_states(self, model_kwargs: Mapping[str, Any], batch_size: int) -> MixerStates:
        """Return the states before the first token of `batch_size` sequences."""
        decoder: LongspanModel = self.get_decoder()
        return decoder.init_states(batch_size)

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
        self, input_ids: Tensor, *, source_ids: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the arguments of `forward` for the next tokens; see transformers."""
        prepared: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, **kwargs)
        return {**prepared, "input_ids": source_ids}

    def _prepare_model_inputs(
        self, inputs: Tensor | None, bos_token_id: Tensor | None, model_kwargs: dict[str, Any]
    ) -> tuple[Tensor, str | None, dict[str, Any]]:
        inputs, name, model_kwargs = super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)
        # transformers makes up ids below 0 for a source of which only the encoder's outputs are known.
        if name == "input_ids" and inputs.numel() and bool((inputs >= 0).all()):
            model_kwargs["source_ids"] = inputs
        return inputs, name, model_kwargs

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
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            states = self._first_states(model_kwargs, batch_size)
            if beams > 1:
                states.batch_repeat_interleave(beams)
            model_kwargs["past_key_values"] = states
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
