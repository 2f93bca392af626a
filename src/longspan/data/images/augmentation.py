"""Random changes of images for training, which their labels survive: `Augmentation`."""

import math
from dataclasses import dataclass, replace

import numpy as np

#: The least and the largest ratio of width to height of a crop, compared with that of the image (Szegedy et al. 2015).
_RATIO = 4 / 3
#: Epochs after which warps are as strong as they get: with few, variety slows learning down.
_GROWTH = 20


@dataclass(frozen=True)
class Augmentation:
    """Random changes of images; see `longspan.data.images.options.ImageData`."""

    flip: bool = False
    shift: int = 0
    crop: float = 1.0
    mixup: float = 0.0
    warp: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.flip or self.shift or self.crop < 1 or self.mixup or self.warp)

    def in_epoch(self, epoch: int) -> "Augmentation":
        """Return the changes of an epoch, from 0 up."""
        return replace(self, warp=self.warp * min(1, epoch / _GROWTH))

    def changed(self, array: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return an image (h, w, c) uint8, changed at random, of the same size."""
        if self.flip and random.random() < 0.5:
            array = array[:, ::-1]
        if self.warp:
            array = _warped(array, self.warp, random)
        if self.crop < 1:
            array = _cropped(array, self.crop, random)
        if self.shift:
            array = _shifted(array, self.shift, random)
        return array

    def mixed(self, array: np.ndarray, other: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, float]:
        """Return an image with another one mixed in, scaled to its size, and the share of that one (mixup)."""
        share = float(random.beta(self.mixup, self.mixup))
        other = resized(other, array.shape[0], array.shape[1])
        mixture = np.rint((1 - share) * array.astype(np.float32) + share * other.astype(np.float32))
        return mixture.astype(np.uint8), share


def resized(array: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return an image (h, w, c) uint8 of another size."""
    from PIL import Image

    if array.shape[:2] == (height, width):
        return array
    image = Image.fromarray(np.ascontiguousarray(array[:, :, 0] if array.shape[2] == 1 else array))
    found = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    return found.reshape(height, width, -1)


def _cropped(array: np.ndarray, least: float, random: np.random.Generator) -> np.ndarray:
    height, width = array.shape[:2]
    area, ratio = random.uniform(least, 1), math.exp(random.uniform(-1, 1) * math.log(_RATIO))
    high = min(height, max(1, round(height * math.sqrt(area / ratio))))
    wide = min(width, max(1, round(width * math.sqrt(area * ratio))))
    top, left = int(random.integers(0, height - high + 1)), int(random.integers(0, width - wide + 1))
    return resized(array[top : top + high, left : left + wide], height, width)


def _shifted(array: np.ndarray, most: int, random: np.random.Generator) -> np.ndarray:
    height, width = array.shape[:2]
    down, right = (int(random.integers(-most, most + 1)) for _ in range(2))
    rows, columns = _mirrored(height, np.arange(height) - down), _mirrored(width, np.arange(width) - right)
    return array[np.ix_(rows, columns)]


def _warped(array: np.ndarray, most: float, random: np.random.Generator) -> np.ndarray:
    from PIL import Image

    height, width, channels = array.shape
    turn, shear, high, wide = random.uniform(-most, most, 4).tolist()
    turned = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    matrix = turned @ np.array([[math.exp(wide), shear], [0, math.exp(high)]])
    middle = np.array([width, height]) / 2
    # No corner moves farther; interpolation reads the next pixel.
    gap = math.ceil((np.abs(matrix - np.eye(2)) @ middle).max()) + 1
    rows, columns = (_mirrored(side, np.arange(-gap, side + gap)) for side in (height, width))
    around = array[np.ix_(rows, columns)]
    x, y = (gap + middle - matrix @ middle).tolist()
    image = Image.fromarray(around[:, :, 0] if channels == 1 else around)
    given = (*matrix[0].tolist(), x, *matrix[1].tolist(), y)
    changed = image.transform((width, height), Image.Transform.AFFINE, given, Image.Resampling.BILINEAR)
    return np.asarray(changed).reshape(array.shape)


def _mirrored(length: int, places: np.ndarray) -> np.ndarray:
    """Rows or columns at places, some of them outside an image, whose edges are mirrored."""
    places = places % (2 * length)
    return np.minimum(places, 2 * length - 1 - places)
