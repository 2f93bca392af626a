"""A model that finds the parts of a long document that answer a question."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple
from typing_extensions import override

from longspan.errors import UserError
from longspan.models.config import LongspanConfig
from longspan.models.layers import build_backbone
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.models.parts.losses import IGNORED, mean_loss
from longspan.models.parts.matching import LexicalMatch, matches
from longspan.models.questions import QUESTIONS, settle_question
from longspan.models.settings import DEEPEST, HeadSettings, check_count, dropout_before, from_data
from longspan.ops.pooling import accumulation_dtype
from longspan.ops.segments import segment_softmax_pool, segment_sum
from longspan.options import Range, option

POOLINGS = ("attention", "mean")


@strict
@dataclass
class EvidenceSettings(HeadSettings):
    """Settings of a model that finds the parts of a document which answer a question."""

    pooling: str = option(
        "attention", 'pooling of a part into one vector: "attention" (additive pooling) or "mean"', POOLINGS
    )
    question: str = option(
        "context",
        'way to read a question with the parts. With "context", by cross attention in every layer; without '
        '`cross_mixers`, through the mixers that have it. With "front", the question comes before the parts.',
        QUESTIONS,
    )
    part_depth: int = option(2, "number of layers over the parts of a document", Range(0, DEEPEST))
    lexical_match: bool = option(True, "whether the model receives the occurrences of a question's words in each part")
    classifier_dropout: float | int | None = dropout_before("the classifier")
    thresholds: list[float] | None = from_data(
        None,
        "probability from which a part answers a question, alone in a list; None means 0.5. The model does not apply "
        "it.",
        Range(0, 1),
    )

    def check(self, config: Any) -> None:
        check_count(self, "thresholds", config.num_labels, "labels")


@dataclass
class EvidenceOutput(ModelOutput):
    """Outputs of `LongspanForEvidence`.

    Attributes:
        loss: the binary cross-entropy, a scalar, if there are labels.
        logits: (q, p), above 0 where a part is likelier to answer the question than not; 0 where there is no part.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None


class LongspanForEvidence(LongspanPreTrainedModel):
    """A logit for each part of a document and each question about it.

    A document is read once, however many questions it has: `depth` layers over tokens, then one vector for
    each part (pooling over its tokens, "attention" or "mean"). For each question, `part_depth` layers over parts then
    read it as `config.head.question` says: by cross attention in each layer ("context"), or before the parts, with
    segment embeddings ("front"). Questions are read by the same layers over tokens.

    With `config.head.lexical_match` parts also read which words of the question occur in them and around them
    (`LexicalMatch`). This gives features, the words' vectors weighted by BM25, and logits, which are added.

    `forward` takes `input_ids` (b, t) with an `attention_mask` (b, t), and `part_ids` (b, t), the number of each
    token's part. The `part_mask` (b, p) is 1 at existing parts, even without tokens. It also takes `question_ids` (q,
    m) with a `question_mask` (q, m), and `question_rows` (q), which row of `input_ids` each question is about. With a
    pretrained encoder, `inputs_embeds` may be its outputs for `input_ids`. `labels` (q, p) are 1 where a part answers
    the question, 0 where not, and -100 where there is no part. The loss is the mean binary cross-entropy over labels,
    or their sum divided by `num_items_in_batch`.

    Raises:
        UserError: for a causal configuration, pooling other than these, a question that no mixer can read, labels of
            another shape, and rows that no document has.
    """

    head_settings = EvidenceSettings

    def __init__(self, config: LongspanConfig) -> None:
        if config.causal:
            raise UserError("LongspanForEvidence expected causal=False, got causal=True; set causal=False.")
        super().__init__(config)
        config, settings = self.config, self.config.head
        settle_question(config)
        tokens = copy.deepcopy(config)
        tokens.cross_mixers = None
        self.longspan = LongspanModel(tokens)
        self.pool: nn.Module | None = None
        if settings.pooling == "attention":
            self.pool = nn.Sequential(
                nn.Linear(config.dim, config.dim), nn.Tanh(), nn.Linear(config.dim, 1, bias=False)
            )
        self.length = nn.Linear(1, config.dim)
        self.match: LexicalMatch | None = None
        if settings.lexical_match:
            self.match = LexicalMatch(config.vocab_size, config.dim)
            self.match_features = nn.Linear(self.match.features, config.dim)
            self.match_words = nn.Linear(self.longspan.embeddings.output_dim, config.dim)
        self.segments = nn.Embedding(2, config.dim) if settings.question == "front" else None
        self.parts = build_backbone(config, settings.part_depth, config.cross_mixers)
        self.dropout = self.head_dropout()
        self.classifier = nn.Linear(config.dim, 1)
        self.post_init()

    @override
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, LexicalMatch):
            module.reset_parameters()
        else:
            super()._init_weights(module)

    def expect(self, share: float) -> None:
        """Let a new model begin with this share of parts that answer a question (Lin et al. 2017, section 4.1)."""
        with torch.no_grad():
            self.classifier.bias.fill_(torch.tensor(share).clamp(1e-4, 1 - 1e-4).logit().item())

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        part_ids: Tensor,
        part_mask: Tensor,
        question_ids: Tensor,
        question_mask: Tensor,
        question_rows: Tensor,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        counts: Tensor | None = None,
        question_counts: Tensor | None = None,
    ) -> EvidenceOutput:
        mask, asked_mask, real = attention_mask.bool(), question_mask.bool(), part_mask.bool()
        count = real.shape[1]
        read = {"output_attentions": output_attentions, "return_dict": True}
        document = {"input_ids": input_ids, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        hidden = self.longspan(**document, counts=counts, **read).last_hidden_state
        often, asked_often = (
            own if times is None else times * own for times, own in ((counts, mask), (question_counts, asked_mask))
        )
        words = self.longspan.embeddings.encode(question_ids, asked_mask)
        question = {"input_ids": question_ids, "attention_mask": question_mask, "inputs_embeds": words}
        asked = self.dropout(self.longspan(**question, counts=question_counts, **read).last_hidden_state)
        logits = hidden.new_zeros(hidden.shape[:2]) if self.pool is None else self.pool(hidden).squeeze(-1)
        x = segment_softmax_pool(hidden, logits, part_ids, count, often)
        lengths = segment_sum(often.unsqueeze(-1).to(accumulation_dtype(x.dtype)), part_ids, count, mask)
        x = (x + self.length(lengths.log1p().to(x.dtype)))[question_rows]
        own = real[question_rows]
        direct: Tensor | float = 0.0
        if self.match is not None:
            found, rarity = matches(input_ids, often, part_ids, real, question_ids, asked_often, question_rows)
            features, direct = self.match(found, rarity, question_ids, asked, asked_often, own)
            meanings = self.match_words(self.longspan.embeddings.position_vectors(question_ids, words))
            x = x + self.match_features(features.to(x.dtype)) + found.to(x.dtype) @ meanings
        x = self._meet(x, own, asked, asked_mask, question_counts)
        scores = self.classifier(self.dropout(x)).squeeze(-1)
        scores = (scores + direct).masked_fill(~own, 0)
        loss = None if labels is None else _loss(scores, labels, num_items_in_batch)
        return EvidenceOutput(loss=loss, logits=scores)

    def _meet(self, x: Tensor, mask: Tensor, asked: Tensor, asked_mask: Tensor, counts: Tensor | None) -> Tensor:
        """Run the layers over parts, which meet the question."""
        if self.segments is None:
            y: Tensor = self.parts(x, mask, context=asked, context_mask=asked_mask, context_counts=counts)
            return y
        question, document = self.segments.weight
        both = torch.cat((asked + question, x + document), 1)
        times = None if counts is None else torch.cat((counts, counts.new_ones(mask.shape)), 1)
        y = self.parts(both, torch.cat((asked_mask, mask), 1), counts=times)
        return y[:, asked.shape[1] :]


def _loss(scores: Tensor, labels: Tensor, num_items_in_batch: int | Tensor | None) -> Tensor:
    if labels.shape != scores.shape:
        raise UserError(
            f"expected labels of {tuple(scores.shape)}, one for each question and part, got {tuple(labels.shape)}; "
            "give 1, 0 or -100 for each."
        )
    known = labels != IGNORED
    wide = scores.to(accumulation_dtype(scores.dtype))
    targets = labels.to(wide.dtype)
    losses: Any = nn.functional.binary_cross_entropy_with_logits(wide, targets, reduction="none")
    return mean_loss(losses.masked_fill(~known, 0), known.sum(), num_items_in_batch)
