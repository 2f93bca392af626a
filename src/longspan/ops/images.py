"""Images as arrays, and arrays as sequences of patches."""

import functools
import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from longspan.machine.imports import require

if TYPE_CHECKING:
    from PIL import Image

ORDERS = ("rows", "both", "hilbert")
"""Scan orders: rows from the top, the same and then in reverse, and a Hilbert curve."""
CHANNELS = {"rgb": 3, "grey": 1}
_MODES = {"rgb": "RGB", "grey": "L"}
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
_BITS_PER_SAMPLE = 258
"""Tag of TIFF files."""


def image_of(values: Any) -> "Image.Image":
    """Return an array as an image: (h, w), or (h, w, c) or (c, h, w) with 1, 3 or 4 channels.

    Integers are from 0 to 255, or to 65,535 with the type uint16. Booleans and floats are from 0 to 1.

    Raises:
        ValueError: It has another shape, or numbers out of range.
    """
    require("PIL", "reading images")
    from PIL import Image

    array = np.asarray(values)
    if array.dtype.kind not in "buif":
        raise ValueError(f"values of type {array.dtype}")
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        # Channels first, as in torchvision.
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if not array.size or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise ValueError(f"an array of shape {array.shape}")
    if array.dtype.kind in "bf":
        if not ((array >= 0) & (array <= 1)).all():
            raise ValueError("numbers outside 0 to 1")
        array = np.rint(array.astype(np.float64) * 255)
    elif array.dtype == np.uint16:
        array = array >> 8
    elif array.min() < 0 or array.max() > 255:
        raise ValueError("whole numbers outside 0 to 255")
    return Image.fromarray(np.ascontiguousarray(array, np.uint8))


def upright(image: "Image.Image") -> "Image.Image":
    """Return an image turned as its EXIF data say, with 8 bits for each number, in a mode that converts to RGBA.

    Of numbers with more bits, the upper 8 are kept. Whole numbers of 32 bits are taken for 16 bits, unless none is
    above 255. Floats are from 0 to 1.

    Raises:
        ValueError: Numbers are out of range.
    """
    from PIL import Image, ImageOps

    bits, image = _bits(image), ImageOps.exif_transpose(image)
    if image.mode == "La":
        return image.convert("LA")
    if image.mode not in _DEEP:
        return image
    array, transparent = np.asarray(image), image.info.get("transparency")
    if image.mode == "F":
        return image_of(array)
    array = array.astype(np.int64)
    bits = bits or (8 if array.max() <= 255 else 16)
    if array.min() < 0 or array.max() >= 1 << bits:
        raise ValueError(f"whole numbers outside 0 to {(1 << bits) - 1:,}")
    shown = array >> (bits - 8)
    return Image.fromarray(np.where(array == transparent, 255, shown).astype(np.uint8))


def _bits(image: "Image.Image") -> int:
    """Return the bits of an image's numbers, as its file says; 0 if they are whole numbers of 32 bits."""
    if image.format == "TIFF":
        bits = int(image.tag_v2.get(_BITS_PER_SAMPLE, (1,))[0])  # type: ignore[attr-defined]
        return bits if bits < 32 else 0
    # Pillow reads 16 bits of these as 32.
    return 0 if image.mode == "I" and image.format not in ("PNG", "PPM") else 16


def pixels(image: "Image.Image", colour: str, max_side: int) -> np.ndarray:
    """Return an image as (h, w, channels) uint8, turned as its EXIF data say and at most `max_side` high and wide.

    Larger ones are scaled down in proportion. What is transparent shows white. For more than 8 bits, see `upright`.

    Args:
        image: The image.
        colour: "rgb" for 3 channels, "grey" for 1.
        max_side: The largest height and width.

    Raises:
        ValueError: Its numbers are out of range.
    """
    from PIL import Image

    # JPEG files decode at a fraction of their size, which is faster.
    image.draft(None, (2 * max_side, 2 * max_side))
    image = upright(image)
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, "white")
        opaque.alpha_composite(image.convert("RGBA"))
        image = opaque
    elif image.mode == "LAB":
        # It has no conversion to grey levels.
        image = image.convert("RGB")
    image = image.convert(_MODES[colour])
    scale = max_side / max(image.size)
    if scale < 1:
        width, height = (max(1, round(scale * side)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
    array = np.asarray(image)
    return array.reshape(*array.shape[:2], CHANNELS[colour])


def png(array: np.ndarray) -> bytes:
    """Return an image (h, w, channels) uint8 as a PNG file."""
    file = io.BytesIO()
    image_of(array).save(file, "PNG")
    return file.getvalue()


def sequence(array: np.ndarray, patch: int, order: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the patches of an image in scan order, (t, patch * patch * c), and row and column of each, (t, 2) int16.

    Patches are `patch` high and wide, row by row, channels last. At the bottom and on the right, the pixels at the edge
    are repeated to fill the last ones.

    Args:
        array: (h, w, c).
        patch: The side of a patch, in pixels.
        order: One of `ORDERS`.
    """
    height, width, channels = array.shape
    rows, columns = -(-height // patch), -(-width // patch)
    array = np.pad(array, ((0, rows * patch - height), (0, columns * patch - width), (0, 0)), mode="edge")
    cut = array.reshape(rows, patch, columns, patch, channels).swapaxes(1, 2)
    places = scan(rows, columns, order)
    found: np.ndarray = cut[places[:, 0], places[:, 1]].reshape(len(places), -1)
    return found, places


def picture(patches: np.ndarray, places: np.ndarray, patch: int) -> np.ndarray:
    """Return the image (h, w, c), whole patches high and wide, of which `sequence` made patches and their places."""
    cut = patches.reshape(len(places), patch, patch, -1)
    rows, columns = places.max(0) + 1
    found = np.zeros((rows, columns, *cut.shape[1:]), cut.dtype)
    found[places[:, 0], places[:, 1]] = cut
    return found.swapaxes(1, 2).reshape(rows * patch, columns * patch, -1)


@functools.lru_cache(256)
def scan(rows: int, columns: int, order: str) -> np.ndarray:
    """Return row and column of each cell of a grid in scan order, (t, 2) int16, read-only.

    "hilbert" is the curve through the smallest square around the grid whose side is a power of 2, without the cells
    outside: neighbours in it are neighbours in the grid, except where it leaves the grid (Hilbert 1891).
    """
    cells = np.indices((rows, columns)).reshape(2, -1).T
    if order == "both":
        cells = np.concatenate((cells, cells[::-1]))
    elif order == "hilbert":
        cells = cells[np.argsort(_along_hilbert(cells[:, 0], cells[:, 1], max(rows, columns)), kind="stable")]
    found = cells.astype(np.int16)
    found.flags.writeable = False
    return found


def _along_hilbert(rows: np.ndarray, columns: np.ndarray, side: int) -> np.ndarray:
    """Distance of each cell along the curve."""
    x, y = columns.copy(), rows.copy()
    distance = np.zeros(len(x), np.int64)
    step = 1 << max(0, math.ceil(math.log2(side))) >> 1
    while step:
        right, below = (x & step) > 0, (y & step) > 0
        distance += step * step * ((3 * right) ^ below)
        # The quadrant's own curve is turned.
        x, y = x & (step - 1), y & (step - 1)
        flipped = ~below & right
        x, y = np.where(flipped, step - 1 - x, x), np.where(flipped, step - 1 - y, y)
        x, y = np.where(below, x, y), np.where(below, y, x)
        step >>= 1
    return distance
