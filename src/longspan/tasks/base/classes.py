"""Tasks whose examples, of whatever kind, have one class each: `ClassTask`."""

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic

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
from longspan.models.wide.classifier import Wide
from longspan.report import count, share, table
from longspan.results import Evaluation, Prediction
from longspan.results.parts import Parts
from longspan.results.predictions import ClassPrediction
from longspan.results.scores import Scores, check_finite, score
from longspan.tasks.base import mixing
from longspan.tasks.base.case import Target, class_asked
from longspan.tasks.base.examples import ExampleTask
from longspan.tasks.base.mistakes import Errors, class_errors, label_issues
from longspan.tasks.base.mixing import WideTrainer, ratio_of_sums
from longspan.tasks.base.options import ClassEvaluationOptions
from longspan.tasks.base.task import D, P

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


def correct_rows(parts: Tensor, both: Tensor, labels: Tensor) -> np.ndarray:
    """Rows that each part gets right alone, and both together, `(3, n)` bool in the order of `NAMES`."""
    found: np.ndarray = torch.stack([(logits.argmax(-1) == labels) for logits in (*parts.unbind(1), both)]).numpy()
    return found


def compare_accuracies(right: np.ndarray) -> Parts:
    """Compare the accuracies of both parts, given which rows they get right: see `correct_rows`."""
    sums = [torch.from_numpy(np.stack([row, np.ones_like(row)], -1)) for row in right]
    return ratio_of_sums(ClassificationScores, ClassificationScores.headline(), sums)


def best_scales(parts: Tensor, labels: Tensor, anchor: Tensor | None = None) -> Tensor:
    """Factors of the logits of parts, `(n, k, c)`, for class numbers, `(n,)`: see `mixing.best_scales`."""
    return mixing.best_scales(parts, labels, _cross_entropies, _correct, anchor)


def balanced_scales(parts: Tensor, labels: Tensor) -> Tensor:
    """Factors of the logits of two parts, `(n, 2, c)`, neither of which is better as a rule.

    Both are calibrated first. Weak evidence leaves the mean of both.
    """
    factors = torch.tensor([calibrated_loss(logits, labels)[1] for logits in parts.unbind(1)])
    return factors * best_scales(factors[:, None] * parts, labels, torch.full((2,), 0.5))


def calibrated_loss(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Sum of the cross-entropy of logits times the best factor, and this factor; one other than 1 has to earn it."""
    return mixing.calibrated_loss(logits, lambda logits: float(cross_entropy(logits, labels, reduction="sum")))


def _cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels, reduction="none")


def _correct(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.argmax(-1) == labels


class ClassTrainer(WideTrainer[ClassificationScores]):
    """A `WideTrainer` of one class for each row."""

    cut_streams: ClassVar[Mapping[str, int]] = {"input_ids": 0, "attention_mask": 0}

    def scales(self, parts: Tensor, labels: Tensor) -> Tensor:
        # Of documents, n-grams are the better part more often than few validation rows say.
        documents = isinstance(self.model.wide, Wide)
        return super().scales(parts, labels) if documents else balanced_scales(parts, labels)

    @staticmethod
    def losses(logits: Tensor, labels: Tensor, config: LongspanConfig) -> Tensor:
        return _cross_entropies(logits, labels)

    @staticmethod
    def points(logits: Tensor, labels: Tensor, config: LongspanConfig) -> Tensor:
        return _correct(logits, labels)

    @staticmethod
    def compare(parts: Tensor, both: Tensor, labels: Tensor, config: LongspanConfig) -> Parts:
        return compare_accuracies(correct_rows(parts, both, labels))


class ClassTask(ExampleTask[ClassificationScores, D, P], Generic[D, P]):
    """One label for each example: the processor's columns, and `label`, which `data.label_column` names."""

    scores = ClassificationScores
    prediction = ClassPrediction
    evaluation_options: ClassVar[type] = ClassEvaluationOptions
    trainer_class = ClassTrainer
    model_class = LongspanForSequenceClassification
    unused = ExampleTask.unused | {"wide", "wide_buckets", "wide_characters"}
    stratify = "label"

    def columns(self, data: D) -> Sequence[Column]:
        return [*self.processor.columns(data), Label("label", "label_column")]

    def head(self, training: Dataset, data: D) -> dict[str, Any]:
        names = in_order(set(training["label"][:]))
        balanced = getattr(data, "class_weights", "none") == "balanced"
        return {
            "id2label": dict(enumerate(names)),
            "label2id": {name: number for number, name in enumerate(names)},
            "problem_type": "single_label_classification",
            **({"class_weights": balanced_weights(training["label"][:])} if balanced else {}),
        }

    def target(self, config: LongspanConfig) -> Carried:
        return class_number("label", {name: number for number, name in enumerate(labels(config))})

    def score(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> ClassificationScores:
        return classification_scores(logits, targets, labels(config))

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

    def choices(self, logits: Tensor, targets: Tensor, config: LongspanConfig, options: Any) -> Mapping[str, Any]:
        if options.split is None:
            return {}
        name = "recall" if options.precision is None else "precision"
        found = least_probabilities(logits, targets, labels(config), name, getattr(options, name))
        return {"least_probabilities": found}

    def details(self, config: LongspanConfig) -> dict[str, Any]:
        return {"labels": labels(config)}

    def sections(self, evaluation: Evaluation[ClassificationScores]) -> list[str]:
        reliability = evaluation.scores.reliability
        bins = [
            [f"{row['from']:.2f} to {row['to']:.2f}", count(row["count"]), *(share(row[key]) for key in _SURE)]
            for row in reliability
        ]
        for place, cells in enumerate(bins):
            # Those that `predict --min-probability` would label.
            surer = reliability[place:]
            known = sum(row["count"] for row in surer)
            cells += [
                share(known / sum(row["count"] for row in reliability)),
                share(sum(row["count"] * row["accuracy"] for row in surer) / known),
            ]
        confidence = ["confidence", "documents", *_SURE.values()]
        return [
            f"padding: {evaluation.details['padding_fraction']:.1%} of the computed positions",
            *super().sections(evaluation),
            scores_by_label(evaluation.scores.per_class, "class", "support"),
            table([*confidence, "this sure or more", "accuracy of those"], bins),
            *_least_table(evaluation),
        ]


#: Numbers of each bin of confidence, by the words of their columns.
_SURE = {"confidence": "mean confidence", "accuracy": "accuracy"}
#: Scores of each label, by the words of their columns.
PER_LABEL: Mapping[str, str] = {"precision": "precision", "recall": "recall", "f1": "F1"}


def scores_by_label(
    rows: Mapping[str, Mapping[str, float]], label: str, support: str, columns: Mapping[str, str] = PER_LABEL
) -> str:
    """Return a table of the scores of each label, whose last column is their `support`.

    Args:
        rows: Scores by label.
        label: Words for a label.
        support: Words for its support.
        columns: Scores that are shown, with their words.
    """
    cells = ([name, *(share(row[key]) for key in columns), count(row["support"])] for name, row in rows.items())
    return table([label, *columns.values(), support], cells)


def _least_table(evaluation: Evaluation[ClassificationScores]) -> list[str]:
    """Table of `least_probabilities`, and the flags of `predict` that follow, if they were chosen."""
    found = evaluation.details.get("least_probabilities")
    if found is None:
        return []
    rows = [
        [name, "never" if row["min_probability"] is None else str(row["min_probability"]), count(row["given"])]
        + ["" if row[key] is None else share(row[key]) for key in ("precision", "recall")]
        for name, row in found.items()
    ]
    flags = []
    for name, row in found.items():
        least = "never" if row["min_probability"] is None else row["min_probability"]
        flags.append(f"--min-probability {shlex.quote(f'{name}={least}')}")
    return [
        table(["class", "least probability", "examples", "precision", "recall"], rows),
        f"chosen on {evaluation.split}; use: longspan predict RUN DATA {' '.join(flags)}",
    ]


def least_probabilities(
    logits: Tensor, targets: Tensor, names: Sequence[str], score: str, least: float
) -> dict[str, dict[str, Any]]:
    """For each class, the probability from which the likeliest class is given, and what follows from it.

    Args:
        logits: `(n, c)`.
        targets: `(n,)` class numbers.
        names: Those of the classes.
        score: "precision", the share of right ones among examples that get a class, of which the lowest probability is
            chosen; or "recall", the share of a class's examples that get it, of which the highest one is.
        least: Least precision or recall.

    Returns:
        `min_probability`, None where no probability suffices; the `precision` and `recall` with it; and `given`, the
        number of examples that get the class.
    """
    shares = logits.float().softmax(-1)
    confidence, predicted = shares.max(-1)
    found = {}
    for number, name in enumerate(names):
        mine = predicted == number
        sure, order = confidence[mine].sort(descending=True)
        right = (targets[mine][order] == number).cumsum(0)
        given = torch.arange(1, len(sure) + 1)
        of_class = int((targets == number).sum())
        scores = {"precision": right / given, "recall": right / max(1, of_class)}
        # Equal probabilities are on the same side.
        last = torch.cat((sure[1:] < sure[:-1], torch.ones(min(1, len(sure)), dtype=torch.bool)))
        places = (last & (scores[score] >= least)).nonzero()[:, 0].tolist()
        row: dict[str, Any] = {"min_probability": None, "precision": None, "recall": 0.0, "given": 0}
        if places:
            place = places[-1] if score == "precision" else places[0]
            below = float(sure[place + 1]) if place + 1 < len(sure) else 0.0
            row = {
                "min_probability": _shortest(below, float(sure[place])),
                **{name: float(each[place]) for name, each in scores.items()},
                "given": place + 1,
            }
        found[name] = row
    return found


def _shortest(low: float, high: float) -> float:
    """The number with the fewest decimals above `low` and at most `high`; probabilities are float32."""
    return next(
        (value for digits in range(1, 17) if low < (value := math.floor(high * 10**digits) / 10**digits) <= high), high
    )


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
