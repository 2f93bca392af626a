"""Logistic regression over features of images: `LogisticBaseline`."""

import abc
import math
from typing import ClassVar

import numpy as np
import torch

from longspan.tasks.base.baselines.bags import decisions
from longspan.tasks.base.classes import ClassificationScores
from longspan.tasks.base.task import Baseline, Fitted, Recipe
from longspan.tasks.image_classification.baselines._images import images

#: Values of scikit-learn's C that validation chooses from, inverse weights of the squared norm.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)


class LogisticBaseline(Baseline[ClassificationScores]):
    """Logistic regression over standardised features, with a penalty that validation chooses."""

    packages: ClassVar[tuple[str, ...]] = ("sklearn",)

    @abc.abstractmethod
    def features(self, pixels: np.ndarray) -> np.ndarray:
        """Return the features of images (n, side, side, channels) uint8, (n, f) float32."""

    def fit(self, recipe: Recipe) -> Fitted[ClassificationScores]:
        from sklearn.linear_model import LogisticRegression

        found = images(recipe)
        features = {split: self.features(pixels) for split, pixels in found.pixels.items()}
        mean, deviation = features["train"].mean(0), features["train"].std(0) + 1e-6
        features = {split: (one - mean) / deviation for split, one in features.items()}
        classes, targets = len(found.config.id2label), found.targets["train"].numpy()
        parameters = (features["train"].shape[1] + 1) * classes
        tried = []
        for strength in STRENGTHS:
            model = LogisticRegression(C=strength, max_iter=200)
            logits = {}
            for split, odds in decisions(model, features, targets).items():
                both = np.stack((-odds / 2, odds / 2), 1) if odds.ndim == 1 else odds
                # Classes that training lacks never win.
                every = np.full((len(both), classes), -math.log(1e9))
                every[:, model.classes_] = both
                logits[split] = torch.from_numpy(every)
            tried.append(found.fitted(logits, {"C": strength}, parameters))
        return min(tried, key=lambda fitted: fitted.scores["validation"].loss)
