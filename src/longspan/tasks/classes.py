"""Tasks whose examples, of whatever kind, have one class each: `ClassTask`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from datasets import Dataset
from torch import Tensor

from longspan.data.columns.kept import Carried, class_number
from longspan.data.columns.kinds import Column, Label
from longspan.data.columns.values import in_order
from longspan.models import LongspanConfig, LongspanForSequenceClassification
from longspan.results import Evaluation, Prediction
from longspan.tasks.base import D
from longspan.tasks.class_report import evaluation_report
from longspan.tasks.class_scores import ClassificationScores, classification_scores
from longspan.tasks.examples import ExampleTask
from longspan.tasks.explaining import Asked, class_asked
from longspan.tasks.mistakes import Wrong, class_errors, label_issues


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    """The most likely label of an example, and the probabilities of all labels."""

    label: str | None = None
    probabilities: dict[str, float] | None = None


class ClassTask(ExampleTask[ClassificationScores, D], Generic[D]):
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

    def asked(self, config: LongspanConfig, prediction: Prediction, of: str) -> Asked:
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

    def wrong(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> Mapping[str, Wrong]:
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
    """Return what multiplies the loss of each class, in the order of the model's outputs, so that all weigh the same.

    With k classes, that of class c is n / (k n_c), given the n training examples' labels.
    """
    counts = Counter(labels)
    return [len(labels) / (len(counts) * counts[name]) for name in in_order(counts)]


def labels(config: LongspanConfig) -> list[str]:
    """Return the class names, in the order of the model's outputs."""
    # Attributes of a configuration are slow to read, and this is read for each document.
    names = config.id2label
    return [names[number] for number in range(len(names))]
