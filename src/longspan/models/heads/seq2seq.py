"""An encoder and a decoder: the source is read as a whole, the target is predicted token after token."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from longspan.errors import UserError
from longspan.models.config import LongspanConfig
from longspan.models.decoder import decoder_config, target_size
from longspan.models.embeddings.tokens import TokenSettings
from longspan.models.generation import SourceGenerationMixin
from longspan.models.model import LongspanModel, LongspanPreTrainedModel, check_attentions
from longspan.models.parts.copying import CopyAttention, Source
from longspan.models.parts.losses import (
    IGNORED,
    check_token_labels,
    count_items,
    cross_entropies,
    in_chunks,
    output_losses,
    positions_to_score,
    smoothed_losses,
    uniform_losses,
)
from longspan.models.settings import DEEPEST, WIDEST, HeadSettings, dropout_before, from_data
from longspan.models.states import CACHE, MixerStates, accept_cache
from longspan.ops.execution import on_cpu
from longspan.options import Range, option


@strict
@dataclass
class Seq2SeqSettings(HeadSettings):
    """Settings of an encoder-decoder model. Those of the backbone are the encoder's.

    The decoder has the same width, heads, feed-forward networks, norm, positions and n-grams; the settings here are
    those in which it may differ.
    """

    encoder_decoder: ClassVar[bool] = True
    shape: ClassVar[tuple[str, ...]] = (
        *("decoder_mixers", "decoder_depth", "decoder_mixer_options", "cross_attention", "decoder_forget"),
        "decoder_short_convolution",
    )

    decoder_mixers: list[str] | None = option(
        None,
        "names of the decoder's mixers, repeated over its depth, which must have a causal form; None means `mixers`",
    )
    decoder_depth: int | None = option(None, "number of layers of the decoder; None means `depth`", Range(0, DEEPEST))
    decoder_mixer_options: dict[str, dict[str, Any]] | None = option(
        None,
        "options per mixer of the decoder, cross attention included; None means those in `mixer_options` of mixers "
        "that it has, too",
    )
    cross_attention: list[str] | None = option(
        None,
        "names of the mixers through which the decoder reads the source (additive, bounded_memory, linear, messages, "
        'softmax), repeated over its depth; None means ["softmax"]',
    )
    decoder_forget: str = option(
        "none", "decay of each head of the decoder's mixers that have it, as `forget` of a causal model"
    )
    decoder_short_convolution: int | None = option(
        None,
        "width of the convolution before every mixer of the decoder; None means `short_convolution`",
        Range(0, WIDEST),
    )
    shared_vocabulary: bool = option(True, "whether source and target have the same tokens, and one table of vectors")
    copy: bool = option(
        False,
        "whether the decoder can copy tokens of the source (pointer-generator), such as names; needs a shared "
        "vocabulary",
    )
    label_smoothing: float | int = option(
        0.0, "share of each target that is spread evenly over all tokens, in training", Range(0, 1)
    )
    classifier_dropout: float | int | None = dropout_before("the softmax")
    target_vocab_size: int | None = from_data(
        None, "number of tokens of the target; None with a shared vocabulary", Range(1)
    )

    def check(self, config: Any) -> None:
        if config.causal:
            raise UserError(
                "expected causal=False with an encoder and a decoder, of which only the decoder is causal, got "
                "causal=True; leave it out."
            )
        if config.cross_mixers:
            raise UserError(
                f"expected the decoder's cross attention in cross_attention, got cross_mixers={config.cross_mixers}, "
                "which would be the encoder's; move them."
            )
        self._check_vocabulary(config)

    def _check_vocabulary(self, config: Any) -> None:
        tokens = config.embeddings
        own = isinstance(tokens, TokenSettings)
        if own and tokens.cutoffs is not None:
            raise UserError(
                f"expected no cutoffs with an encoder and a decoder, which have one softmax, got {tokens.cutoffs}; "
                "leave them out."
            )
        if self.shared_vocabulary:
            if not own:
                raise UserError(
                    f"expected shared_vocabulary=False with embeddings {tokens.kind()!r}, whose tokens are not the "
                    "decoder's, got True; set it to false."
                )
            if self.target_vocab_size not in (None, config.vocab_size):
                raise UserError(
                    f"expected no target_vocab_size with a shared vocabulary of {config.vocab_size} tokens, got "
                    f"{self.target_vocab_size}; leave it out, or set shared_vocabulary=False."
                )
            return
        if self.target_vocab_size is None:
            raise UserError(
                "expected target_vocab_size, the number of tokens of the target, with shared_vocabulary=False, got "
                "None; give it."
            )
        if self.copy:
            raise UserError(
                "expected shared_vocabulary=True to copy tokens of the source, got copy=True and False; set one or "
                "the other."
            )
        if config.pad_token_id is not None and config.pad_token_id >= self.target_vocab_size:
            raise UserError(
                f"pad_token_id must be one of the target's {self.target_vocab_size} tokens, too, got "
                f"{config.pad_token_id}; choose another or None."
            )


@dataclass
class LongspanSeq2SeqLMOutput(Seq2SeqLMOutput):
    """Outputs of transformers' encoder-decoder models, and more.

    Attributes:
        losses: (b, t) nats of each label, without smoothing.
        plain_loss: the loss without smoothing and without a gradient; None where `loss` is that.
    """

    losses: Tensor | None = None
    plain_loss: Tensor | None = None


class LongspanForSeq2SeqLM(LongspanPreTrainedModel, SourceGenerationMixin):
    """Predict a target from a source, as in translation; `generate` is transformers'.

    The encoder, `longspan`, reads the source, `input_ids` (b, m) with `attention_mask` (b, m) or `inputs_embeds`. The
    decoder, a causal model with cross attention to it, reads `decoder_input_ids` (b, t) with `decoder_attention_mask`
    or `decoder_inputs_embeds`, and predicts the next token at each position. Padding may be on either side of both.

    `labels` (b, t) are the targets, not shifted by anything: position i of the decoder predicts labels[i], and -100
    marks positions without a target. Without decoder inputs, these are the labels one position later behind
    `config.decoder_start_token_id` (by default `bos_token_id`), padded where there is no label.

    `counts` (b, m) say how often each position of the source counts, as in `LongspanModel`.

    `encoder_outputs`, what the encoder returned, take the place of the source. `forward` returns

    - `loss`: mean nats over the labels, or their sum divided by `num_items_in_batch` if given; in training with label
      smoothing;

    - `losses` (b, t): nats of each label without smoothing, 0 without a label, and `plain_loss`, their mean, if `loss`
      is another;

    - `logits` (b, t, target vocabulary), or those of the last `logits_to_keep` positions (all for 0; a tensor gives
      positions). With `copy` they are log probabilities. With labels in training, there are none unless
      `logits_to_keep` is given, and then only a part of them is ever in memory;

    - `past_key_values`: the states after these tokens, if requested as in `LongspanModel`. They hold what the decoder
      keeps of the source, so that later steps read neither the source nor `encoder_outputs` again.

    With `copy`, tokens of the source can be copied (`CopyAttention`), so `input_ids` are needed with `encoder_outputs`,
    too. The output weights are the decoder's word vectors unless `tie_word_embeddings` is False, and those are the
    encoder's with a shared vocabulary.

    Raises:
        UserError: for settings that do not fit, neither decoder inputs nor labels, labels of another shape, and
            states together with another source.
    """

    head_settings = Seq2SeqSettings

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        config = self.config
        assert config.embedding_dim is not None
        decoder = decoder_config(config)
        self.longspan = LongspanModel(config)
        self.decoder = LongspanModel(decoder)
        self.dropout = self.head_dropout()
        self.transform: nn.Module = nn.Identity()
        if config.embedding_dim != config.dim:
            self.transform = nn.Linear(config.dim, config.embedding_dim)
        self.lm_head = nn.Linear(config.embedding_dim, decoder.vocab_size)
        self.copying = CopyAttention(config.dim) if config.head.copy else None
        table, own = "longspan.embeddings.table.weight", "decoder.embeddings.table.weight"
        shared = config.head.shared_vocabulary
        self._tied_weights_keys = {own: table} if shared else {}
        if config.tie_word_embeddings:
            self._tied_weights_keys["lm_head.weight"] = table if shared else own
        self.post_init()

    def get_encoder(self, modality: str | None = None) -> LongspanModel:
        return self.longspan

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Tied weights by name; see transformers, where `tie_word_embeddings` switches all ties."""
        if all_submodels:
            expanded: dict[str, str] = super().get_expanded_tied_weights_keys(all_submodels=True)
            return expanded
        return dict(self._tied_weights_keys)

    def resize_token_embeddings(self, *arguments: Any, **options: Any) -> nn.Module:
        """Change the number of tokens, with two vocabularies that of the source alone; see transformers."""
        if not self.config.head.shared_vocabulary:
            resized = self.longspan.resize_token_embeddings(*arguments, **options)
            self.vocab_size = self.config.vocab_size
            return resized
        resized = super().resize_token_embeddings(*arguments, **options)
        size, table = self.config.vocab_size, self.decoder.get_input_embeddings()
        assert isinstance(table, nn.Embedding)
        table.num_embeddings = size
        self.config.head.target_vocab_size, self.decoder.config.vocab_size = None, size
        return resized

    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> nn.Module:
        """Change the number of tokens of the target, as transformers' Marian. Raises UserError with one vocabulary."""
        if self.config.head.shared_vocabulary:
            raise UserError(
                "expected two vocabularies to resize the target's alone, got shared_vocabulary=True; use "
                "resize_token_embeddings."
            )
        resized = self.decoder.resize_token_embeddings(new_num_tokens)
        self.set_output_embeddings(self._get_resized_lm_head(self.lm_head, new_num_tokens))
        self.config.head.target_vocab_size = new_num_tokens
        self.tie_weights()
        return resized

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Decoder input that predicts `labels` (b, t), as collators of transformers ask for it."""
        return self._behind_start(labels)[0]

    def read_source(self, encoded: Tensor, mask: Tensor | None = None, source_ids: Tensor | None = None) -> MixerStates:
        """Return the decoder's states before the first token of a target.

        Args:
            encoded: (b, m, dim), the encoder's outputs.
            mask: (b, m), 1 at real positions of the source.
            source_ids: (b, m), its tokens, for `copy`.
        """
        states = self.decoder.init_states(
            len(encoded), encoded.dtype, encoded.device, context=encoded, context_mask=mask
        )
        source = self._source(encoded, mask, source_ids)
        states.context = {} if source is None else source._asdict()
        return states

    @accept_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: MixerStates | None = None,
        use_cache: bool | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        logits_to_keep: int | Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        counts: Tensor | None = None,
    ) -> LongspanSeq2SeqLMOutput:
        check_attentions(self.config, output_attentions)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if labels is None:
                raise UserError(
                    "expected decoder_input_ids, decoder_inputs_embeds or labels, got none of them; give what is known "
                    "of the target, such as its first token."
                )
            decoder_input_ids, derived = self._behind_start(labels)
            decoder_attention_mask = derived if decoder_attention_mask is None else decoder_attention_mask
        if encoder_outputs is None and past_key_values is None:
            encoder_outputs = self.longspan(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                output_hidden_states=output_hidden_states,
                counts=counts,
            )
        encoded = None if encoder_outputs is None else encoder_outputs[0]
        source, context = None, {}
        if past_key_values is None:
            often = counts if counts is None or attention_mask is None else counts * attention_mask
            source = self._source(encoded, attention_mask if often is None else often, input_ids)
            context = {"context": encoded, "context_mask": attention_mask, "context_counts": counts}
        elif past_key_values.context:
            source = Source(**past_key_values.context)
        body = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            inputs_embeds=decoder_inputs_embeds,
            past_key_values=past_key_values,
            use_cache=False if use_cache is None and labels is not None else use_cache,
            output_hidden_states=output_hidden_states,
            **context,
        )
        after = body.get(CACHE)
        if after is not None and source is not None:
            after.context = source._asdict()
        found = self._predict(self.dropout(body.last_hidden_state), source, labels, logits_to_keep, num_items_in_batch)
        setattr(found, CACHE, after)
        found.decoder_hidden_states = body.hidden_states
        found.encoder_last_hidden_state = encoded
        found.encoder_hidden_states = getattr(encoder_outputs, "hidden_states", None)
        return found

    def _predict(
        self,
        output: Tensor,
        source: Source | None,
        labels: Tensor | None,
        logits_to_keep: int | Tensor | None,
        num_items_in_batch: int | Tensor | None,
    ) -> LongspanSeq2SeqLMOutput:
        """Return logits, losses and loss of the decoder's outputs (b, t, dim)."""
        if labels is not None:
            check_token_labels("labels", labels, output.shape[:2])
        if logits_to_keep is None and (labels is None or not self.training):
            logits_to_keep = 0
        logits = None
        if logits_to_keep is not None:
            logits = self.lm_head(self.transform(positions_to_score(output, logits_to_keep)))
            if source is not None:
                assert self.copying is not None
                logits = self.copying.log_probabilities(positions_to_score(output, logits_to_keep), logits, source)
        if labels is None:
            return LongspanSeq2SeqLMOutput(logits=logits)
        every = logits if isinstance(logits_to_keep, int) and logits_to_keep == 0 else None
        smoothing = self.config.head.label_smoothing if self.training else 0.0
        losses, uniform = self._losses(output, every, labels, source, smoothed=smoothing > 0)
        loss, plain = smoothed_losses(losses, uniform, smoothing, count_items(labels), num_items_in_batch)
        return LongspanSeq2SeqLMOutput(loss=loss, logits=logits, losses=losses, plain_loss=plain)

    def _losses(
        self, output: Tensor, logits: Tensor | None, labels: Tensor, source: Source | None, *, smoothed: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the nats of each label (b, t), and if `smoothed` the mean nats of all tokens, likewise."""
        size = target_size(self.config)
        if logits is not None and not (smoothed and source is not None):
            losses = alone = in_chunks(cross_entropies, logits, labels, size)
        else:
            losses = alone = output_losses(self.lm_head, self.transform(output), labels, size)
            if source is not None:
                assert self.copying is not None
                losses = self.copying.losses(output, losses, labels, source).masked_fill(labels == IGNORED, 0)
        # With `copy`, this share is spread by the vocabulary's probabilities alone: few tokens can be copied at all.
        uniform = uniform_losses(self.lm_head, self.transform(output), labels, alone) if smoothed else None
        return losses, uniform

    def _source(self, encoded: Any, mask: Tensor | None, ids: Tensor | None) -> Source | None:
        """Source to copy from; None without `copy`."""
        if self.copying is None:
            return None
        if ids is None:
            raise UserError(
                "expected input_ids of the source for a model with copy=True, got only its vectors; give the tokens."
            )
        return self.copying.source_keys(encoded, ids, mask if mask is None or mask.is_floating_point() else mask.bool())

    def _behind_start(self, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Decoder input that predicts `labels` (b, t), and its mask; None means everywhere."""
        check_token_labels("labels", labels, (labels.shape[0], labels.shape[-1]))
        start = getattr(self.config, "decoder_start_token_id", None)
        start = getattr(self.config, "bos_token_id", None) if start is None else start
        if start is None:
            raise UserError(
                "expected decoder_start_token_id in the configuration to begin targets with, got None; set it, or give "
                "decoder_input_ids."
            )
        known = labels != IGNORED
        before = nn.functional.pad(labels[:, :-1], (1, 0), value=IGNORED)
        first = known & (known.cumsum(1) == 1)
        ids = before.masked_fill(first, start)
        mask = ids != IGNORED
        if on_cpu(mask) and not torch.compiler.is_compiling() and mask.all():
            return ids, None
        return ids.masked_fill(~mask, self.config.pad_token_id or 0), mask
