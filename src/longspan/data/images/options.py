"""The settings of images: `ImageData`."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

from longspan.data.config import SourceData
from longspan.options import Range, option

if TYPE_CHECKING:
    from longspan.data.images.augmentation import Augmentation


@dataclass(frozen=True)
class ImageData(SourceData):
    """Images: where they are, which sequences they become, and their augmentation in training."""

    image_column: str = option(
        "image",
        "column with the images: paths, absolute or relative to the table's folder; in memory, in JSON and in parquet "
        'also arrays, images of Pillow, or objects with "path" or "bytes". In a folder with one sub-folder per '
        "class, each image file is an image.",
    )
    colour: Literal["rgb", "grey"] = option("rgb", '"rgb", or "grey" for grey levels')
    max_side: int = option(
        64,
        "largest height and width in pixels. Larger images are scaled down in proportion; smaller ones stay as they "
        "are.",
        Range(1, 1 << 14),
    )
    patch_size: int = option(
        4, "height and width of a patch in pixels. 1 makes each pixel a position of the sequence.", Range(1, 1 << 10)
    )
    scan: Literal["rows", "both", "hilbert"] = option(
        "rows",
        'order of the patches: "rows", "both" (rows, then all of them again in reverse) or "hilbert" (a Hilbert '
        "curve, on which neighbours are neighbours in the image)",
    )
    flip: bool | Literal["auto"] = option(
        False,
        'augmentation: whether half of the images are mirrored, left to right. "auto" means yes, unless a linear model '
        "predicts validation images worse with it, as of digits. This and the next four apply to training alone, and "
        "are drawn anew in each epoch.",
    )
    shift: int = option(
        0,
        "augmentation: largest shift in each direction, in pixels. The gap shows the mirrored edge.",
        Range(0, 1 << 14),
    )
    crop: float = option(
        1.0,
        "augmentation: smallest share of the area that a random crop keeps, scaled to the size of the image; 1 for no "
        "crops",
        Range(above=0, most=1),
    )
    mixup: float = option(
        0.0,
        "augmentation: parameter of the Beta distribution from which the share is drawn of another image that is "
        "mixed in, with its label; 0 for none. 0.2 is usual.",
        Range(0, below=1e6),
    )
    warp: float = option(
        0.0,
        "augmentation: how far images are turned, in radians, and sheared, stretched or shrunk in each direction, as a "
        "share, at most. It grows over 20 epochs, as variety slows down short training. Gaps show the mirrored edge. "
        "With flip=auto, only images that are not mirrored are warped.",
        Range(0, 1),
    )

    def decided(self, flip: bool) -> Self:
        """Return these settings with a decision in place of flip="auto"."""
        return replace(self, flip=flip, warp=0.0 if flip else self.warp)

    @property
    def augmentation(self) -> "Augmentation":
        """Changes of images in training."""
        from longspan.data.images.augmentation import Augmentation

        return Augmentation(bool(self.flip), self.shift, self.crop, self.mixup, self.warp)
