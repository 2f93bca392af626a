"""A token classifier: a label for each word, each by itself or all together as a conditional random field."""

from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast, TokenClassifierOutput
from typing_extensions import override

from longspan.errors import UserError
from longspan.models.config import LongspanConfig
from longspan.models.embeddings.tokens import TokenEmbeddings
from longspan.models.heads.base import delegate_args
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.models.parts.linear_chain import COUNTS_ALONE, LinearChain, path_losses
from longspan.models.parts.losses import IGNORED, Losses, check_token_labels, class_losses, mean_loss
from longspan.models.parts.words import Gathered, WordCharacters, first_of_words, gathered
from longspan.models.settings import HeadSettings, dropout_before, from_data
from longspan.models.states import CACHE, accept_cache
from longspan.models.wide.chain import WideChain
from longspan.ops.crf import best_path, filtered, log_marginals
from longspan.ops.pooling import accumulation_dtype
from longspan.options import Range, option

#: Score of a B- within a word, as good as none.
_NEVER = -1e4
#: Logarithms of probabilities below this are as good as this.
_LEAST = -8.0


@strict
@dataclass
class TokenClassificationSettings(HeadSettings):
    """Settings of a token classifier."""

    crf: bool = option(
        False,
        "whether to score sequences of labels with a linear-chain conditional random field (Lafferty et al. 2001), "
        "which has a score for each pair of successive labels.",
    )
    label_smoothing: float | int = option(
        0.0, "share of the target spread evenly over all classes in the classification loss", Range(0, 1)
    )
    classifier_dropout: float | int | None = dropout_before("the classifier")
    wide: bool = option(
        False,
        "whether to add the scores of a linear-chain conditional random field over hand-made features of words, "
        "fitted to the training documents first. The network then reads how likely it finds each label of each word. "
        "The validation split chooses the scale of each part. Not with causal=True, as the next words are features, "
        "too.",
    )
    features: int = from_data(0, "number of values of a further feature of words; 0 for none", Range(0))
    feature_values: list[str] | None = from_data(
        None, "the values of that feature, from 1 on; the model does not read them"
    )
    label_scheme: str = from_data(
        "plain",
        'scheme of the labels in training ("plain", "IO", "IOB1", "IOB2" or "IOBES"). Predicted labels are in IOB2 '
        "unless they are plain. The model does not read it.",
    )
    wide_size: int = from_data(0, "number of hand-made features that the wide part knows", Range(0))

    def check(self, config: Any) -> None:
        if self.wide and config.causal:
            raise UserError(
                "wide=True reads the words after each word, got it with causal=True; leave one of them out."
            )


@dataclass
class TokenLabels(TokenClassifierOutput, CausalLMOutputWithPast):
    """Outputs of transformers' token classifiers and, of causal models, the states after these tokens; and more.

    Attributes:
        tags: (b, t) the labels of the best sequence; only outside training.
        chain_state: (b, labels) what a causal conditional random field goes on from.
        parts: (b, t, 2, labels) the scores of a model's two parts for the word of each token, those of the wide part
            first; only outside training.
        plain_loss: the loss without label smoothing, where training has it; no gradient.
    """

    tags: Tensor | None = None
    chain_state: Tensor | None = None
    parts: Tensor | None = None
    plain_loss: Tensor | None = None


class LongspanForTokenClassification(LongspanPreTrainedModel):
    """Label each word of a document.

    `forward` takes the arguments of `LongspanModel` and `labels` (b, t): numbers of labels, -100 at positions without a
    label or with an unknown one. It returns the `loss`, `logits` (b, t, num_labels) and, outside training, the best
    `tags` (b, t). The loss is the mean negative log-likelihood over the labels, or its sum divided by
    `num_items_in_batch`.

    A word's label is that of its first token. The tokenizer decides which tokens begin words (`begins`); until it is
    given, all do. Outside training, the other tokens of a word have the word's logits, of which B- has become I-, so
    that a pipeline sees one span. Tags are those of the best sequence in which no I- begins a span.

    With `config.head.crf` the labels of a sentence are those of a linear-chain conditional random field. Its chain
    starts again where `sentence_ids` (b, t) change, and the loss sums over unknown labels. Outside training, logits are
    then log-probabilities: of a word's label given its sentence or, in a causal model, given what was read.

    With `config.head.wide`, the scores of a linear-chain conditional random field over hand-made features are added
    (`longspan.models.wide.chain.WideChain`), each part's times its scale. `parts` (b, t, 2, num_labels) has those of
    each part. In training, loss and logits are those of the network alone, which reads what the features say of each
    word, by weights that do not know its document.

    A causal model continues from `past_key_values` and `chain_state`; its tokens have logits of their own.

    `feature_ids` (b, t), below `config.head.features`, are a further feature of words, such as their part of speech; 0
    means that it is not known.

    Raises:
        UserError: for labels that are not integers of (b, t), and `inputs_embeds` with `config.head.wide`.
    """

    head_settings = TokenClassificationSettings
    begins: Tensor
    wide: WideChain | None

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        config, settings = self.config, self.config.head
        self.num_labels = config.num_labels
        self.longspan = LongspanModel(config)
        self.dropout = self.head_dropout()
        self.classifier = nn.Linear(config.dim, config.num_labels)
        names = [config.id2label[number] for number in range(config.num_labels)]
        self.chain = LinearChain(names, learned=settings.crf)
        self.features: nn.Embedding | None = None
        if settings.features:
            self.features = nn.Embedding(settings.features, self.longspan.embeddings.output_dim, padding_idx=0)
        if settings.wide:
            self.wide = WideChain(settings.wide_size, config.num_labels, config.vocab_size)
            self.evidence = nn.Linear(config.num_labels, self.longspan.embeddings.output_dim, bias=False)
        self.register_buffer("begins", torch.ones(config.vocab_size, dtype=torch.bool))
        self.post_init()

    @override
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, LinearChain):
            for parameter in module.parameters():
                nn.init.zeros_(parameter)
        elif module is self:
            nn.init.constant_(self.begins, True)
        else:
            super()._init_weights(module)

    def read_words(self, begins: Bool[Tensor, " v"], spelling: Int[Tensor, "v k"]) -> None:
        super().read_words(begins, spelling)
        self.begins.copy_(begins)
        if self.wide is not None:
            self.wide.spelling.copy_(spelling)

    def resize_token_embeddings(self, *arguments: object, **options: object) -> nn.Module:
        resized = super().resize_token_embeddings(*arguments, **options)
        tokens = self.config.vocab_size
        self.begins = nn.functional.pad(self.begins[:tokens], (0, max(0, tokens - len(self.begins))), value=True)
        if self.wide is not None:
            self.wide.resize(tokens)
        return resized

    @accept_cache
    @delegate_args("inputs_embeds", "document_ids", "past_key_values", "use_cache", "counts")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        sentence_ids: Tensor | None = None,
        feature_ids: Tensor | None = None,
        labels: Tensor | None = None,
        chain_state: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **read: Any,
    ) -> TokenLabels:
        counted: Tensor | None = None
        if self.wide is not None:
            counted, likely = self._counted(self.wide, input_ids, attention_mask, sentence_ids, feature_ids)
            read["log_marginals"] = likely
        body, scores = self._network(input_ids, attention_mask, feature_ids, **read)
        hidden = body.last_hidden_state
        mask = None if attention_mask is None else attention_mask[:, -hidden.shape[1] :].bool()
        first = self._first(input_ids, mask, scores)
        wide, parts = None, None
        if self.wide is not None and counted is not None and not self.training:
            # In training the network is not to rely on weights that know the training documents.
            wide, parts = self.wide, torch.stack((counted.to(scores.dtype), scores), 2)
            scores = wide.combined(counted, scores).to(scores.dtype)
        loss, plain = None, None
        if labels is not None:
            check_token_labels("labels", labels, hidden.shape[:2])
            loss, plain = self._losses(scores, labels, first, sentence_ids, num_items_in_batch, wide)
        tags = None
        if not self.training:
            scores, tags, chain_state = self._labelled(scores, first, sentence_ids, chain_state, mask, wide)
        return TokenLabels(
            loss=loss,
            logits=scores,
            tags=tags,
            hidden_states=body.hidden_states,
            chain_state=chain_state if self.config.head.crf and self.config.causal else None,
            parts=parts,
            plain_loss=plain,
            **{CACHE: body.get(CACHE)},
        )

    @property
    def smooths_labels(self) -> bool:
        return not self.config.head.crf

    def chained(self, like: Tensor, scales: Float[Tensor, " 2"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scores of transitions, starts and ends of both parts together, each times its scale."""
        assert self.wide is not None
        found: tuple[Tensor, Tensor, Tensor] = self.chain(like, self.wide.transitions, scales)
        return found

    @property
    def words(self) -> WordCharacters | None:
        """Part of the embeddings that reads the spelling of words, if there is one."""
        embeddings = self.longspan.embeddings
        return embeddings.words if isinstance(embeddings, TokenEmbeddings) else None

    def program_inputs(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        found, mask = super().program_inputs(input_ids, attention_mask), attention_mask.bool()
        features = torch.zeros_like(input_ids)
        if self.wide is not None:
            found["log_marginals"] = self._counted(self.wide, input_ids, attention_mask, None, features)[1]
        if self.features is not None:
            found["feature_ids"] = features
        if self.words is not None:
            found["word_rows"] = self.words.rows(input_ids, mask, features)
        return found

    def program_output(self, **inputs: Tensor) -> Tensor:
        """The scores of the network alone: words, their sentences and their best labels are found without it."""
        return self._network(**inputs)[1]

    def _network(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        feature_ids: Tensor | None = None,
        log_marginals: Tensor | None = None,
        **read: Any,
    ) -> tuple[Any, Float[Tensor, "b t l"]]:
        """Outputs of the model below, and the scores of the network, which reads what the wide part says of words."""
        added = None if self.features is None or feature_ids is None else self.features(feature_ids)
        if log_marginals is not None:
            evidence = self.evidence(log_marginals.to(self.dtype))
            added = evidence if added is None else added + evidence
        body = self.longspan(
            input_ids=input_ids,
            attention_mask=attention_mask,
            added_embeds=added,
            feature_ids=feature_ids if "feature_ids" in self.longspan.embeddings.streams else None,
            **read,
        )
        scores = self.classifier(self.dropout(body.last_hidden_state))
        return body, scores.to(accumulation_dtype(scores.dtype))

    def _counted(
        self,
        wide: WideChain,
        ids: Tensor | None,
        attention_mask: Tensor | None,
        sentence_ids: Tensor | None,
        feature_ids: Tensor | None,
    ) -> tuple[Float[Tensor, "b t l"], Float[Tensor, "b t l"]]:
        """Return the scores of the wide part for each token's word, and its log-probabilities of labels for the first
        token of each word, 0 elsewhere."""
        if ids is None:
            raise UserError(
                "expected input_ids for a model with wide=True, which reads what tokens spell, got inputs_embeds; give "
                "the tokens."
            )
        mask = None if attention_mask is None else attention_mask.bool()
        first = first_of_words(ids, self.begins, mask)
        given = feature_ids if self.config.head.features else None
        rows = gathered(first, sentence_ids)
        found: Tensor = wide(ids, mask, first, rows.lengths, given)
        own = rows.rows(found)
        alone = self.chained(own, torch.tensor(COUNTS_ALONE, device=own.device))
        likely = log_marginals(own, rows.lengths, *alone).detach().clamp_min(_LEAST)
        return found, rows.back(torch.zeros_like(found), likely)

    def _first(self, ids: Tensor | None, mask: Tensor | None, scores: Tensor) -> Bool[Tensor, "b t"]:
        """Return the first token of each word, as a mask."""
        if ids is not None and not self.config.causal:
            return first_of_words(ids, self.begins, mask)
        real = scores.new_ones(scores.shape[:2], dtype=torch.bool) if mask is None else mask
        # Where a segment begins within a word, the word began before.
        return real if ids is None else real & self.begins[ids]

    def _losses(
        self,
        scores: Float[Tensor, "b t l"],
        labels: Int[Tensor, "b t"],
        first: Bool[Tensor, "b t"],
        sentence_ids: Tensor | None,
        num_items_in_batch: int | Tensor | None,
        wide: WideChain | None,
    ) -> Losses:
        known = labels != IGNORED
        if not self.config.head.crf and wide is None:
            smoothing = self.config.head.label_smoothing
            return class_losses(
                scores[known], labels[known], num_items_in_batch, training=self.training, smoothing=smoothing
            )
        rows = gathered(first, sentence_ids)
        free, gold = rows.rows(scores), rows.rows(torch.where(known, labels, -1))
        chain = self.chain(free) if wide is None else self.chained(free, wide.scales)
        losses = path_losses(free, gold, rows.lengths, *chain)
        return Losses(mean_loss(losses, (known & first).sum(), num_items_in_batch))

    def _labelled(
        self,
        scores: Float[Tensor, "b t l"],
        first: Bool[Tensor, "b t"],
        sentence_ids: Tensor | None,
        chain_state: Tensor | None,
        mask: Tensor | None,
        wide: WideChain | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return logits and tags of all tokens, and the state of a causal chain."""
        rows = gathered(first, sentence_ids)
        own = rows.rows(scores)
        parts = self.chain(own) if wide is None else self.chained(own, wide.scales)
        if self.config.causal and self.config.head.crf:
            # No label may depend on what comes later: each row is one chain.
            rows = _by_row(first)
            transitions, start, _ = parts
            known, after = filtered(rows.rows(scores), rows.lengths, transitions, start, chain_state)
            scores = rows.back(scores, known)
            return scores, scores.argmax(-1), after.detach()
        tags = scores.argmax(-1)
        if self.config.causal:
            return scores, tags, None
        best = best_path(own, rows.lengths, *parts)
        if self.config.head.crf or wide is not None:
            scores = rows.back(scores, log_marginals(own, rows.lengths, *parts))
        return self._continued(scores, rows.back(tags, best), first, mask)

    def _continued(
        self, scores: Tensor, tags: Tensor, first: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, None]:
        """Give the tokens of a word but its first the word's scores and tags, B- being I- there."""
        names = self.chain.names
        numbers = {name: number for number, name in enumerate(names)}
        inside = [numbers.get(f"I-{name[2:]}", own) if name[:2] == "B-" else own for own, name in enumerate(names)]
        places = torch.arange(first.shape[1], device=first.device).expand_as(first)
        source = torch.where(first, places, 0).cummax(1).values
        later = ~first if mask is None else mask & ~first
        there = tags.gather(1, source)
        tags = torch.where(later, torch.tensor(inside, device=tags.device)[there], tags)
        word = list(scores.gather(1, source.unsqueeze(-1).expand_as(scores)).unbind(-1))
        for own, other in enumerate(inside):
            if own != other:
                word[other] = torch.logaddexp(word[other], word[own])
                word[own] = word[other] + _NEVER
        return torch.where(later.unsqueeze(-1), torch.stack(word, -1), scores), tags, None


def _by_row(first: Bool[Tensor, "b t"]) -> Gathered:
    """Return the words of each row of tokens in a row, empty rows too."""
    row = torch.arange(first.shape[0], device=first.device).unsqueeze(1).expand_as(first)[first]
    return Gathered(first, row, (first.cumsum(1) - 1)[first], first.sum(1))
