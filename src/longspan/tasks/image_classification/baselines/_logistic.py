"""Logistic regression over features of images: `LogisticBaseline`."""

import abc
import math
import warnings
from typing import Any, ClassVar

import numpy as np
import torch

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
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        found = images(recipe)
        features = {split: self.features(pixels) for split, pixels in found.pixels.items()}
        mean, deviation = features["train"].mean(0), features["train"].std(0) + 1e-6
        features = {split: (one - mean) / deviation for split, one in features.items()}
        classes, targets = len(found.config.id2label), found.targets["train"].numpy()
        best: tuple[float, dict[str, Any], float] | None = None
        for strength in STRENGTHS:
            with warnings.catch_warnings():
                # Almost solved is good enough: validation chooses among what there is.
                warnings.simplefilter("ignore", ConvergenceWarning)
                model = LogisticRegression(C=strength, max_iter=200).fit(features["train"], targets)
            logits = {}
            for split in found.held_out():
                odds = model.decision_function(features[split])
                both = np.stack((-odds / 2, odds / 2), 1) if odds.ndim == 1 else odds
                # Classes that training lacks never win.
                every = np.full((len(both), classes), -math.log(1e9))
                every[:, model.classes_] = both
                logits[split] = torch.from_numpy(every)
            loss = found.task.score(logits["validation"].float(), found.targets["validation"], found.config).loss
            if best is None or loss < best[0]:
                best = loss, logits, strength
        assert best is not None
        parameters = (features["train"].shape[1] + 1) * classes
        return found.fitted(best[1], {"C": best[2]}, parameters)
