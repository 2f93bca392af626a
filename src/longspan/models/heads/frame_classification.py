"""A class for each stretch of a recording: a linear layer on top of the model."""

from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import TokenClassifierOutput

from longspan.errors import UserError
from longspan.models.config import LongspanConfig
from longspan.models.embeddings.frames import FrameSettings
from longspan.models.heads.base import delegate_args
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.models.parts.losses import count_items, cross_entropies, mean_loss
from longspan.models.settings import HeadSettings, arguments
from longspan.options import Range, option


@strict
@dataclass
class FrameClassificationSettings(HeadSettings):
    """Settings of a classifier of frames."""

    classifier_dropout: float | int | None = option(
        None, "dropout before the classifier; None means `dropout`", Range(0, 1)
    )


class LongspanForAudioFrameClassification(LongspanPreTrainedModel):
    """Classify each position of a recording: `stride` frames of `config.embeddings`.

    `forward` takes `input_features` (b, t, channels), the frames of `LongspanFeatureExtractor`, their `attention_mask`
    (b, t), and `labels` (b, p), the classes of the p = ⌈t / stride⌉ positions, -100 where there is none. It returns the
    `logits` (b, p, num_labels) and, with labels, the `loss`: the mean cross-entropy over the labels, or its sum divided
    by `num_items_in_batch`. Positions count from each row's first real frame.

    `switch_penalty` () is what whoever smooths the labels subtracts from the log-probability of a sequence for each
    change of the label. It is no parameter: training of `longspan.tasks.frame_labelling` chooses it on validation data.

    Raises:
        UserError: for labels of another shape or type.
    """

    switch_penalty: Tensor
    main_input_name = "input_features"
    head_settings = FrameClassificationSettings

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.num_labels = self.config.num_labels
        self.longspan = LongspanModel(self.config)
        self.dropout = self.head_dropout()
        self.classifier = nn.Linear(self.config.dim, self.config.num_labels)
        self.register_buffer("switch_penalty", torch.zeros(()))
        self.post_init()

    @classmethod
    def configured(cls, **settings: Any) -> LongspanConfig:
        return LongspanConfig(**arguments(settings, (FrameSettings,), cls.head_settings))

    @delegate_args("inputs_embeds", "input_features", "counts", "streams")
    def forward(
        self,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **read: Any,
    ) -> TokenClassifierOutput:
        body = self.longspan(attention_mask=attention_mask, use_cache=False, **read)
        logits = self.classifier(self.dropout(body.last_hidden_state))
        loss = None
        if labels is not None:
            if labels.shape != logits.shape[:2] or labels.is_floating_point():
                raise UserError(
                    f"expected labels as integers of shape {tuple(logits.shape[:2])}, one for each position, got "
                    f"{labels.dtype} of shape {tuple(labels.shape)}; give each position a class, or -100 for none."
                )
            losses = cross_entropies(logits.flatten(0, 1), labels.flatten().to(logits.device))
            loss = mean_loss(losses, count_items(labels), num_items_in_batch)
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=body.hidden_states)
