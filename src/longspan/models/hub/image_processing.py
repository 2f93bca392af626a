"""The image processor of transformers' pipelines: `LongspanImageProcessor`."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

from longspan.errors import check_choice
from longspan.models.embeddings.patches import COORDINATES, PIXELS
from longspan.ops.images import CHANNELS, ORDERS, image_of, pixels, sequence
from longspan.options import Range, check_number


class LongspanImageProcessor(BaseImageProcessor):
    """Images as the sequences that `LongspanForImageClassification` reads.

    A call takes an image of Pillow or an array, or a list of these, see `longspan.ops.images.image_of`. It returns
    `pixel_values` (b, t, n), the patches in scan order, from 0 to 255, `coordinates` (b, t, 2), their row and column,
    and `attention_mask` (b, t). Images of several sizes are padded at the end.

    Args:
        colour: "rgb" or "grey".
        max_side: Largest height and width in pixels; larger images are scaled down.
        patch_size: Height and width of a patch in pixels.
        scan: Order of the patches: "rows", "both" or "hilbert".

    Raises:
        UserError: An unknown colour or scan, or a size out of range.
    """

    model_input_names: ClassVar[list[str]] = [PIXELS, COORDINATES, "attention_mask"]

    def __init__(
        self, colour: str = "rgb", max_side: int = 64, patch_size: int = 4, scan: str = "rows", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_choice("colour", colour, CHANNELS)
        check_choice("scan", scan, ORDERS)
        check_number("max_side", max_side, int, Range(1, 1 << 14))
        check_number("patch_size", patch_size, int, Range(1, 1 << 10))
        self.colour, self.max_side, self.patch_size, self.scan = colour, max_side, patch_size, scan

    def preprocess(self, images: Any, return_tensors: str | None = None, **kwargs: Any) -> BatchFeature:
        """Return images as sequences; see the class."""
        several = images if isinstance(images, Sequence) else [images]
        read = [one if isinstance(one, Image.Image) else image_of(one) for one in several]
        found = [sequence(pixels(one, self.colour, self.max_side), self.patch_size, self.scan) for one in read]
        longest = max(len(places) for _, places in found)
        batch = {
            name: np.stack([np.pad(one.astype(np.int64), ((0, longest - len(one)), (0, 0))) for one in streams])
            for name, streams in zip((PIXELS, COORDINATES), zip(*found, strict=True), strict=True)
        }
        lengths = np.array([len(places) for _, places in found])
        batch["attention_mask"] = (np.arange(longest) < lengths[:, None]).astype(np.int64)
        return BatchFeature(batch, tensor_type=return_tensors)
