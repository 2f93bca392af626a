"""A classifier of pairs of documents: one encoder reads each, and a linear layer compares the two vectors."""

from dataclasses import dataclass

import torch
from huggingface_hub.dataclasses import strict
from jaxtyping import Float
from torch import Tensor
from transformers.utils.generic import can_return_tuple

from longspan.errors import UserError
from longspan.models.heads.classification import (
    ClassificationSettings,
    ClassifierOutput,
    LongspanForSequenceClassification,
)
from longspan.models.wide.linear import LinearPart
from longspan.models.wide.pairs import PairPart


@strict
@dataclass
class DocumentPairSettings(ClassificationSettings):
    """Settings of a classifier of pairs of documents: those of a document classifier."""


class LongspanForDocumentPairs(LongspanForSequenceClassification):
    """Classify pairs of documents, such as whether both are about the same thing.

    One encoder reads each document by itself, so the cost is that of two documents, and a document's vector may be
    kept and compared with many others. With u and v the pooled vectors of both, the logits are

        W [u, v, |u - v|, u ⊙ v] + b.

    The last two parts are the same when the documents change places: they are for relations without a direction, such
    as "duplicate". u and v themselves are for relations that have one, such as "answers". Reimers and Gurevych 2019
    compare such parts (https://arxiv.org/abs/1908.10084). The Retrieval task of the Long Range Arena (Tay et al. 2021,
    https://arxiv.org/abs/2011.04006) has u - v in place of |u - v|, and two hidden layers before the logits.

    `forward` takes the tokens of the first documents, `input_ids` (b, t) with `attention_mask` (b, t), and those of the
    second, `second_ids` (b, s) with `second_mask` (b, s). A mask may be left out where there is no padding. A document
    without tokens has a vector of zeros. `inputs_embeds` and `second_embeds` stand for tokens as in `LongspanModel`,
    `counts` and `second_counts` say how often they count.
    `labels` and losses are those of `LongspanForSequenceClassification`. `hidden_states`, if asked for, are those of
    the first documents, and after them those of the second.

    With `config.head.wide`, the logits of a `PairPart` are added, as `LongspanForSequenceClassification` adds those of
    its linear model; it reads tokens, not embeddings.

    Raises:
        UserError: for only one document, different numbers of documents, labels of another shape or type, and
            embeddings instead of tokens with `config.head.wide`.
    """

    head_settings = DocumentPairSettings
    vectors = 4

    def _build_wide(self) -> LinearPart:
        return PairPart(self.config.num_labels)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        second_ids: Tensor | None = None,
        second_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        second_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        counts: Tensor | None = None,
        second_counts: Tensor | None = None,
    ) -> ClassifierOutput:
        _check_both(input_ids, inputs_embeds, second_ids, second_embeds)
        read = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        first = {"inputs_embeds": inputs_embeds, "counts": counts}
        second = {"inputs_embeds": second_embeds, "counts": second_counts}
        u, of_first = self.pooled(input_ids, attention_mask, return_dict=True, **first, **read)
        v, of_second = self.pooled(second_ids, second_mask, return_dict=True, **second, **read)
        logits = self.classifier(self.dropout(compared(u, v)))
        parts = None
        if self.wide is not None and not self.training:
            if input_ids is None or second_ids is None:
                raise UserError(
                    "expected tokens of both documents for a model with wide=True, which counts shared ones, got "
                    "embeddings; give input_ids and second_ids."
                )
            mask = None if attention_mask is None else attention_mask.bool()
            wide = self.wide(
                mask,
                counts,
                input_ids=input_ids,
                second_ids=second_ids,
                second_mask=second_mask,
                second_counts=second_counts,
            )
            parts = torch.stack([wide, logits.float()], 1)
            logits = self.wide.combined(wide, logits)
        hidden_states = None if of_first is None or of_second is None else (*of_first, *of_second)
        return self.classified(logits, labels, num_items_in_batch, hidden_states=hidden_states, parts=parts)


def compared(u: Float[Tensor, "b p"], v: Float[Tensor, "b p"]) -> Float[Tensor, "b 4*p"]:
    """The classifier's input from two vectors: [u, v, |u - v|, u ⊙ v]."""
    return torch.cat((u, v, (u - v).abs(), u * v), 1)


def _check_both(
    input_ids: Tensor | None, inputs_embeds: Tensor | None, second_ids: Tensor | None, second_embeds: Tensor | None
) -> None:
    """Raise UserError unless there is a second document for each first one."""
    first, second = (
        ids if vectors is None else vectors
        for ids, vectors in ((input_ids, inputs_embeds), (second_ids, second_embeds))
    )
    if first is None or second is None:
        raise UserError(
            "expected two documents in each row, the first as input_ids and the second as second_ids, got "
            f"{'neither' if first is None and second is None else 'only one'}; give both."
        )
    if len(first) != len(second):
        raise UserError(
            f"expected a second document for each first one, got {len(second)} for {len(first)}; give as many."
        )
