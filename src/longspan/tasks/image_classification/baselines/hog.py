"""Logistic regression on histograms of gradients: `Hog`."""

import math

import numpy as np

from longspan.tasks.image_classification.baselines._logistic import LogisticBaseline

#: Pixels on each side of a cell, and directions of gradients without their sign, as Dalal and Triggs 2005 count them.
CELL, DIRECTIONS = 4, 9
_AT_ONCE = 2048


class Hog(LogisticBaseline):
    """Histograms of oriented gradients with logistic regression."""

    def features(self, pixels: np.ndarray) -> np.ndarray:
        parts = [histograms(pixels[start : start + _AT_ONCE]) for start in range(0, len(pixels), _AT_ONCE)]
        return np.concatenate(parts)


def histograms(pixels: np.ndarray) -> np.ndarray:
    """Return histograms of gradients of images (n, side, side, channels), (n, f) float32.

    Those of each 2 x 2 cells are divided by their norm (Dalal and Triggs 2005, with the gradient of the mean of
    channels and each pixel in one cell). Pixels beyond the last full cell are left out.
    """
    grey = np.pad(pixels.mean(3, dtype=np.float32) / 255, ((0, 0), (1, 1), (1, 1)), mode="edge")
    down, right = grey[:, 2:, 1:-1] - grey[:, :-2, 1:-1], grey[:, 1:-1, 2:] - grey[:, 1:-1, :-2]
    size = np.hypot(down, right)
    place = (np.arctan2(down, right) % math.pi) * (DIRECTIONS / math.pi)
    lower = np.floor(place)
    rest = (place - lower)[..., None]
    # Each gradient counts for the two nearest directions.
    table = np.eye(DIRECTIONS, dtype=np.float32)
    shares = (1 - rest) * table[lower.astype(int) % DIRECTIONS] + rest * table[(lower.astype(int) + 1) % DIRECTIONS]
    cells = max(1, pixels.shape[1] // CELL)
    high = min(CELL, pixels.shape[1])
    weighted = (size[..., None] * shares)[:, : cells * high, : cells * high]
    counts = weighted.reshape(len(pixels), cells, high, cells, high, DIRECTIONS).sum((2, 4))
    if cells == 1:
        blocks = counts
    else:
        corners = [counts[:, row : cells - 1 + row, column : cells - 1 + column] for row in (0, 1) for column in (0, 1)]
        blocks = np.concatenate(corners, -1)
    norms = np.sqrt(np.square(blocks).sum(-1, keepdims=True) + 1e-4)
    found: np.ndarray = (blocks / norms).reshape(len(pixels), -1).astype(np.float32)
    return found
