"""Images as sequences of patches: `ImageProcessor`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset

from longspan.data.batches.drawn import AugmentedExamples, Index
from longspan.data.batches.streams import Stream
from longspan.data.columns.kinds import Column
from longspan.data.columns.pictures import Picture
from longspan.data.images.decoding import decoded
from longspan.data.images.options import ImageData
from longspan.data.processor import Encoded, Places, Processor
from longspan.models.embeddings.patches import COORDINATES, PIXELS
from longspan.models.hub.image_processing import LongspanImageProcessor
from longspan.ops.images import CHANNELS, png, sequence
from longspan.options import same_as


@dataclass(frozen=True)
class ImageProcessor(Processor):
    """Images as `LongspanImageProcessor` makes them, which reads the same file.

    See `longspan.data.images.options.ImageData` for the settings.
    """

    files = ("preprocessor_config.json",)

    colour: str = same_as(ImageData, "colour")
    max_side: int = same_as(ImageData, "max_side")
    patch_size: int = same_as(ImageData, "patch_size")
    scan: str = same_as(ImageData, "scan")
    #: What transformers looks for.
    image_processor_type: str = LongspanImageProcessor.__name__

    @property
    def streams(self) -> Mapping[str, Stream]:
        return {PIXELS: Stream("uint8", width=self.width, mask="attention_mask"), COORDINATES: Stream("int16", width=2)}

    @property
    def width(self) -> int:
        """Numbers in a patch."""
        return self.patch_size**2 * CHANNELS[self.colour]

    @classmethod
    def columns(cls, data: ImageData) -> Sequence[Column]:
        return [Picture("image", "image_column")]

    @classmethod
    def learned(cls, training: Dataset, data: ImageData) -> "ImageProcessor":
        return cls(data.colour, data.max_side, data.patch_size, data.scan)

    def encode(self, rows: Mapping[str, Sequence[Any]], data: ImageData) -> list[Encoded]:
        return [Encoded(self.encoded(self.decoded(picture))) for picture in rows["image"]]

    def decoded(self, picture: Mapping[str, Any]) -> np.ndarray:
        """Return a picture as pixels, (h, w, channels) uint8. Raises what `decoded` of the module raises."""
        return decoded(picture, self.colour, self.max_side)

    def encoded(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """Return pixels (h, w, channels) as streams."""
        return dict(zip((PIXELS, COORDINATES), sequence(array, self.patch_size, self.scan), strict=True))

    def places(self, values: Mapping[str, Any], encoded: Encoded, data: Any) -> Places:
        corners = np.asarray(encoded.streams[COORDINATES]).reshape(-1, 2) * self.patch_size
        spans = np.concatenate([corners, np.full_like(corners, self.patch_size)], 1)
        return Places("pixels", spans, image=png(self.decoded(values["image"])))

    def settings(self, model: Mapping[str, Any]) -> dict[str, Any]:
        return {"channels": self.width, "patch": self.patch_size, "side": -(-self.max_side // self.patch_size)}

    @property
    def slow(self) -> bool:
        return True

    def facts(self, data: Any) -> Any:
        # Not how training changes them, nor what the processor has.
        return []


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
        epoch, row = index
        change = self.change.in_epoch(epoch)
        array = change.changed(self._decoded(row), random)
        found: dict[str, Any] = {"labels": self.labels[row]}
        if change.mixup:
            other = int(random.integers(len(self)))
            array, share = change.mixed(array, change.changed(self._decoded(other), random), random)
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
