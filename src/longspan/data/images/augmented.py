"""Training images that are changed anew in each epoch: `AugmentedImages`."""

from typing import Any

import numpy as np
from datasets import Dataset
from torch.utils.data import Dataset as Rows

from longspan.data.images.augmentation import Augmentation
from longspan.data.images.processor import ImageProcessor

#: Bytes of decoded images that are kept; the others are decoded again in each epoch.
KEPT = 1 << 28
Index = tuple[int, int]
"""An epoch, and the number of an image."""


class AugmentedImages(Rows[dict[str, Any]]):
    """Images by their `Index`, changed in a way that depends on nothing but it and the seed.

    With mixup, `mixed_labels` and `mixed_shares` say what is mixed in.

    Args:
        rows: `image` and `labels`.
        processor: What makes sequences of them.
        change: How they are changed.
        seed: What changes are drawn by.
    """

    def __init__(self, rows: Dataset, processor: ImageProcessor, change: Augmentation, seed: int) -> None:
        self.images, self.labels = rows.select_columns(["image"]), np.asarray(rows["labels"][:])
        self.processor, self.change, self.seed = processor, change, seed
        self._kept: dict[int, np.ndarray] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Index) -> dict[str, Any]:
        row, random = index[1], np.random.default_rng((self.seed, *index))
        array = self.change.changed(self._decoded(row), random)
        found: dict[str, Any] = {"labels": self.labels[row]}
        if self.change.mixup:
            other = int(random.integers(len(self)))
            array, share = self.change.mixed(array, self.change.changed(self._decoded(other), random), random)
            found |= {"mixed_labels": self.labels[other], "mixed_shares": np.float32(share)}
        return found | self.processor.encoded(array)

    def _decoded(self, row: int) -> np.ndarray:
        found = self._kept.get(row)
        if found is None:
            found = self.processor.decoded(self.images[row]["image"])
            if self._bytes + found.nbytes <= KEPT:
                self._kept[row] = found
                self._bytes += found.nbytes
        return found
