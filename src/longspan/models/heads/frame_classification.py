"""A class for each stretch of a recording: a linear layer on top of the model."""

from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.models.config import LongspanConfig
from longspan.models.embeddings.frames import FrameSettings
from longspan.models.heads.base import delegate_args
from longspan.models.heads.classification import ClassifierOutput
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.models.parts.losses import count_items, cross_entropies, mean_loss
from longspan.models.settings import HeadSettings, dropout_before
from longspan.models.wide.linear import FramePart
from longspan.options import option


@strict
@dataclass
class FrameClassificationSettings(HeadSettings):
    """Settings of a classifier of frames."""

    classifier_dropout: float | int | None = dropout_before("the classifier")
    wide: bool = option(
        False,
        "whether the model adds the logits of a linear model of cepstral coefficients of a frame and its neighbours, "
        "which is fitted to the training frames first. The validation split chooses the scale of each part.",
    )

    def check(self, config: Any) -> None:
        if self.wide and config.causal:
            raise UserError("wide=True reads later frames, got it with causal=True; leave one of them out.")


class LongspanForAudioFrameClassification(LongspanPreTrainedModel):
    """Classify each position of a recording: `stride` frames of `config.embeddings`.

    `forward` takes `input_features` (b, t, channels), the frames of `LongspanFeatureExtractor`, their `attention_mask`
    (b, t), and `labels` (b, p), the classes of the p = ⌈t / stride⌉ positions, -100 where there is none. It returns the
    `logits` (b, p, num_labels) and, with labels, the `loss`: the mean cross-entropy over the labels, or its sum divided
    by `num_items_in_batch`. Positions count from each row's first real frame.

    With `config.head.wide`, a linear model is added (`longspan.models.wide.linear.FramePart`). `logits` are the sum of
    both parts, each times its scale, and `parts` (b, p, 2, num_labels) has their own logits, wide first. In training,
    loss and logits are those of the network alone.

    `switch_penalty` () is what whoever smooths the labels subtracts from the log-probability of a sequence for each
    change of the label. It is no parameter: training of `longspan.tasks.frame_labelling` chooses it on validation data.

    Raises:
        UserError: for labels of another shape or type.
    """

    switch_penalty: Tensor
    wide: FramePart | None
    main_input_name = "input_features"
    head_settings = FrameClassificationSettings
    embedding_settings = (FrameSettings,)

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.num_labels = self.config.num_labels
        self.longspan = LongspanModel(self.config)
        self.dropout = self.head_dropout()
        self.classifier = nn.Linear(self.config.dim, self.config.num_labels)
        self.register_buffer("switch_penalty", torch.zeros(()))
        if self.config.head.wide:
            embeddings = self.config.embeddings
            self.wide = FramePart(embeddings.channels, self.num_labels, embeddings.stride)
        self.post_init()

    @delegate_args("inputs_embeds", "input_features", "counts", "streams")
    def forward(
        self,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **read: Any,
    ) -> ClassifierOutput:
        body = self.longspan(attention_mask=attention_mask, use_cache=False, **read)
        logits = self.classifier(self.dropout(body.last_hidden_state))
        loss = parts = None
        if self.wide is not None and not self.training:
            simple = self.wide(None if attention_mask is None else attention_mask.bool(), **read)
            parts = torch.stack([simple, logits.float()], 2)
            logits = self.wide.combined(simple, logits)
        if labels is not None:
            if labels.shape != logits.shape[:2] or labels.is_floating_point():
                raise UserError(
                    f"expected labels as integers of shape {tuple(logits.shape[:2])}, one for each position, got "
                    f"{labels.dtype} of shape {tuple(labels.shape)}; give each position a class, or -100 for none."
                )
            losses = cross_entropies(logits.flatten(0, 1), labels.flatten().to(logits.device))
            loss = mean_loss(losses, count_items(labels), num_items_in_batch)
        return ClassifierOutput(loss=loss, logits=logits, hidden_states=body.hidden_states, parts=parts)
