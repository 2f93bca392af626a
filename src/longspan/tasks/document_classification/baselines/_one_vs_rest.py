"""Classes told apart one by one: what the baselines for single labels share."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def classes_against_the_rest(labels: Tensor, classes: int) -> list[np.ndarray]:
    """Return which documents, `(n,)` bool, have each class; with two classes, one model tells both, of the second."""
    numbers = labels.numpy()
    return [numbers == 1] if classes == 2 else [numbers == number for number in range(classes)]


def class_logits(log_odds: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Tensor]:
    """Return the logits of all classes, by split, from the log-odds of each of `classes_against_the_rest`.

    They are the log probabilities of each class against the rest, `(n, classes)` float32, so that their softmax is
    these probabilities divided by their sum.
    """
    found = {}
    for split in log_odds[0]:
        columns = [odds[split] for odds in log_odds]
        columns = [-columns[0], columns[0]] if len(columns) == 1 else columns
        found[split] = logsigmoid(torch.from_numpy(np.stack(columns, -1))).float()
    return found
