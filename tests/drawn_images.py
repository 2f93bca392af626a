"""Small images of shapes, a folder per class, for tests."""

from pathlib import Path

import numpy as np
from PIL import Image

SHAPES = ("box", "cross", "ring")


def shape(name: str, height: int, width: int, random: np.random.Generator) -> np.ndarray:
    """Return a bright shape on a dark, noisy ground, (height, width, 3) uint8; both at least 8."""
    pixels = random.integers(0, 60, (height, width, 3))
    row, column = (int(random.integers(3, side - 4)) for side in (height, width))
    mask = np.zeros((7, 7), bool)
    if name == "box":
        mask[1:6, 1:6] = True
    elif name == "cross":
        mask[3, :] = mask[:, 3] = True
    else:
        mask[[0, -1], :] = mask[:, [0, -1]] = True
    pixels[row - 3 : row + 4, column - 3 : column + 4][mask] = random.integers(160, 256, 3)
    return pixels.astype(np.uint8)


def write_shapes(folder: Path, each: int = 12, seed: int = 0) -> Path:
    """Write `each` images of each class, of several sizes, as PNG and WebP, and return the folder."""
    random = np.random.default_rng(seed)
    for name in SHAPES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            height, width = random.integers(8, 13, 2)
            image = Image.fromarray(shape(name, height, width, random))
            image.save(folder / name / f"{number}.{'webp' if number % 3 == 2 else 'png'}", lossless=True)
    return folder
