"""A causal language model: each position predicts the token after it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from longspan.errors import UserError
from longspan.models.config import LongspanConfig
from longspan.models.embeddings.tokens import TokenSettings, token_settings
from longspan.models.generation import LongspanGenerationMixin
from longspan.models.heads.base import delegate_args
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.models.parts.adaptive import AdaptiveSoftmax
from longspan.models.parts.losses import (
    IGNORED,
    check_token_labels,
    count_items,
    cross_entropies,
    in_chunks,
    mean_loss,
    output_losses,
    positions_to_score,
)
from longspan.models.settings import HeadSettings, dropout_before, from_data
from longspan.models.states import CACHE, MixerStates, accept_cache
from longspan.models.wide.language import Mixture, MixtureInput
from longspan.ops.pooling import accumulation_dtype
from longspan.options import Range, option


@strict
@dataclass
class CausalLmSettings(HeadSettings):
    """Settings of a causal language model."""

    tie_projections: list[bool] | None = option(
        None,
        "per cluster of tokens (`cutoffs`), whether the softmax shares the embeddings' projection; None means all but "
        "the first, as published",
    )
    classifier_dropout: float | int | None = dropout_before("the softmax")
    wide: bool = option(
        False,
        "whether predictions are mixed with those of counted n-grams of tokens (Kneser-Ney) and of a cache. N-grams "
        "are counted in the training documents first. The weights depend on how reliable the counts are and on the "
        "output of the network, which is trained by itself; they are fitted to the validation split.",
    )
    wide_ngrams: int = option(
        2**22, "largest number of n-grams of two tokens and more; the rarest are left out", Range(0)
    )
    wide_cache: int = option(
        2000,
        "positions of the document in the cache, for what followed similar outputs of the network; 0 means no cache",
        Range(0),
    )
    wide_sizes: list[int] | None = from_data(None, "number of n-grams of 2, 3 and so on tokens")

    def check(self, config: Any) -> None:
        cutoffs = getattr(config.embeddings, "cutoffs", None)
        if cutoffs is None:
            if self.tie_projections is not None:
                raise UserError(
                    f"tie_projections needs clusters of tokens, got {self.tie_projections} without cutoffs; set "
                    "model.cutoffs or leave it out."
                )
            return
        if self.tie_projections is None:
            self.tie_projections = [False] + [True] * len(cutoffs)
        if len(self.tie_projections) != len(cutoffs) + 1:
            raise UserError(
                f"expected one tie_projections for each of {len(cutoffs) + 1} clusters, got "
                f"{len(self.tie_projections)}; give one more than cutoffs."
            )


@dataclass
class LongspanCausalLMOutput(CausalLMOutputWithPast):
    """Outputs of transformers' causal language models, and more.

    Attributes:
        losses: (b, t) nats of each target, in their order.
        parts: (b, t, k) of a mixture, log p of each target in each part (`Mixture.parts`), outside training.
        evidence: (b, t, e) of a mixture, what the weights of the parts depend on, where there are `parts`.
    """

    losses: Tensor | None = None
    parts: Tensor | None = None
    evidence: Tensor | None = None


class LongspanForCausalLM(LongspanPreTrainedModel, LongspanGenerationMixin):
    """Predict the next token; `generate` is transformers', with the mixers' states as its cache.

    `forward` takes the arguments of `LongspanModel` and targets: `labels` (b, t), shifted by the model so that position
    i predicts labels[i + 1], or `shift_labels` (b, t), already shifted, which take precedence. -100 marks positions
    without a target. It returns

    - `loss`: mean nats over the targets, or their sum divided by `num_items_in_batch` if given;

    - `losses` (b, t): nats of each target in token order, 0 without a target;

    - `logits` (b, t, vocab_size), or those of the last `logits_to_keep` positions (all for 0; a tensor gives
      positions), which does not affect the losses. With adaptive softmax they are log probabilities. With targets, they
      are returned in training and with adaptive softmax only if `logits_to_keep` is given. Otherwise only a part of
      them is ever in memory (`in_chunks`): all are b x t x vocab_size numbers, and as many gradients if a loss uses
      them;

    - `past_key_values`: the states after these tokens, if requested as in `LongspanModel`.

    With `config.head.wide`, the network's probabilities are mixed with those of counted n-grams and of a cache
    (`longspan.models.wide.language.Mixture`): `logits` are log probabilities, `loss` and `losses` those of the mixture.
    In training they are those of the network alone. States remember what counts and cache need; without states, rows
    begin with nothing before them.

    The output weights are the word vectors unless `tie_word_embeddings` is False; if the width of those is not `dim`,
    a linear map projects to it.

    Raises:
        UserError: for a configuration that is not causal, or `inputs_embeds` in place of tokens with
            `config.head.wide`, outside training.
    """

    head_settings = CausalLmSettings
    wide: Mixture | None

    def __init__(self, config: LongspanConfig) -> None:
        if not config.causal:
            raise UserError("LongspanForCausalLM expected a causal model, got causal=False; set causal=True.")
        tokens = token_settings(config, "LongspanForCausalLM")
        super().__init__(config)
        config = self.config
        assert config.embedding_dim is not None
        self.longspan = LongspanModel(config)
        self.dropout = self.head_dropout()
        self.transform: nn.Module = nn.Identity()
        self.lm_head: nn.Module
        if tokens.clusters is None:
            if config.embedding_dim != config.dim:
                self.transform = nn.Linear(config.dim, config.embedding_dim)
            self.lm_head = nn.Linear(config.embedding_dim, config.vocab_size)
        else:
            self.lm_head = AdaptiveSoftmax(
                config.vocab_size,
                config.dim,
                cutoffs=tokens.clusters,
                embedding_dim=config.embedding_dim,
                div_val=tokens.div_val,
            )
        self._tied_weights_keys = _ties(config, tokens)
        if config.head.wide:
            width = config.embedding_dim if tokens.clusters is None else config.dim
            self.wide = Mixture(config.vocab_size, width, config.head.wide_sizes or [], config.head.wide_cache)
        self.post_init()

    def resize_token_embeddings(self, *arguments: Any, **options: Any) -> nn.Module:
        if self.wide is not None:
            raise UserError(
                "expected a model with wide=False to resize, as n-grams are counted of the tokens there are, got "
                "wide=True; build a new model with another vocab_size."
            )
        return super().resize_token_embeddings(*arguments, **options)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Tied weights by name; see transformers, where `tie_word_embeddings` switches all ties."""
        if all_submodels:
            expanded: dict[str, str] = super().get_expanded_tied_weights_keys(all_submodels=True)
            return expanded
        return dict(self._tied_weights_keys)

    @accept_cache
    @delegate_args("inputs_embeds", "document_ids", "past_key_values", "use_cache", "counts")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        logits_to_keep: int | Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **read: Any,
    ) -> LongspanCausalLMOutput:
        body = self.longspan(input_ids=input_ids, attention_mask=attention_mask, **read)
        hidden = self.transform(self.dropout(body.last_hidden_state))
        if shift_labels is not None:
            check_token_labels("shift_labels", shift_labels, hidden.shape[:2])
        elif labels is not None:
            check_token_labels("labels", labels, hidden.shape[:2])
            shift_labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        logits, losses, loss, parts, evidence = None, None, None, None, None
        if logits_to_keep is None and (
            shift_labels is None or not (self.training or isinstance(self.lm_head, AdaptiveSoftmax))
        ):
            logits_to_keep = 0
        if logits_to_keep is not None:
            logits = self._score(positions_to_score(hidden, logits_to_keep))
        if shift_labels is not None:
            every = logits_to_keep if isinstance(logits_to_keep, int) else None
            losses = self._losses(hidden, logits if every == 0 else None, shift_labels)
        if self.wide is not None and not self.training:
            known = self._mixture_reader(self.wide, hidden, input_ids, attention_mask, body.get(CACHE), read)
            places = torch.arange(hidden.shape[1], device=hidden.device)
            if logits is not None:
                assert logits_to_keep is not None
                where = positions_to_score(places[None], logits_to_keep)[0]
                exact = logits.to(accumulation_dtype(logits.dtype))
                logits = self.wide.distribution(known(where), exact.log_softmax(-1))
            if losses is not None and shift_labels is not None:
                parts, evidence = self.wide.of_targets(known(places), -losses, shift_labels)
                mixed = -(parts + self.wide.gate(evidence).to(parts.dtype)).logsumexp(2)
                losses = mixed.masked_fill(shift_labels == IGNORED, 0)
        if shift_labels is not None and losses is not None:
            loss = mean_loss(losses, count_items(shift_labels), num_items_in_batch)
        return LongspanCausalLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=body.hidden_states,
            losses=losses,
            parts=parts,
            evidence=evidence,
            **{CACHE: body.get(CACHE)},
        )

    def _mixture_reader(
        self,
        wide: Mixture,
        hidden: Tensor,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        after: MixerStates | None,
        read: Mapping[str, Any],
    ) -> Callable[[Tensor], MixtureInput]:
        """Reader of a mixture's inputs at some of these positions; updates the states to remember all of them."""
        if input_ids is None:
            raise UserError(
                "expected input_ids for a model with wide=True, which counts n-grams of tokens, got inputs_embeds; "
                "give the tokens."
            )
        mask = None if attention_mask is None else attention_mask[:, -hidden.shape[1] :].bool()
        now, past = wide.to_remember(input_ids, mask, hidden), read.get("past_key_values")
        before = (None if past is None else past.history) or None
        if after is not None:
            after.history = after.lengthened(before or wide.nothing_before(hidden), now)
        documents = read.get("document_ids")
        return lambda where: wide.inputs_at(hidden, now, before, where, documents)

    def _score(self, hidden: Tensor) -> Tensor:
        if isinstance(self.lm_head, AdaptiveSoftmax):
            return self.lm_head.log_probabilities(hidden)
        logits: Tensor = self.lm_head(hidden)
        return logits

    def _losses(self, hidden: Tensor, logits: Tensor | None, targets: Tensor) -> Tensor:
        if isinstance(self.lm_head, AdaptiveSoftmax):
            return self.lm_head.nll(hidden, targets)
        if logits is not None:
            return in_chunks(cross_entropies, logits, targets, self.config.vocab_size)
        return output_losses(self.lm_head, hidden, targets, self.config.vocab_size)


def _ties(config: LongspanConfig, tokens: TokenSettings) -> dict[str, str]:
    """Weights of the head that are tied to those of the embeddings, by name."""
    table = "longspan.embeddings.table"
    if tokens.clusters is None:
        return {"lm_head.weight": f"{table}.weight"} if config.tie_word_embeddings else {}
    tied = {}
    for number, projection in enumerate(config.head.tie_projections):
        if config.tie_word_embeddings:
            tied[f"lm_head.outputs.{number}.weight"] = f"{table}.tables.{number}.weight"
        if projection and (tokens.div_val > 1 or config.embedding_dim != config.dim):
            source = number if tokens.div_val > 1 else 0
            tied[f"lm_head.projections.{number}.weight"] = f"{table}.projections.{source}.weight"
    return tied
