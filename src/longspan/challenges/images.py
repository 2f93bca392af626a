"""Image: the class of a small grey image, read pixel by pixel.

An image is 32 x 32 pixels, row by row, each a grey level from 0 to 255. Others are scaled. Source: Tay et al. 2021
(https://arxiv.org/abs/2011.04006), with CIFAR-10 (Krizhevsky 2009). Deviation: the tenth of the training images for
validation is drawn, with as many of each class; the paper takes the last tenth.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longspan.challenges.base import Challenge, Data
from longspan.challenges.classes import Labelled
from longspan.errors import UserError

SIDE = 32


class Images(Challenge):
    """Images with a label each, as grey levels."""

    name = "image"
    description = "Class of a grey image of 32 x 32, read pixel by pixel (10 classes for CIFAR-10)."
    needs = "a folder with train/ and test/, each with a sub-folder of images per class, such as CIFAR-10"
    length = SIDE * SIDE

    def open(self, given: Path | None, seed: int, sizes: Mapping[str, int]) -> Data:
        assert given is not None
        return _Pixels(given, seed, sizes)


class _Pixels(Labelled):
    def __init__(self, given: Path, seed: int, sizes: Mapping[str, int]) -> None:
        super().__init__(Images.name, given, seed, sizes, (".png", ".jpg", ".jpeg", ".webp", ".bmp"), self._levels)
        self._scaled = 0

    def _levels(self, path: Path) -> str:
        from PIL import Image

        from longspan.data.images.decoding import decoded
        from longspan.data.processor import Unreadable

        try:
            levels = decoded({"path": str(path), "bytes": None}, "grey", SIDE)[:, :, 0]
        except Unreadable as error:
            raise UserError(str(error)) from None
        if levels.shape != (SIDE, SIDE):
            self._scaled += 1
            levels = Image.fromarray(levels).resize((SIDE, SIDE))
        return written(levels)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"scaled": self._scaled}


def written(levels: Any) -> str:
    """Return grey levels, (32, 32) from 0 to 255, as text: separated by spaces, row by row."""
    import numpy as np

    return " ".join(map(str, np.asarray(levels).reshape(-1).tolist()))
