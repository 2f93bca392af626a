"""Logistic regression on pixels: `Pixels`."""

import numpy as np

from longspan.tasks.image_classification.baselines._logistic import LogisticBaseline


class Pixels(LogisticBaseline):
    """Logistic regression on pixels of images scaled to one size."""

    def features(self, pixels: np.ndarray) -> np.ndarray:
        return pixels.reshape(len(pixels), -1).astype(np.float32) / 255
