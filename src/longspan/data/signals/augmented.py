"""Training recordings that are changed anew in each epoch: `AugmentedRecordings`."""

from typing import Any

import numpy as np
from datasets import Dataset
from torch.utils.data import Dataset as Rows

from longspan.data.signals.augmentation import Augmentation
from longspan.data.signals.decoding import samples
from longspan.data.signals.processor import RecordingProcessor

Index = tuple[int, int]
"""An epoch, and the number of a recording."""


class AugmentedRecordings(Rows[dict[str, Any]]):
    """Recordings by their `Index`, changed in a way that depends on nothing but it and the seed.

    They are decoded again in each epoch.

    Args:
        rows: `recording`, and `labels` if there are any.
        processor: What makes frames of them.
        change: How they are changed.
        seed: What changes are drawn by.
        max_length: Maximum number of frames; 0 for any.
    """

    def __init__(
        self, rows: Dataset, processor: RecordingProcessor, change: Augmentation, seed: int, max_length: int
    ) -> None:
        self.rows, self.processor, self.change = rows, processor, change
        self.seed, self.max_length = seed, max_length

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Index) -> dict[str, Any]:
        row, random = dict(self.rows[index[1]]), np.random.default_rng((self.seed, *index))
        sound = samples(row.pop("recording"), self.processor.sample_rate)
        return row | self.processor.augmented(sound, self.change, random, self.max_length)
