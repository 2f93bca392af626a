"""Multi-label classification: `MultiLabelClassification`."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from longspan.data.batches.encoding import truncation_table
from longspan.data.columns.kept import Carried, class_flags
from longspan.data.columns.kinds import Column, Flags, Labels, Text
from longspan.data.columns.values import in_order, joined, shown
from longspan.data.sources.loading import Splits
from longspan.errors import UserError
from longspan.machine.printing import note
from longspan.models import LongspanConfig, LongspanForSequenceClassification
from longspan.report import count, share
from longspan.report.card import Hub
from longspan.report.pictures import needs_matplotlib, save, shortened
from longspan.results import Evaluation, Prediction
from longspan.results.parts import Parts
from longspan.results.predictions import MultiLabelPrediction
from longspan.tasks.base.case import Target, label_asked
from longspan.tasks.base.classes import PER_LABEL, labels, scores_by_label
from longspan.tasks.base.documents import DocumentTask
from longspan.tasks.base.mistakes import Errors, flag_errors
from longspan.tasks.base.mixing import WideTrainer, ratio_of_sums
from longspan.tasks.base.task import Facts, Task
from longspan.tasks.multi_label_classification.options import EvaluationOptions, MultiLabelData
from longspan.tasks.multi_label_classification.scores import (
    MultiLabelScores,
    best_thresholds,
    multi_label_scores,
    precision_recall,
    probabilities,
)
from longspan.training.lengths import targets


class ThresholdTrainer(WideTrainer[MultiLabelScores]):
    """A `WideTrainer` that chooses the thresholds of a model whenever it scores the validation split.

    They are chosen before a checkpoint is saved, so each one has its own. No other split changes them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._part_thresholds: dict[int, list[list[float]]] = {}

    @staticmethod
    def losses(logits: Tensor, labels: Tensor, config: LongspanConfig) -> Tensor:
        return binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").sum(1)

    @staticmethod
    def points(logits: Tensor, labels: Tensor, config: LongspanConfig) -> Tensor:
        return ((logits > 0) == (labels > 0.5)).double().mean(1)

    def scales(self, parts: Tensor, labels: Tensor) -> Tensor:
        def micro_f1(scales: Tensor) -> float:
            logits = (scales[:, None] * parts).sum(1)
            right, decided = _f1_sums(logits, labels, best_thresholds(logits, labels)).sum(0).tolist()
            return right / max(1, decided)

        # Reported scores depend on thresholds, unlike points.
        return max((super().scales(parts, labels), *torch.eye(2)), key=micro_f1)

    @staticmethod
    def compare(parts: Tensor, both: Tensor, labels: Tensor, config: LongspanConfig) -> Parts:
        alone = config.head.part_thresholds or [[0.5] * config.num_labels] * 2
        pairs = zip((*parts.unbind(1), both), (*alone, thresholds(config)), strict=True)
        sums = [_f1_sums(logits, labels, least) for logits, least in pairs]
        return ratio_of_sums(MultiLabelScores, "micro_f1", sums)

    def decide(self, parts: Tensor | None, logits: Tensor, labels: Tensor) -> None:
        head = self.model.config.head
        head.thresholds = best_thresholds(logits, labels)
        if parts is not None:
            alone = [best_thresholds(each, labels) for each in parts.unbind(1)]
            head.part_thresholds = self._part_thresholds[self.scored_step()] = alone

    def validation_scores(self) -> MultiLabelScores:
        scores, head = super().validation_scores(), self.model.config.head
        # Those of the epoch that was kept, whose weights came back without them.
        head.thresholds = [row["threshold"] for row in scores.per_label.values()]
        head.part_thresholds = self._part_thresholds.get(self.kept_step())
        return scores


def _f1_sums(logits: Tensor, labels: Tensor, least: Sequence[float]) -> Tensor:
    """Numerator and denominator of micro-F1 of each document, `(n, 2)`, with the thresholds `least`."""
    truth, given = labels > 0.5, probabilities(logits) >= torch.tensor(least, dtype=torch.float64)
    return torch.stack([2 * (given & truth).sum(1), given.sum(1) + truth.sum(1)], 1)


class MultiLabelClassification(DocumentTask[MultiLabelScores, MultiLabelData]):
    """Any number of labels for each document, of any length."""

    data_config = MultiLabelData
    hub = Hub("text-classification", ("multi-label-classification", "long-document"), ("f1",), {"micro_f1": "f1"})
    evaluation_options = EvaluationOptions
    data_hint = Task.data_hint
    scores = MultiLabelScores
    prediction = MultiLabelPrediction
    model_class = LongspanForSequenceClassification
    unused = DocumentTask.unused | {"label_smoothing"}
    trainer_class = ThresholdTrainer
    facts: ClassVar[Facts] = {
        **DocumentTask.facts,
        "labels_per_document": ("labels per document", share),
        "without_labels": ("without labels", count),
    }

    def columns(self, data: MultiLabelData) -> Sequence[Column]:
        if data.label_columns:
            labels: Column = Flags("labels", "label_columns", labels=tuple(data.label_columns))
        else:
            labels = Labels("labels", "label_column", separator=data.label_separator)
        return [Text("text", "text_column"), labels]

    def load(self, data: MultiLabelData) -> Splits:
        loaded = super().load(data)
        if not data.label_columns:
            _note_joined(loaded.splits["train"]["labels"][:])
        return loaded

    def head(self, training: Dataset, data: MultiLabelData) -> dict[str, Any]:
        found = {label for labels in training["labels"][:] for label in labels}
        for label in data.label_columns:
            if label not in found:
                raise UserError(
                    f"expected training documents with each label of data.label_columns, got none with {label!r}; add "
                    "some, or leave it out."
                )
        if not found:
            raise UserError(
                "expected documents with labels in the training data, got none with any; check data.label_column."
            )
        if not data.label_columns and found <= {"0", "1", "true", "false"}:
            raise UserError(
                f"expected the names of labels in column {data.label_column!r}, got only "
                f"{' and '.join(sorted(found))}, as in lists with a 0 or 1 for each label; list the names of those "
                "that apply, or give each label a column and name them with data.label_columns."
            )
        names = data.label_columns or in_order(found)
        return {
            "id2label": dict(enumerate(names)),
            "label2id": {name: number for number, name in enumerate(names)},
            "problem_type": "multi_label_classification",
        }

    def target(self, config: LongspanConfig) -> Carried:
        return class_flags("labels", {name: number for number, name in enumerate(labels(config))})

    def score(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> MultiLabelScores:
        return multi_label_scores(logits, targets, labels(config), thresholds(config))

    def eval_config(self, config: LongspanConfig, options: Any) -> LongspanConfig:
        if options.threshold is None:
            return config
        config = copy.deepcopy(config)
        config.head.thresholds = [float(options.threshold)] * config.num_labels
        return config

    def answer(self, where: str, logits: Tensor, config: LongspanConfig) -> MultiLabelPrediction:
        return MultiLabelPrediction.of(where, labels(config), probabilities(logits).tolist(), thresholds(config))

    def explained(self, config: LongspanConfig, prediction: Prediction, of: str) -> Target:
        assert isinstance(prediction, MultiLabelPrediction)
        shares = prediction.probabilities or {}
        return label_asked(labels(config), of or max(shares, key=lambda name: shares[name]))

    def draw(
        self, scores: MultiLabelScores, logits: Tensor, targets: Tensor, config: LongspanConfig, folder: Path
    ) -> None:
        path = folder / "precision_recall.png"
        draw_precision_recall(logits.double().numpy(), targets.numpy() > 0.5, labels(config), scores, path)

    def errors(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> Mapping[str, Errors]:
        return {"mistakes": flag_errors(probabilities(logits), targets, thresholds(config), labels(config))}

    def describe(self, tokens: Dataset, config: LongspanConfig) -> dict[str, Any]:
        per_document = targets(tokens).sum(-1)
        return {
            **truncation_table(tokens),
            "labels_per_document": float(per_document.mean()),
            "without_labels": int((per_document == 0).sum()),
        }

    def details(self, config: LongspanConfig) -> dict[str, Any]:
        return {"labels": labels(config)}

    def sections(self, evaluation: Evaluation) -> list[str]:
        return [
            *super().sections(evaluation),
            scores_by_label(evaluation.scores.per_label, "label", "documents", _COLUMNS),
        ]


def thresholds(config: LongspanConfig) -> list[float]:
    """Return the probability from which each label is given."""
    return config.head.thresholds or [0.5] * config.num_labels


def _note_joined(labels: Sequence[list[str]]) -> None:
    """Say so if all labels come alone, but look as if another separator joined several."""
    found = joined({label for row in labels for label in row}) if all(len(row) <= 1 for row in labels) else None
    if found is not None:
        note(
            f"no document has several labels, though some such as {shown(found[0])} look joined; set "
            f"data.label_separator={found[1]!r} if they are"
        )


_COLUMNS = {**PER_LABEL, "average_precision": "average precision", "threshold": "threshold"}


#: Labels that are drawn, the most frequent ones; more could not be told apart.
LABELS = 8


@needs_matplotlib
def draw_precision_recall(
    logits: np.ndarray, truth: np.ndarray, names: Sequence[str], scores: MultiLabelScores, path: Path
) -> None:
    """Draw precision against recall: over all decisions, and for the most frequent labels with their thresholds.

    Args:
        logits: `(n, k)`.
        truth: `(n, k)` bool.
        names: The `k` labels.
        scores: The scores of these logits.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.2, 4.8), layout="constrained")
    axes = figure.subplots()
    if truth.any():
        together = precision_recall(logits.ravel(), truth.ravel())
        words = f"AP {together.average_precision:.3f}  all labels together"
        axes.step(together.recall, together.precision, where="pre", color="black", linewidth=2, label=words)
    frequent = sorted(np.flatnonzero(truth.any(0)).tolist(), key=lambda i: -truth[:, i].sum())[:LABELS]
    for i in frequent:
        curve, row = precision_recall(logits[:, i], truth[:, i]), scores.per_label[names[i]]
        # The name last: matplotlib hides what begins with an underscore.
        words = f"AP {row['average_precision']:.3f}  {shortened(names[i])} ({row['support']:,.0f})"
        (line,) = axes.step(curve.recall, curve.precision, where="pre", linewidth=1.2, label=words)
        axes.plot(row["recall"], row["precision"], "o", color=line.get_color(), markersize=5)
    title = "dots: at the thresholds"
    left_out = int(truth.any(0).sum()) - len(frequent)
    axes.set(
        xlim=(0, 1.01),
        ylim=(0, 1.02),
        xlabel="recall",
        ylabel="precision",
        title=title + (f"; {left_out:,} rarer labels are not drawn" if left_out else ""),
    )
    axes.grid(alpha=0.3)
    if axes.get_lines():
        figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    save(figure, path)
