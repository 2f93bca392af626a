"""A column of images: `Picture`."""

import hashlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from longspan.data.columns.media import Media
from longspan.data.columns.values import WrongColumn, described
from longspan.machine.imports import require


@dataclass(frozen=True)
class Picture(Media):
    """An image: a path, an array, or the bytes of a file.

    A cell is a path, an array as `longspan.ops.images.image_of` takes it, an image of Pillow (in memory), or an object:
    {"path"}, {"bytes"} or {"array"}, as in data sets of the Hub. The value has the keys "path" and "bytes", one of
    which is None. Arrays and images of Pillow become the bytes of a file with the same pixels.
    """

    kind = "an image: a path, an array, or an object with either"
    dtype: ClassVar[Any] = {"path": "string", "bytes": "large_binary"}
    suffixes = frozenset((".png", ".jpg", ".jpeg", ".jpe", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm"))
    files = "images"

    def given(self, cell: Any) -> Any:
        module = sys.modules.get("PIL.Image")
        image = isinstance(cell, module.Image) if module is not None else False
        if not image and getattr(cell, "ndim", 0) < 2:
            return cell
        require("PIL", "reading images")
        try:
            content, problem = _file(cell), None
        except (ValueError, TypeError, OSError) as error:
            content, problem = None, str(error)
        return {"path": None, "bytes": content, "problem": problem}

    def cell(self, cells: Sequence[Any]) -> Any:
        return None if cells[0] is None else self._as_object(cells[0])

    def parse(self, cell: Any, folder: Path) -> dict[str, Any] | None:
        path, content, array, problem = (cell.get(name) for name in ("path", "bytes", "array", "problem"))
        if problem is not None:
            raise self._bad_cell(problem)
        if content is not None:
            if not len(content):
                raise self._bad_cell("an empty file")
            return {"path": None, "bytes": bytes(content)}
        if array is not None:
            import numpy as np

            if not isinstance(array, list | np.ndarray):
                raise WrongColumn

            require("PIL", "reading images")
            try:
                return {"path": None, "bytes": _file(np.asarray(array))}
            except ValueError as error:
                raise self._bad_cell(str(error) if len(str(error)) < 60 else described(array)) from None
        if path is None:
            return None
        found = super().parse(path, folder)
        return None if found is None else {"path": found, "bytes": None}

    def content(self, value: Any) -> bytes:
        """Return the hash of the file's bytes."""
        path, content = value["path"], value["bytes"]
        return super().content(path) if path is not None else hashlib.sha256(content).digest()

    def stored(self, value: Any) -> int:
        return 0 if value is None else len(value["bytes"] or b"")


#: Modes of TIFF files that PNG files lack, and modes of no file, with one that has the same pixels.
_TIFF = ("CMYK", "LAB", "PA", "YCbCr")
_OTHERS = {"RGBa": "RGBA", "RGBX": "RGB", "HSV": "RGB"}


def _file(given: Any) -> bytes:
    """Return an image or an array as the bytes of a file that is read as the same pixels."""
    from PIL import Image

    from longspan.ops.images import image_of, upright

    image = upright(given) if isinstance(given, Image.Image) else image_of(given)
    image = image.convert(_OTHERS.get(image.mode, image.mode))
    file = io.BytesIO()
    if image.mode in _TIFF:
        image.save(file, "TIFF")
    else:
        image.save(file, "PNG", compress_level=1)
    return file.getvalue()
