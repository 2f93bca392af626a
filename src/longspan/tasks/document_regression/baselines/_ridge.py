"""Ridge regression on numbers in the unit of the data: what the baselines for numbers share."""

from typing import Any

import torch
from torch import Tensor

from longspan.tasks.base.baselines.bags import Documents, Matrices


def ridge_outputs(features: Matrices, documents: Documents, penalty: float, **settings: Any) -> dict[str, Tensor]:
    """Fit a ridge regression to standardised targets, and return what it predicts of the splits that are held out.

    Args:
        features: Those of each split.
        documents: Whose targets they are.
        penalty: The weight of the squared norm.
        settings: More arguments of scikit-learn's `Ridge`.

    Returns:
        By split, `(n, 1)` float64.
    """
    from sklearn.linear_model import Ridge

    mean, scale = float(documents.config.head.target_mean), float(documents.config.head.target_scale)
    wanted = (documents.targets["train"].double().numpy() - mean) / scale
    model = Ridge(alpha=penalty, **settings).fit(features["train"], wanted)
    return {
        split: torch.from_numpy(model.predict(matrix) * scale + mean).unsqueeze(-1)
        for split, matrix in features.items()
        if split != "train"
    }
