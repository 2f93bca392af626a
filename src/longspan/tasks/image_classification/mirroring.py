"""Mirrored images in training: whether they are of the same class, as of animals, or not, as of digits."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.data.images.augmentation import resized
from longspan.machine.printing import note
from longspan.tasks.base.linear import fit_linear
from longspan.tasks.image_classification.baselines.hog import histograms

#: Training and validation images that are read, their side in pixels, and penalties that are tried.
TRAIN, HELD_OUT, SIDE, PENALTIES = 4000, 1000, 16, (1e-2, 1e-3, 1e-4)


def mirrored_suit(
    train: Sequence[np.ndarray],
    labels: Tensor,
    held_out: Sequence[np.ndarray],
    truth: Tensor,
    *,
    classes: int,
) -> bool:
    """Whether training images may be mirrored, left to right, with a note about it.

    A linear model of histograms of gradients is trained with and without mirrored images. They do not suit if they
    raise its loss on validation images by more than two standard errors.

    Args:
        train: Training images (h, w, c) uint8.
        labels: Their classes.
        held_out: Validation images.
        truth: Their classes.
        classes: Number of classes.
    """
    plain, flipped, held = (_features(images) for images in (train, [one[:, ::-1] for one in train], held_out))
    losses = []
    for features, given in ((plain, labels), (torch.cat((plain, flipped)), torch.cat((labels, labels)))):
        found = fit_linear(features, given, held, truth, classes, PENALTIES)
        losses.append(cross_entropy(held @ found.weight + found.bias, truth, reduction="none"))
    raised = losses[1] - losses[0]
    suits = len(raised) < 2 or float(raised.mean()) <= 2 * float(raised.std()) / len(raised) ** 0.5
    if suits:
        note("images are mirrored in training (data.flip=true)")
    else:
        note("images are not mirrored in training: validation images get worse with it (data.flip=false)")
    return suits


def spread(count: int, most: int) -> list[int]:
    """At most `most` numbers below `count`, evenly spread."""
    return np.linspace(0, count - 1, min(count, most)).astype(int).tolist()


def _features(images: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(histograms(np.stack([resized(one, SIDE, SIDE) for one in images])))
