"""An image classifier: pooling and a linear layer on top of the model."""

from dataclasses import dataclass
from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor

from longspan.errors import UserError
from longspan.models.config import LongspanConfig
from longspan.models.embeddings.patches import PatchSettings
from longspan.models.embeddings.pixels import PixelSettings
from longspan.models.heads.base import hands_on
from longspan.models.heads.classification import (
    SINGLE_LABEL,
    ClassificationSettings,
    ClassifierOutput,
    LongspanForSequenceClassification,
)
from longspan.models.parts.losses import IGNORED, mean_loss, smoothed_losses
from longspan.models.settings import arguments
from longspan.ops.pooling import accumulation_dtype


@strict
@dataclass
class ImageClassificationSettings(ClassificationSettings):
    """Settings of an image classifier: those of a document classifier without the wide part."""

    def check(self, config: Any) -> None:
        if self.wide:
            raise UserError("wide counts n-grams of tokens, which images lack, got wide=True; leave it out.")
        super().check(config)


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
    main_input_name = "pixel_values"

    @classmethod
    def configured(cls, **settings: Any) -> LongspanConfig:
        return LongspanConfig(**arguments(settings, (PatchSettings, PixelSettings), cls.head_settings))

    @hands_on("inputs_embeds", "counts", "streams")
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
            found.loss, found.plain_loss = self._mixed_losses(
                found.logits, (labels, mixed_labels), mixed_shares, num_items_in_batch
            )
        return found

    def _mixed_losses(
        self,
        logits: Tensor,
        labels: tuple[Tensor, Tensor],
        shares: Tensor,
        num_items_in_batch: int | Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the loss, and the plain one where that is another; see `_losses`."""
        if self.config.problem_type not in (SINGLE_LABEL, None):
            raise UserError(
                f"expected mixed labels with single labels, got problem_type={self.config.problem_type!r}; leave mixup "
                "out."
            )
        scores = logits.to(accumulation_dtype(logits.dtype))
        smoothing, weights = float(self.config.head.label_smoothing), self.config.head.class_weights
        chosen = (smoothing, weights) if self.training else (0.0, None)
        count = (labels[0] != IGNORED).sum()
        (first, plain), (second, other) = (smoothed_losses(scores, each, *chosen) for each in labels)
        share = shares.to(scores.dtype)

        def mean(one: Tensor, two: Tensor) -> Tensor:
            return mean_loss((1 - share) * one + share * two, count, num_items_in_batch)

        return mean(first, second), None if plain is None or other is None else mean(plain, other)
