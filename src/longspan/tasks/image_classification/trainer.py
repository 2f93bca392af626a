"""Training on images that are changed in each epoch: `ImageTrainer`."""

from typing import Any

import torch

from longspan.data.batches.by_length import LengthBatches
from longspan.data.batches.epochs import EpochBatches
from longspan.data.images.augmentation import Augmentation
from longspan.data.images.augmented import AugmentedImages
from longspan.data.images.processor import ImageProcessor
from longspan.tasks.class_scores import ClassificationScores
from longspan.training.lengths import Collator, LengthTrainer, Rows


class ImageTrainer(LengthTrainer[ClassificationScores]):
    """A `LengthTrainer` whose training images may be augmented (`augment`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.augmented: AugmentedImages | None = None

    def augment(self, processor: ImageProcessor, change: Augmentation) -> None:
        """Change training images, if `change` says so; the training data then have a column `image`."""
        if change:
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            rows = self.train_dataset.select_columns(["image", "labels"])
            self.augmented = AugmentedImages(rows, processor, change, seed)
            self.data_collator = _MixedCollator(self.streams)

    def each_epoch(self, documents: Rows, batches: LengthBatches) -> tuple[Any, Any]:
        return (documents, batches) if self.augmented is None else (self.augmented, EpochBatches(batches))


class _MixedCollator(Collator):
    """A `Collator` that also stacks what mixup draws."""

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = super().__call__(examples)
        for name in ("mixed_labels", "mixed_shares"):
            if name in examples[0]:
                batch[name] = torch.tensor([one[name].item() for one in examples])
        return batch
