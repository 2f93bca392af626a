"""Tasks whose examples, of whatever kind, have one class each: `ClassTask`."""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.data.columns.kept import Carried, class_number
from longspan.data.columns.kinds import Column, Label
from longspan.data.columns.values import in_order
from longspan.errors import UserError
from longspan.models import LongspanConfig, LongspanForSequenceClassification
from longspan.models.wide.base import WidePart
from longspan.report import count, scores_table, share, table
from longspan.results import Evaluation, Prediction
from longspan.results.parts import NAMES, Parts, compare_parts
from longspan.results.predictions import ClassPrediction
from longspan.results.scores import Scores, check_finite, score
from longspan.tasks.base.case import Target, class_asked
from longspan.tasks.base.examples import ExampleTask
from longspan.tasks.base.mistakes import Errors, class_errors, label_issues
from longspan.tasks.base.task import D, P, Run, Task
from longspan.training.lengths import LengthTrainer, targets

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
    confusion = torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes)
    right, predictions, support = confusion.diagonal(), confusion.sum(0), confusion.sum(1)
    precision, recall, f1 = _ratio(right, predictions), _ratio(right, support), _ratio(2 * right, predictions + support)
    occurring = (predictions + support > 0).float()
    # A confidence of exactly 1 belongs to the last bin.
    inside = probabilities.clamp(max=1 - torch.finfo(torch.float32).eps)
    return ClassificationScores(
        accuracy=float(_ratio(right.sum(), support.sum())),
        macro_f1=float((f1 * occurring / occurring.sum()).sum()),
        calibration_error=_calibration_error(inside, labels),
        loss=float(torch.nn.functional.cross_entropy(logits, labels)),
        per_class={
            name: {"precision": float(precision[i]), "recall": float(recall[i]), "f1": float(f1[i])}
            | {"support": int(support[i])}
            for i, name in enumerate(names)
        },
        reliability=_reliability(inside, labels),
        confusion=confusion.tolist(),
    )


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Quotients of counts, float32; 0 where the denominator is."""
    return numerator.float() / denominator.clamp(min=1).float()


def _calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    confidence, predicted = probabilities.max(-1)
    edges = torch.linspace(0, 1, CALIBRATION_BINS + 1)
    bins = torch.bucketize(confidence, edges, right=True) - 1
    size, confidences, right = (
        torch.zeros(len(edges)).scatter_add_(0, bins, values)
        for values in (torch.ones_like(confidence), confidence, predicted.eq(labels).float())
    )
    gaps = (right / size).nan_to_num() - (confidences / size).nan_to_num()
    return float((gaps.abs() * (size / size.sum())).sum())


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


#: Penalty that pulls the scales towards the wide part alone, in nats: documents by the hundred outweigh it. Few are
#: right by chance, all the more for the best of many epochs.
_PRIOR = 20.0


class WideTrainer(LengthTrainer[ClassificationScores]):
    """A `LengthTrainer` that chooses the scales of a model's two parts whenever it scores the validation split.

    They are chosen before a checkpoint is saved, so each one has its own. No other split changes them. Training does
    not depend on them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deep_loss: float | None = None

    def score(self, dataset: Dataset) -> ClassificationScores:
        wide = getattr(self.model, "wide", None)
        if wide is None:
            return super().score(dataset)
        parts, labels = self.outputs(dataset, "parts"), targets(dataset)
        if dataset is self.eval_dataset:
            wide.scales.copy_(best_scales(parts, labels))
            self._deep_loss = float(cross_entropy(parts[:, 1].double(), labels))
        both = mixture(wide, parts)
        right = correct_rows(parts, both, labels)
        self.remember_parts(dataset, functools.partial(compare_accuracies, right))
        return self.measure(both, labels)

    def losses_as_trained(self) -> dict[str, float]:
        # Training fits the deep part alone.
        return {} if self._deep_loss is None else {"loss_as_trained": self._deep_loss}


def mixture(wide: WidePart, parts: Tensor) -> Tensor:
    """Return the logits of both parts together, `(n, c)`, from `(n, 2, c)`, on the CPU."""
    scales = wide.get_buffer("scales").float().cpu()
    return (scales[:, None] * parts).sum(1)


def correct_rows(parts: Tensor, both: Tensor, labels: Tensor) -> np.ndarray:
    """Rows that each part gets right alone, and both together, `(3, n)` bool in the order of `NAMES`."""
    found: np.ndarray = torch.stack([(logits.argmax(-1) == labels) for logits in (*parts.unbind(1), both)]).numpy()
    return found


def compare_accuracies(right: np.ndarray) -> Parts:
    """Compare the accuracies of both parts, given which rows they get right: see `correct_rows`."""
    examples = {name: np.stack([row, np.ones_like(row)], -1) for name, row in zip(NAMES, right, strict=True)}
    score = ClassificationScores.headline()
    higher = ClassificationScores.higher_is_better()
    return compare_parts(score, higher, examples, lambda sums: sums[..., 0] / sums[..., 1])


def best_scales(parts: Tensor, labels: Tensor) -> Tensor:
    """Factors of the logits of parts, `(k,)` float32, at least 0.

    They have the lowest cross-entropy on the validation split. A penalty on what the others add pulls them towards
    the first part alone, so that confidence alone does not raise the scale of others. Where the sum would get fewer
    rows right than the first part, by more than chance does, that counts alone.

    Args:
        parts: `(n, k, c)` logits of each part, such as the wide and the deep one.
        labels: `(n,)` class numbers.
    """
    logits, alone = parts.double(), torch.eye(1, parts.shape[1], dtype=torch.float64)[0]
    scales = alone.clone().requires_grad_()
    # How far two classes' logits are apart. A part that is hardly sure of anything is not to be blown up.
    apart = (2 * logits[:, 1:].var(-1)).mean(0).sqrt().clamp_min(1)
    units = torch.cat([torch.ones(1, dtype=torch.float64), apart])
    optimizer = torch.optim.LBFGS([scales], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = cross_entropy((scales[:, None] * logits).sum(1), labels, reduction="sum")
        found = found + _PRIOR * (units * (scales - alone)).square().sum()
        found.backward()
        return found

    with torch.enable_grad():
        optimizer.step(loss)
    # A part that speaks against itself has nothing to say.
    both = scales.detach().clamp_min(0)
    counting, summed = ((each[:, None] * logits).sum(1).argmax(-1) == labels for each in (alone, both))
    lost, won = int((counting & ~summed).sum()), int((summed & ~counting).sum())
    # Were both alike, the difference would have the variance lost + won (McNemar 1947).
    return (alone if lost - won > 2 * (lost + won) ** 0.5 else both).float()


class ClassTask(ExampleTask[ClassificationScores, D, P], Generic[D, P]):
    """One label for each example: the processor's columns, and `label`, which `data.label_column` names."""

    scores = ClassificationScores
    prediction = ClassPrediction
    trainer_class = WideTrainer
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

    def logits(self, run: Run, targets: Tensor, outputs: Callable[[str], Tensor]) -> tuple[Tensor, dict[str, Any]]:
        wide = getattr(run.model, "wide", None)
        if wide is None:
            return super().logits(run, targets, outputs)
        parts = outputs("parts")
        both = mixture(wide, parts)
        return both, {"parts": compare_accuracies(correct_rows(parts, both, targets)).to_dict()}

    def answer(self, where: str, logits: Tensor, config: LongspanConfig) -> ClassPrediction:
        return ClassPrediction.of(where, labels(config), logits.softmax(-1).tolist())

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
