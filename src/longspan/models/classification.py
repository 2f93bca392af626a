"""A document classifier: pooling and a linear layer on top of the model."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from longspan.models.config import LongspanConfig
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.ops.dropout import Dropout
from longspan.ops.pooling import softmax_pool


class Pooling(nn.Module):
    """One vector per document from one per token; a document without tokens gives zeros.

    "attention" is the additive pooling of Wu et al. 2021: Σ_t softmax_t(w·tanh(W x_t)) x_t. "mean" averages the real
    tokens; "first" takes the first real token.
    """

    def __init__(self, name: str, dim: int) -> None:
        super().__init__()
        self.name = name
        if name == "attention":
            self.hidden = nn.Linear(dim, dim)
            self.score = nn.Linear(dim, 1, bias=False)

    def forward(self, x: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"] | None = None) -> Float[Tensor, "b d"]:
        if self.name == "attention":
            return softmax_pool(x, self.score(torch.tanh(self.hidden(x))), mask).squeeze(1)
        if mask is None:
            return x[:, 0] if self.name == "first" else x.mean(1)
        if self.name == "first":
            first = mask.int().argmax(1)
            return x[torch.arange(x.shape[0], device=x.device), first] * mask.any(1, keepdim=True)
        return (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)


class LongspanForSequenceClassification(LongspanPreTrainedModel):
    """Classify whole documents.

    `forward` takes what `LongspanModel` takes, and `labels` (b,); it returns `logits` (b, num_labels) and, with
    labels, the cross-entropy `loss`.
    """

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.longspan = LongspanModel(config)
        self.pooling = Pooling(config.pooling, config.dim)
        dropout = config.dropout if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = Dropout(dropout)
        self.classifier = nn.Linear(config.dim, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        hidden = self.longspan(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        mask = None if attention_mask is None else attention_mask.bool()
        logits = self.classifier(self.dropout(self.pooling(hidden.last_hidden_state, mask)))
        loss = None
        if labels is not None:
            # Smoothing is for training: validation losses stay comparable between runs.
            smoothing = float(self.config.label_smoothing) if self.training else 0.0
            loss = nn.functional.cross_entropy(logits.float(), labels, label_smoothing=smoothing)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=hidden.hidden_states)
