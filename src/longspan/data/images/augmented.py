"""Training images that are changed again in each epoch: `AugmentedImages`."""

from typing import Any

import numpy as np
from datasets import Dataset

from longspan.data.batches.drawn import AugmentedExamples, Index
from longspan.data.images.options import ImageData
from longspan.data.images.processor import ImageProcessor

#: Bytes of decoded images that are kept; the others are decoded again in each epoch.
KEPT = 1 << 28


class AugmentedImages(AugmentedExamples):
    """Images as sequences. With mixup, `mixed_labels` and `mixed_shares` say what is mixed in."""

    processor: ImageProcessor
    data: ImageData

    def __init__(self, rows: Dataset, processor: ImageProcessor, data: ImageData, seed: int) -> None:
        super().__init__(rows, processor, data, seed)
        self.images, self.labels = rows.select_columns(["image"]), np.asarray(rows["labels"][:])
        self._kept: dict[int, np.ndarray] = {}
        self._bytes = 0

    def draw(self, index: Index, random: np.random.Generator) -> dict[str, Any]:
        row = index[1]
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
