"""Answers as spans of a document: where they start and where they end."""

from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from longspan.errors import UserError
from longspan.models.config import LongspanConfig
from longspan.models.heads.base import delegate_args
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.models.parts.losses import IGNORED, count_items, cross_entropies, mean_loss
from longspan.models.questions import QUESTIONS, settle_question
from longspan.models.settings import HeadSettings, dropout_before
from longspan.ops.pooling import accumulation_dtype, softmax_pool
from longspan.options import FINITE, Range, option


@strict
@dataclass
class QuestionAnsweringSettings(HeadSettings):
    """Settings of a model that answers questions."""

    question: str = option(
        "context",
        'way to read a question with a document. With "context", by cross attention in every layer; without '
        '`cross_mixers`, through the mixers that have it. With "front", the question comes before the document.',
        QUESTIONS,
    )
    longest_answer: int = option(30, "maximum number of tokens in an answer", Range(1))
    classifier_dropout: float | int | None = dropout_before("the scores of starts and ends")
    answer_threshold: float | int | None = option(
        None,
        "log-odds against no answer from which an answer is given; None means always. The model does not apply it.",
        FINITE,
    )


class LongspanForQuestionAnswering(LongspanPreTrainedModel):
    """Find the answer to a question in a document: one score per token for its start, and one for its end.

    A row is a question followed by a document. `token_type_ids` (b, t) are 0 at the question and 1 at the document, as
    for BERT. With x_t the output of the backbone, and q = Σ_j softmax_j(w·x_j) x_j over the tokens of the question,

        start_t = a·x_t + b + x_t·(q + W q) / √dim,  and the end likewise

    (the product is that of Chen et al. 2017, "Reading Wikipedia to Answer Open-Domain Questions",
    https://arxiv.org/abs/1704.00051, which begins as the identity here, so that what question and document share counts
    at once; the rest is BERT's). So a token's score depends on the question however far apart they are, and whatever
    the mixers carry. With `config.head.question` "front", layers read the row as it is. With "context", they read the
    question alone, and then the document by cross attention to the question in every layer (`config.cross_mixers`).

    The first token of a row means no answer. Answers start and end at that token or at tokens of the document;
    others have the smallest number as logits. Without `token_type_ids` all tokens can, and there is no question.

    `forward` takes the arguments of `LongspanModel`, except for packed documents and states, and returns `start_logits`
    and `end_logits` (b, t), in at least float32. `start_positions` and `end_positions` (b,) are the first and last
    token of each answer, counted from the start of the row, padding included. Positions outside of the row are ignored.
    As longspan's own trainer counts labels, both may come as `labels` (b, 2). The `loss` is the mean of all starts' and
    ends' cross-entropies, or their sum divided by `num_items_in_batch`.

    Raises:
        UserError: for a causal configuration, no mixer with cross attention for `question` "context", and positions or
            types of another shape. Also for `document_ids`, start without end, and both kinds of labels at once.
    """

    head_settings = QuestionAnsweringSettings

    def __init__(self, config: LongspanConfig) -> None:
        if config.causal:
            raise UserError(
                "LongspanForQuestionAnswering expected causal=False, as answers depend on what follows, got "
                "causal=True; set causal=False."
            )
        super().__init__(config)
        config = self.config
        settle_question(config)
        self.longspan = LongspanModel(config)
        self.dropout = self.head_dropout()
        self.qa_outputs = nn.Linear(config.dim, 2)
        self.asked = nn.Linear(config.dim, 1, bias=False)
        self.match = nn.Linear(config.dim, 2 * config.dim, bias=False)
        self.post_init()

    @delegate_args("counts")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        document_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **read: Any,
    ) -> QuestionAnsweringModelOutput:
        if document_ids is not None:
            raise UserError(
                "expected one question and one document per row, got packed documents (document_ids); give each "
                "question its own row."
            )
        mask = None if attention_mask is None else attention_mask.bool()
        if inputs_embeds is None:
            # An encoder reads question and document together, however the rest reads them.
            inputs_embeds = self.longspan.embeddings.encode(input_ids, mask)
        given = input_ids if inputs_embeds is None else inputs_embeds
        asked: Tensor | None = None
        question = allowed = None
        counts: Tensor | None = read.get("counts")
        if token_type_ids is not None and given is not None:
            if token_type_ids.shape != given.shape[:2]:
                raise UserError(
                    f"expected token_type_ids of shape {tuple(given.shape[:2])}, one for each token, got "
                    f"{tuple(token_type_ids.shape)}; give 0 at the question and 1 at the document."
                )
            real = torch.ones_like(token_type_ids, dtype=torch.bool) if mask is None else mask
            document = token_type_ids.bool() & real
            question = real & ~document
            allowed = document | (real & (real.cumsum(1) == 1))
        if question is not None and self.config.cross_mixers:
            columns = _columns(question)
            question = question[:, columns]
            counts = None if counts is None else counts[:, columns]
            asked = self.longspan(
                input_ids=None if input_ids is None else input_ids[:, columns],
                attention_mask=question,
                position_ids=None if position_ids is None else position_ids[:, columns],
                inputs_embeds=None if inputs_embeds is None else inputs_embeds[:, columns],
                use_cache=False,
                return_dict=True,
                counts=counts,
            ).last_hidden_state
            attention_mask = allowed
        body = self.longspan(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            context=asked,
            context_mask=None if asked is None else question,
            context_counts=None if asked is None else counts,
            **read,
        )
        x = self.dropout(body.last_hidden_state)
        logits = self.qa_outputs(x)
        if question is not None:
            asked = x if asked is None else self.dropout(asked)
            times = question if counts is None else counts * question
            pooled = softmax_pool(asked.masked_fill(~question.unsqueeze(-1), 0), self.asked(asked), times).squeeze(1)
            wanted = pooled.unsqueeze(1) + self.match(pooled).unflatten(-1, (2, -1))
            logits = logits + x @ wanted.mT * self.config.dim**-0.5
        allowed = mask if allowed is None else allowed
        logits = logits.to(accumulation_dtype(logits.dtype))
        if allowed is not None:
            logits = logits.masked_fill(~allowed.unsqueeze(-1), torch.finfo(logits.dtype).min)
        targets = _targets(start_positions, end_positions, labels, logits.shape)
        loss = None
        if targets is not None:
            targets = targets.to(logits.device)
            losses = cross_entropies(logits.mT.flatten(0, 1), targets.flatten())
            loss = mean_loss(losses, count_items(targets), num_items_in_batch)
        start, end = logits.unbind(-1)
        return QuestionAnsweringModelOutput(
            loss=loss, start_logits=start, end_logits=end, hidden_states=body.hidden_states
        )


def _columns(question: Tensor) -> slice:
    """Return the columns from the first to the last in which a row has its question; when compiled, all of them."""
    if torch.compiler.is_compiling():
        return slice(None)
    places = question.any(0).nonzero().flatten().tolist()
    return slice(places[0], places[-1] + 1) if places else slice(0, 1)


def _targets(start: Tensor | None, end: Tensor | None, labels: Tensor | None, shape: torch.Size) -> Tensor | None:
    """Return the first and last token of each answer, (b, 2) int64, IGNORED where they are not in the row."""
    if (start is None) != (end is None) or (start is not None and labels is not None):
        raise UserError(
            "expected start_positions and end_positions, or both as labels, got another combination; give one of these."
        )
    if labels is None:
        if start is None or end is None:
            return None
        # DataParallel adds a dimension.
        labels = torch.stack([each.squeeze(-1) if each.ndim > 1 else each for each in (start, end)], -1)
    rows, length = shape[:2]
    if labels.shape != (rows, 2) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise UserError(
            f"expected the first and the last token of {rows} answers as integers, ({rows},) each or ({rows}, 2) as "
            f"labels, got {labels.dtype} of shape {tuple(labels.shape)}; give the place of both in the row."
        )
    labels = labels.long()
    return labels.masked_fill((labels < 0) | (labels >= length), IGNORED)
