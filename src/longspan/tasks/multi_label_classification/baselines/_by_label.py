"""Labels told apart one by one: what the baselines for several labels share."""

import copy

import numpy as np
import torch
from torch import Tensor

from longspan.models import LongspanConfig
from longspan.tasks.base.baselines.bags import BagBaseline, Matrices, log_odds
from longspan.tasks.multi_label_classification.scores import MultiLabelScores, best_thresholds


class LabelThresholds:
    """Thresholds of labels, chosen on the validation split, as those of models are."""

    def decided(self, config: LongspanConfig, outputs: Tensor, targets: Tensor) -> LongspanConfig:
        found = copy.deepcopy(config)
        found.head.thresholds = best_thresholds(outputs, targets)
        return found


class LabelBaseline(LabelThresholds, BagBaseline[MultiLabelScores]):
    """A linear model by label."""


def label_outputs(
    features: Matrices, truth: np.ndarray, strength: float, seed: int, *, dense: bool = False
) -> dict[str, Tensor]:
    """Return the log-odds of each label by split, `(n, labels)`; arguments as of `bags.log_odds`.

    Args:
        truth: `(n, labels)` bool, for the training documents.
    """
    labels = [log_odds(features, has, strength, seed, dense=dense) for has in truth.T]
    return {split: torch.from_numpy(np.stack([odds[split] for odds in labels], -1)) for split in labels[0]}
