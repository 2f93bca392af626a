"""Scores of a classifier, through torchmetrics."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional import classification as scores

from longspan.errors import UserError

#: Bins of equal width in which confidence is compared with accuracy.
CALIBRATION_BINS = 15


def metrics(logits: Tensor | np.ndarray, labels: Tensor | np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """Score logits against labels.

    Args:
        logits: `(n, c)`, any float type.
        labels: `(n,)`, class numbers below `c`.
        names: The `c` class names, in the order of the columns; at least two.

    Returns:
        `accuracy`; `macro_f1`, the mean of F1 over the classes that occur in the labels or the predictions;
        `per_class`, for each name its `precision`, `recall`, `f1` and `support` (number of labels), 0 where undefined;
        `calibration_error`, the expected calibration error of the top class over `CALIBRATION_BINS` bins (Guo et al.
        2017); `reliability`, for each bin that holds anything its `from`, `to`, `count`, `confidence` and `accuracy`;
        `confusion`, rows true and columns predicted, counts. All of it goes into JSON as it is.

    Raises:
        UserError: There is nothing to score, or the logits are not finite, as after a training that diverged.
    """
    logits, labels = torch.as_tensor(logits).float().cpu(), torch.as_tensor(labels).long().cpu()
    if logits.ndim != 2 or logits.shape != (len(labels), len(names)):
        raise ValueError(
            f"expected logits of shape ({len(labels)}, {len(names)}) for {len(labels)} labels and {len(names)} names, "
            f"but got {tuple(logits.shape)}."
        )
    if not len(labels):
        raise UserError("expected at least one labelled document to score, but got none.")
    broken = int((~logits.isfinite().all(-1)).sum())
    if broken:
        raise UserError(
            f"the model's outputs are not finite for {broken} of {len(labels)} documents, as after a training that "
            "diverged: lower training.learning_rate."
        )
    classes = len(names)
    probabilities = logits.softmax(-1)
    predicted = probabilities.argmax(-1)
    counts = scores.multiclass_stat_scores(predicted, labels, classes, average="none")
    precision, recall, f1 = (
        score(predicted, labels, classes, average="none").tolist()
        for score in (scores.multiclass_precision, scores.multiclass_recall, scores.multiclass_f1_score)
    )
    # torchmetrics gives a confidence of exactly 1 a bin of its own, and takes softmax again of anything above 1.
    inside = probabilities.clamp(max=1 - torch.finfo(torch.float32).eps)
    return {
        "accuracy": float(scores.multiclass_accuracy(predicted, labels, classes, average="micro")),
        "macro_f1": float(scores.multiclass_f1_score(predicted, labels, classes, average="macro")),
        "per_class": {
            name: {"precision": precision[i], "recall": recall[i], "f1": f1[i], "support": int(counts[i, 4])}
            for i, name in enumerate(names)
        },
        "calibration_error": float(scores.multiclass_calibration_error(inside, labels, classes, CALIBRATION_BINS)),
        "reliability": _reliability(inside, labels),
        "confusion": scores.multiclass_confusion_matrix(predicted, labels, classes).tolist(),
    }


def _reliability(probabilities: Tensor, labels: Tensor) -> list[dict[str, float]]:
    """The bins behind the calibration error; empty ones are left out."""
    confidence, predicted = probabilities.max(-1)
    edges = torch.linspace(0, 1, CALIBRATION_BINS + 1)
    bins = torch.bucketize(confidence, edges, right=True) - 1
    right = predicted.eq(labels).float()
    return [
        {
            "from": float(edges[i]),
            "to": float(edges[i + 1]),
            "count": int(inside.sum()),
            "confidence": float(confidence[inside].mean()),
            "accuracy": float(right[inside].mean()),
        }
        for i in range(CALIBRATION_BINS)
        if (inside := bins == i).any()
    ]
