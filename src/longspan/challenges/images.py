"""Image: the class of an image, read pixel by pixel.

The text of an image is its 1,024 grey levels from 0 to 255, row by row, separated by spaces.

Source: Tay et al. 2021 (https://arxiv.org/abs/2011.04006), with CIFAR-10 (Krizhevsky 2009). Grey levels are the luma of
ITU-R 601-2, rounded, as Pillow's mode "L" has them. Images of another size are scaled to 32 x 32, whatever their shape,
and counted in `about.json`.

Deviation: The published code holds out the last tenth of the training images for validation. Here a tenth is drawn from
each class.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longspan.challenges.base import Challenge, Data
from longspan.challenges.class_folders import ClassFolders
from longspan.data.columns.pictures import Picture
from longspan.data.sources.formats.folders import DocumentFile

SIDE = 32
#: Larger images are scaled down to this side first, in proportion, which saves memory.
_LARGEST = 1_024


class Images(Challenge):
    """Images of a folder."""

    name = "image"
    description = "Class of a grey image of 32 x 32 pixels, read pixel by pixel, such as CIFAR-10 (10 classes)."
    needs = "a folder with train/ and test/, each with one sub-folder of images per class, such as CIFAR-10"
    length = SIDE * SIDE

    def open(self, given: Path | None, seed: int, sizes: Mapping[str, int]) -> Data:
        assert given is not None
        return _Pictures(self, given, seed, sizes, Picture)


class _Pictures(ClassFolders):
    resized = 0

    def text(self, file: DocumentFile) -> str:
        from PIL import Image

        from longspan.data.images.decoding import decoded

        grey = decoded({"path": file.path, "bytes": None}, "grey", _LARGEST)[:, :, 0]
        if grey.shape != (SIDE, SIDE):
            self.resized += 1
            image = Image.fromarray(grey).resize((SIDE, SIDE), Image.Resampling.BICUBIC, reducing_gap=3.0)
            return " ".join(map(str, image.tobytes()))
        return " ".join(map(str, grey.tobytes()))

    def facts(self) -> dict[str, Any]:
        return {"resized": self.resized}
