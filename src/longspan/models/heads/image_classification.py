"""An image classifier: pooling and a linear layer on top of the model."""

from dataclasses import dataclass
from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor

from longspan.models.embeddings.patches import PatchSettings
from longspan.models.embeddings.pixels import PixelSettings
from longspan.models.heads.base import delegate_args
from longspan.models.heads.classification import (
    ClassificationSettings,
    ClassifierOutput,
    LongspanForSequenceClassification,
)
from longspan.models.parts.losses import Mixed
from longspan.models.wide.linear import LinearPart
from longspan.models.wide.pictures import PicturePart


@strict
@dataclass
class ImageClassificationSettings(ClassificationSettings):
    """Settings of an image classifier: those of a document classifier."""


class LongspanForImageClassification(LongspanForSequenceClassification):
    """Classify images as `LongspanForSequenceClassification` classifies documents.

    `forward` takes what `LongspanImageProcessor` returns: `pixel_values` (b, t, n) from 0 to 255, `coordinates`
    (b, t, 2) and `attention_mask` (b, t).

    With mixup (Zhang et al. 2018), each image is a mixture of two. `mixed_labels` (b,) are the classes of the second
    images, and `mixed_shares` (b,) their weights, from 0 to 1. The loss is the weighted mean of the losses for both
    labels.

    Raises:
        UserError: see `LongspanForSequenceClassification`; or mixed labels with another problem than single labels.
    """

    head_settings = ImageClassificationSettings
    embedding_settings = (PatchSettings, PixelSettings)
    main_input_name = "pixel_values"

    def _build_wide(self) -> LinearPart:
        embeddings = self.config.embeddings
        patch = embeddings.patch if isinstance(embeddings, PatchSettings) else 1
        return PicturePart(patch, embeddings.channels, self.config.num_labels)

    @delegate_args("inputs_embeds", "counts", "streams")
    def forward(  # type: ignore[override]
        self,
        pixel_values: Tensor | None = None,
        coordinates: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        mixed_labels: Tensor | None = None,
        mixed_shares: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **read: Any,
    ) -> ClassifierOutput:
        mixed = labels is not None and mixed_labels is not None
        found: ClassifierOutput = super().forward(
            attention_mask=attention_mask,
            labels=None if mixed else labels,
            num_items_in_batch=num_items_in_batch,
            pixel_values=pixel_values,
            coordinates=coordinates,
            **read,
        )
        if labels is not None and mixed_labels is not None and mixed_shares is not None:
            second = Mixed(mixed_labels, mixed_shares)
            found.loss, found.plain_loss = self.losses(found.logits, labels, num_items_in_batch, second)
        return found
