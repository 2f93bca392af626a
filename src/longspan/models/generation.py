"""transformers' `generate` with the states of mixers as its cache, assisted decoding included."""

from typing import Any

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import CandidateGenerator, GenerationMode

from longspan.errors import UserError
from longspan.models.backbone import Backbone
from longspan.models.model import LongspanModel
from longspan.models.rewinding import RewindableStates


class LongspanGenerationMixin(GenerationMixin):
    """`generate` of models with a causal `LongspanModel`.

    With an `assistant_model` or `prompt_lookup_num_tokens`, states are used whose last positions can be taken back
    (`RewindableStates`): what is generated is the same as without. UserError is raised where it would not be.
    """

    longspan: LongspanModel

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
            _check_assisted(generation_config, self.longspan.backbone, states, max_cache_length)
        if states is None:
            states = self.longspan.init_states(batch_size)
        if not isinstance(states, RewindableStates):
            states = RewindableStates(states, self.longspan.backbone)
        model_kwargs["past_key_values"] = states

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
