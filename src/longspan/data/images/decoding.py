"""Reading images as pixels: `decoded`."""

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.processor import Unreadable
from longspan.errors import first_line
from longspan.machine.imports import require
from longspan.ops.images import pixels

#: Formats that are opened: others may start programs, as EPS does, or are no raster images.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
#: More pixels than in any photograph are taken for an attempt to fill the memory, as in Pillow.
MOST_PIXELS = 89_478_485


def decoded(picture: Mapping[str, Any], colour: str, max_side: int) -> np.ndarray:
    """Return a picture as `longspan.ops.images.pixels` does, (h, w, channels) uint8.

    Args:
        picture: A value of the column `longspan.data.columns.pictures.Picture`.
        colour: "rgb" or "grey".
        max_side: The largest height and width.

    Raises:
        Unreadable: The file is missing, damaged, truncated, of another format, animated or too large.
    """
    require("PIL", "reading images")
    from PIL import Image

    path, content = picture["path"], picture["bytes"]
    name = repr(path) if path else "the bytes"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path if content is None else io.BytesIO(content), formats=FORMATS) as image:
                frames = getattr(image, "n_frames", 1)
                # Files of phones and cameras have previews after the photograph.
                if frames > 1 and image.format != "MPO":
                    raise Unreadable(f"expected a single image in {name}, got {frames} frames; save one of them.")
                if image.width * image.height > MOST_PIXELS:
                    raise Image.DecompressionBombError
                return pixels(image, colour, max_side)
    except Unreadable:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Unreadable(
            f"expected an image of at most {MOST_PIXELS:,} pixels in {name}, got a larger one; scale it down."
        ) from None
    except Exception as error:
        # Damaged files lead to any error.
        if path is not None and not Path(path).exists():
            raise Unreadable(f"expected an image in {name}, got no such file; restore it.") from None
        reason = "of no such format" if isinstance(error, Image.UnidentifiedImageError) else first_line(error)[:100]
        raise Unreadable(
            f"expected an image such as PNG, JPEG or WebP in {name}, got something else ({reason}); restore it."
        ) from None
