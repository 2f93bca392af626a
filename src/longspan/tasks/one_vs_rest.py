"""Classes told apart one by one: what the baselines of single labels share."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from longspan.tasks.bags import Candidate, Documents, Matrices, log_odds


def classes_against_the_rest(labels: Tensor, classes: int) -> list[np.ndarray]:
    """Return which documents, `(n,)` bool, have each class; with two classes, one model tells both, of the second."""
    numbers = labels.numpy()
    return [numbers == 1] if classes == 2 else [numbers == number for number in range(classes)]


def candidates(
    name: str, features: Matrices, documents: Documents, strengths: Sequence[float], seed: int, *, dense: bool = False
) -> Iterator[Candidate]:
    """Yield a logistic regression over features for each of several strengths.

    Args:
        name: What the features are called.
        features: By split.
        documents: What has them, and their classes.
        strengths: What scikit-learn's C may be.
        seed: See `longspan.tasks.bags.log_odds`, as for `dense`.
        dense: Likewise.
    """
    wanted = classes_against_the_rest(documents.targets["train"], documents.config.num_labels)
    parameters = (features["train"].shape[1] + 1) * len(wanted)
    for strength in strengths:
        odds = [log_odds(features, truth, strength, seed, dense=dense) for truth in wanted]
        yield Candidate({"features": name, "C": strength}, class_logits(odds), parameters)


def class_logits(all_odds: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Tensor]:
    """Return the logits of all classes, by split, from the log-odds of each of `classes_against_the_rest`.

    They are the log probabilities of each class against the rest, `(n, classes)` float32, so that their softmax is
    these probabilities divided by their sum.
    """
    found = {}
    for split in all_odds[0]:
        columns = [odds[split] for odds in all_odds]
        columns = [-columns[0], columns[0]] if len(columns) == 1 else columns
        found[split] = logsigmoid(torch.from_numpy(np.stack(columns, -1))).float()
    return found
