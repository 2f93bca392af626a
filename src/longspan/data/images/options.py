"""The settings of images: `ImageData`."""

from dataclasses import dataclass
from typing import Literal

from longspan.data.config import SourceData
from longspan.data.images.augmentation import Augmentation
from longspan.errors import UserError


@dataclass(frozen=True)
class ImageData(SourceData):
    """Images: where they are, which sequences they become, and their augmentation in training.

    Attributes:
        image_column: The column with the images: paths, absolute or relative to the table's folder; in memory, in JSON
            and in parquet also arrays, images of Pillow, or objects with "path" or "bytes". In a folder with one
            sub-folder per class, each image file is an image.
        colour: "rgb", or "grey" for grey levels.
        max_side: Largest height and width in pixels. Larger images are scaled down in proportion; smaller ones stay as
            they are.
        patch_size: Height and width of a patch in pixels. 1 makes each pixel a position of the sequence.
        scan: Order of the patches: "rows", "both" (rows, then all of them again in reverse) or "hilbert" (a Hilbert
            curve, on which neighbours are neighbours in the image).
        flip: Augmentation: whether half of the images are mirrored, left to right. This and the next three apply to
            training alone, and are drawn anew in each epoch.
        shift: Augmentation: largest shift in each direction, in pixels. The gap shows the mirrored edge.
        crop: Augmentation: smallest share of the area that a random crop keeps, scaled to the size of the image; 1 for
            no crops.
        mixup: Augmentation: parameter of the Beta distribution from which the share is drawn of another image that is
            mixed in, with its label; 0 for none. 0.2 is usual.
    """

    image_column: str = "image"
    colour: Literal["rgb", "grey"] = "rgb"
    max_side: int = 64
    patch_size: int = 4
    scan: Literal["rows", "both", "hilbert"] = "rows"
    flip: bool = False
    shift: int = 0
    crop: float = 1.0
    mixup: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least, most in (("max_side", 1, 1 << 14), ("patch_size", 1, 1 << 10), ("shift", 0, 1 << 14)):
            if not least <= getattr(self, name) <= most:
                raise UserError(f"data.{name} must be from {least} to {most}, got {getattr(self, name)}; change it.")
        if not 0 < self.crop <= 1:
            raise UserError(f"data.crop must be above 0 and at most 1 (no crops), got {self.crop}; change it.")
        if not 0 <= self.mixup < 1e6:
            raise UserError(f"data.mixup must be at least 0 (none) and finite, got {self.mixup}; change it.")

    @property
    def augmentation(self) -> Augmentation:
        """How images are changed in training."""
        return Augmentation(self.flip, self.shift, self.crop, self.mixup)
