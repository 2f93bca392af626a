"""Tasks whose examples, of whatever kind, have one class each: `ClassTask`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from longspan.data.columns.kept import Carried, class_number
from longspan.data.columns.kinds import Column, Label
from longspan.data.columns.values import in_order
from longspan.errors import UserError
from longspan.models import LongspanConfig, LongspanForSequenceClassification
from longspan.report import count, scores_table, share, table
from longspan.results import Evaluation, Prediction
from longspan.results.scores import Scores, check_finite, score
from longspan.tasks.base.case import Target, class_asked
from longspan.tasks.base.examples import ExampleTask
from longspan.tasks.base.mistakes import Errors, class_errors, label_issues
from longspan.tasks.base.task import D, P, Task

#: Bins of equal width in which confidence is compared with accuracy.
CALIBRATION_BINS = 15


@dataclass(frozen=True)
class ClassificationScores(Scores):
    """Scores of a classifier.

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


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    """The most likely label of an example, and the probabilities of all labels."""

    label: str | None = None
    probabilities: dict[str, float] | None = None


class ClassTask(ExampleTask[ClassificationScores, D, P], Generic[D, P]):
    """One label for each example: the processor's columns, and `label`, which `data.label_column` names."""

    scores = ClassificationScores
    prediction = ClassPrediction
    model_class = LongspanForSequenceClassification
    unused = ExampleTask.unused | {"wide", "wide_buckets", "wide_characters"}
    stratify = "label"

    def columns(self, data: D) -> Sequence[Column]:
        return [*self.processor.columns(data), Label("label", "label_column")]

    def head(self, training: Dataset, data: D) -> dict[str, Any]:
        names = in_order(set(training["label"][:]))
        return {
            "id2label": dict(enumerate(names)),
            "label2id": {name: number for number, name in enumerate(names)},
            "problem_type": "single_label_classification",
        }

    def target(self, config: LongspanConfig) -> Carried:
        return class_number("label", {name: number for number, name in enumerate(labels(config))})

    def score(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> ClassificationScores:
        return classification_scores(logits, targets, labels(config))

    def answer(self, where: str, logits: Tensor, config: LongspanConfig) -> ClassPrediction:
        shares = dict(zip(labels(config), logits.softmax(-1).tolist(), strict=True))
        return ClassPrediction(where, None, max(shares, key=lambda name: shares[name]), shares)

    def explained(self, config: LongspanConfig, prediction: Prediction, of: str) -> Target:
        """Return the log-odds of a class, by default the likeliest."""
        assert isinstance(prediction, ClassPrediction)
        return class_asked(labels(config), of or prediction.label or "")

    def draw(
        self, scores: ClassificationScores, logits: Tensor, targets: Tensor, config: LongspanConfig, folder: Path
    ) -> None:
        from longspan.report.calibration import calibration
        from longspan.report.confusion import confusion

        confusion(scores.confusion, labels(config), folder / "confusion.png")
        calibration(scores.reliability, scores.calibration_error, folder / "calibration.png")

    def errors(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> Mapping[str, Errors]:
        names = labels(config)
        return {
            "mistakes": class_errors(logits, targets, names),
            "label_issues": label_issues(logits, targets, names),
        }

    def details(self, config: LongspanConfig) -> dict[str, Any]:
        return {"labels": labels(config)}

    def evaluation_report(self, evaluation: Evaluation) -> str:
        return evaluation_report(self, evaluation)


def balanced_weights(labels: Sequence[str]) -> list[float]:
    """Loss weights of the classes, in the order of the model's outputs, so that all classes weigh the same.

    With k classes, that of class c is n / (k n_c), given the n training examples' labels.
    """
    counts = Counter(labels)
    return [len(labels) / (len(counts) * counts[name]) for name in in_order(counts)]


def labels(config: LongspanConfig) -> list[str]:
    """Return the class names, in the order of the model's outputs."""
    # Attributes of a configuration are slow to read, and this is read for each document.
    names = config.id2label
    return [names[number] for number in range(len(names))]


def evaluation_report(task: Task, evaluation: Evaluation[ClassificationScores]) -> str:
    """Report that `longspan evaluate` prints."""
    scores, split = evaluation.scores, evaluation.split
    keys = ("precision", "recall", "f1")
    classes = (
        [name, *(share(row[key]) for key in keys), count(row["support"])] for name, row in scores.per_class.items()
    )
    bins = (
        [f"{row['from']:.2f} to {row['to']:.2f}", count(row["count"]), share(row["confidence"]), share(row["accuracy"])]
        for row in scores.reliability
    )
    parts = [
        task.data_table({split: evaluation.details["truncation"]}),
        f"padding: {evaluation.details['padding_fraction']:.1%} of the computed positions",
        scores_table({split: scores}),
        table(["class", "precision", "recall", "F1", "support"], classes),
        table(["confidence", "documents", "mean confidence", "accuracy"], bins),
        f"written to {evaluation.folder}",
    ]
    return "\n\n".join(parts)
