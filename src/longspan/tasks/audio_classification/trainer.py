"""Training on recordings that are changed in each epoch: `AudioTrainer`."""

from typing import Any

from longspan.data.batches.by_length import LengthBatches
from longspan.data.batches.epochs import EpochBatches
from longspan.data.signals.augmented import AugmentedRecordings
from longspan.data.signals.options import RecordingData
from longspan.data.signals.processor import RecordingProcessor
from longspan.tasks.class_scores import ClassificationScores
from longspan.training.lengths import LengthTrainer, Rows


class AudioTrainer(LengthTrainer[ClassificationScores]):
    """A `LengthTrainer` whose training recordings may be augmented (`augment`).

    Batches are made by the lengths of recordings as they are, so that batches of `batch_tokens` are sometimes larger.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.augmented: AugmentedRecordings | None = None

    def augment(self, processor: RecordingProcessor, data: RecordingData) -> None:
        """Change training recordings as `data.augmentation` says; the training data then have a column `recording`."""
        if data.augmentation:
            rows = self.train_dataset.select_columns(["recording", "labels"])
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            self.augmented = AugmentedRecordings(rows, processor, data.augmentation, seed, data.max_length)

    def each_epoch(self, documents: Rows, batches: LengthBatches) -> tuple[Any, Any]:
        return (documents, batches) if self.augmented is None else (self.augmented, EpochBatches(batches))
