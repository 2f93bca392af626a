"""Scores of a classifier, through torchmetrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.errors import UserError
from longspan.results.scores import Scores, check_finite, score

#: Bins of equal width in which confidence is compared with accuracy.
CALIBRATION_BINS = 15


@dataclass(frozen=True)
class ClassificationScores(Scores):
    """How well a classifier tells classes apart.

    Attributes:
        accuracy: Share of documents whose most likely class is the right one.
        macro_f1: Mean of F1 over the classes that occur in the labels or the predictions.
        calibration_error: The expected calibration error of the top class over `CALIBRATION_BINS` bins (Guo et al.
            2017, https://arxiv.org/abs/1706.04599).
        loss: Mean negative log probability of the right class.
        per_class: For each name its `precision`, `recall`, `f1` and `support` (number of labels), 0 where undefined.
        reliability: For each bin that is not empty its `from`, `to`, `count`, `confidence` and `accuracy`.
        confusion: Counts, rows true and columns predicted.
    """

    per_class: dict[str, dict[str, float]]
    reliability: list[dict[str, float]]
    confusion: list[list[int]]
    accuracy: float = score("accuracy", higher_is_better=True, share=True)
    macro_f1: float = score("macro-F1", higher_is_better=True, share=True)
    calibration_error: float = score("calibration error", higher_is_better=False)
    loss: float = score("cross-entropy (nats)", higher_is_better=False)


def classification_scores(
    logits: Tensor | np.ndarray, labels: Tensor | np.ndarray, names: Sequence[str]
) -> ClassificationScores:
    """Score logits against labels.

    Args:
        logits: `(n, c)`, any float type.
        labels: `(n,)`, class numbers below `c`.
        names: The `c` class names, in the order of the columns; at least two.

    Raises:
        UserError: There is nothing to score, or the logits are not finite, as after a training run that diverged.
    """
    # It takes a second and a half to import, and predictions need no scores.
    from torchmetrics.functional import classification

    logits, labels = torch.as_tensor(logits).float().cpu(), torch.as_tensor(labels).long().cpu()
    if logits.ndim != 2 or logits.shape != (len(labels), len(names)):
        raise ValueError(
            f"expected logits of shape ({len(labels)}, {len(names)}) for {len(labels)} labels and {len(names)} names, "
            f"got {tuple(logits.shape)}; give a row per label and a column per name."
        )
    if not len(labels):
        raise UserError("expected at least one labelled document to score, got none; choose other data.")
    check_finite(logits, "documents")
    classes = len(names)
    probabilities = logits.softmax(-1)
    predicted = probabilities.argmax(-1)
    counts = classification.multiclass_stat_scores(predicted, labels, classes, average="none")
    precision, recall, f1 = (
        measure(predicted, labels, classes, average="none").tolist()
        for measure in (
            classification.multiclass_precision,
            classification.multiclass_recall,
            classification.multiclass_f1_score,
        )
    )
    # torchmetrics gives a confidence of exactly 1 a separate bin, and applies softmax again to anything above 1.
    inside = probabilities.clamp(max=1 - torch.finfo(torch.float32).eps)
    error = classification.multiclass_calibration_error(inside, labels, classes, CALIBRATION_BINS)
    return ClassificationScores(
        accuracy=float(classification.multiclass_accuracy(predicted, labels, classes, average="micro")),
        macro_f1=float(classification.multiclass_f1_score(predicted, labels, classes, average="macro")),
        calibration_error=float(error),
        loss=float(torch.nn.functional.cross_entropy(logits, labels)),
        per_class={
            name: {"precision": precision[i], "recall": recall[i], "f1": f1[i], "support": int(counts[i, 4])}
            for i, name in enumerate(names)
        },
        reliability=_reliability(inside, labels),
        confusion=classification.multiclass_confusion_matrix(predicted, labels, classes).tolist(),
    )


def _reliability(probabilities: Tensor, labels: Tensor) -> list[dict[str, Any]]:
    """Return the bins of the calibration error; empty ones are left out."""
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
