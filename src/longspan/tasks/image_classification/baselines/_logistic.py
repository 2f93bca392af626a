"""Logistic regression over features of images: `LogisticBaseline`."""

import abc

import numpy as np
import torch

from longspan.tasks.base.classes import ClassificationScores
from longspan.tasks.base.linear import fit_standardised
from longspan.tasks.base.task import Baseline, Fitted, Recipe
from longspan.tasks.image_classification.baselines._images import images


class LogisticBaseline(Baseline[ClassificationScores]):
    """Logistic regression over standardised features, with a penalty that validation chooses."""

    @abc.abstractmethod
    def features(self, pixels: np.ndarray) -> np.ndarray:
        """Return the features of images (n, side, side, channels) uint8, (n, f) float32."""

    def fit(self, recipe: Recipe) -> Fitted[ClassificationScores]:
        found = images(recipe)
        features = {split: torch.from_numpy(self.features(pixels)) for split, pixels in found.pixels.items()}
        model = fit_standardised(features, found.targets, len(found.config.id2label))
        logits = {split: features[split] @ model.weight + model.bias for split in found.held_out()}
        return found.fitted(logits, {"penalty": model.penalty}, model.weight.numel() + model.bias.numel())
