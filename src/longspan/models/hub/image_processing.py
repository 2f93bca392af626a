"""Images in pipelines of transformers: `LongspanImageProcessor`, `LongspanImagePipeline`."""

import base64
import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from transformers import ImageClassificationPipeline
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor
from transformers.utils import logging

from longspan.errors import check_choice
from longspan.machine.imports import require
from longspan.models.embeddings.patches import COORDINATES, PIXELS
from longspan.ops.images import CHANNELS, ORDERS, image_of, pixels, sequence
from longspan.options import Range, check_number

if TYPE_CHECKING:
    from PIL import Image

logger = logging.get_logger(__name__)


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
        require("PIL", "reading images")
        from PIL import Image

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


class LongspanImagePipeline(ImageClassificationPipeline):
    """The pipeline "image-classification", which gives `LongspanImageProcessor` images as they are in their file.

    transformers' own converts them to RGB before. Transparent pixels show their colour, and images of 16 bits turn
    white. Other image processors get what they always get.
    """

    def preprocess(self, image: Any, timeout: float | None = None) -> Any:
        from PIL import Image

        processor = self.image_processor
        if isinstance(processor, LongspanImageProcessor) and isinstance(image, str | Image.Image):
            opened = image if isinstance(image, Image.Image) else _opened(image)
            if opened is not None:
                image = pixels(opened, processor.colour, processor.max_side)
        return super().preprocess(image, timeout)


def _opened(source: str) -> "Image.Image | None":
    """Return the image in a file, or in base64; None for one at an address, which transformers fetches."""
    if source.startswith(("http://", "https://")):
        logger.warning_once(
            "transformers converts images at addresses to RGB. If they are transparent or have 16 bits, save them, and "
            "give their paths."
        )
        return None
    from PIL import Image

    # pathlib raises for base64, as the name is too long.
    if os.path.isfile(source):  # noqa: PTH113
        return Image.open(source)
    try:
        return Image.open(io.BytesIO(base64.b64decode(source.partition("base64,")[2] or source)))
    except (ValueError, OSError):
        # transformers says what is wrong.
        return None
