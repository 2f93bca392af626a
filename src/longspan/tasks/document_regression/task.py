"""Document regression: `DocumentRegression`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset, Value
from torch import Tensor

from longspan.data.batches.encoding import truncation_table
from longspan.data.columns.kept import Carried
from longspan.data.columns.kinds import Column, Number, Text
from longspan.data.config import DataConfig
from longspan.errors import UserError
from longspan.models import LongspanConfig, LongspanForSequenceClassification
from longspan.models.parts.losses import IGNORED
from longspan.report import number, table
from longspan.report.card import Hub
from longspan.report.pictures import needs_matplotlib, save
from longspan.results import Evaluation, Prediction
from longspan.results.parts import Parts
from longspan.results.predictions import NumberPrediction
from longspan.tasks.base.case import Target, number_asked
from longspan.tasks.base.documents import DocumentTask
from longspan.tasks.base.mistakes import Errors, number_errors
from longspan.tasks.base.mixing import WideTrainer, in_units, ratio_of_sums
from longspan.tasks.base.task import Facts, Task
from longspan.tasks.document_regression.options import RegressionData
from longspan.tasks.document_regression.scores import RegressionScores, regression_scores
from longspan.training.lengths import targets

#: Models compute in float32, which has seven digits: with a spread below this share of the numbers, rounding would
#: show.
SMALLEST_SPREAD = 1e-5
_NEAR_IGNORED = np.nextafter(np.float32(IGNORED), np.float32(0))


class NumberTrainer(WideTrainer[RegressionScores]):
    """A `WideTrainer` of numbers; the outputs of parts have mean 0 and variance 1 over the training documents."""

    @staticmethod
    def losses(logits: Tensor, labels: Tensor, config: LongspanConfig) -> Tensor:
        # The variance is that of a prediction of the mean, the largest there is.
        return (logits[:, 0] - _standardised(labels, config)).square() / 2

    @staticmethod
    def points(logits: Tensor, labels: Tensor, config: LongspanConfig) -> Tensor:
        return -(logits[:, 0] - _standardised(labels, config)).abs()

    @staticmethod
    def compare(parts: Tensor, both: Tensor, labels: Tensor, config: LongspanConfig) -> Parts:
        numbers = (in_units(logits, config)[:, 0] for logits in (*parts.unbind(1), both))
        errors = [(found - labels).abs().double() for found in numbers]
        sums = [torch.stack([each, torch.ones_like(each)], 1) for each in errors]
        return ratio_of_sums(RegressionScores, RegressionScores.headline(), sums)


def _standardised(labels: Tensor, config: LongspanConfig) -> Tensor:
    return (labels.double() - config.head.target_mean) / config.head.target_scale


class DocumentRegression(DocumentTask[RegressionScores, RegressionData]):
    """A number for each document, of any length."""

    data_config = RegressionData
    hub = Hub(
        "text-classification",
        ("regression", "long-document"),
        ("mae", "rmse", "spearmanr"),
        {"spearman": "spearmanr"},
    )
    data_hint = Task.data_hint
    scores = RegressionScores
    prediction = NumberPrediction
    model_class = LongspanForSequenceClassification
    unused = DocumentTask.unused | {"label_smoothing"}
    trainer_class = NumberTrainer
    facts: ClassVar[Facts] = {
        **DocumentTask.facts,
        "mean": ("mean", number),
        "standard_deviation": ("standard deviation", number),
        "baseline_mae": ("MAE of the training mean", number),
    }

    def columns(self, data: DataConfig) -> Sequence[Column]:
        return [Text("text", "text_column"), Number("number", "label_column", target=True)]

    def head(self, training: Dataset, data: RegressionData) -> dict[str, Any]:
        found = np.asarray(training["number"][:], dtype=np.float64)
        # Sums of very large numbers are infinite, which `_in_float32` says better.
        largest = float(np.abs(found).max())
        _in_float32(largest, "data.label_column")
        mean, scale = float(found.mean()), float(found.std())
        if found.min() == found.max():
            raise UserError(
                f"expected numbers that differ in column {data.label_column!r}, got {mean:g} for each of "
                f"{len(found):,} training documents; check data.label_column."
            )
        if scale <= SMALLEST_SPREAD * largest:
            raise UserError(
                f"expected numbers that differ by more than rounding in column {data.label_column!r}, got a standard "
                f"deviation of {scale:.3g} around {mean:g}; subtract the same number from all of them."
            )
        return {
            "id2label": {0: data.label_column},
            "label2id": {data.label_column: 0},
            "problem_type": "regression",
            "target_mean": mean,
            "target_scale": scale,
        }

    def target(self, config: LongspanConfig) -> Carried:
        return Carried("number", Value("float32"), _in_float32)

    def score(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> RegressionScores:
        mean, scale = float(config.head.target_mean), float(config.head.target_scale)
        return regression_scores(logits.squeeze(-1), targets, mean=mean, scale=scale)

    def answer(self, where: str, logits: Tensor, config: LongspanConfig) -> NumberPrediction:
        return NumberPrediction.of(where, logits.float().numpy()[0])

    def explained(self, config: LongspanConfig, prediction: Prediction, of: str) -> Target:
        return number_asked(config.id2label[0], of)

    def draw(
        self, scores: RegressionScores, logits: Tensor, targets: Tensor, config: LongspanConfig, folder: Path
    ) -> None:
        name = config.id2label[0]
        draw_predictions(logits.squeeze(-1).numpy(), targets.numpy(), scores, name, folder / "predicted.png")

    def errors(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> Mapping[str, Errors]:
        return {"mistakes": number_errors(logits.squeeze(-1), targets)}

    def describe(self, tokens: Dataset, config: LongspanConfig) -> dict[str, Any]:
        found = targets(tokens).double()
        return {
            **truncation_table(tokens),
            "mean": float(found.mean()),
            "standard_deviation": float(found.std(correction=0)),
            "baseline_mae": float((found - config.head.target_mean).abs().mean()),
        }

    def details(self, config: LongspanConfig) -> dict[str, Any]:
        head = config.head
        return {"training_mean": float(head.target_mean), "training_standard_deviation": float(head.target_scale)}

    def sections(self, evaluation: Evaluation) -> list[str]:
        scores = evaluation.scores
        rows = {"the model": (scores.mae, scores.rmse), "the training mean": tuple(scores.baseline.values())}
        errors = ([name, *map(number, errors)] for name, errors in rows.items())
        return [*super().sections(evaluation), table(["predicting", "MAE", "RMSE"], errors)]


def _in_float32(value: float, where: str) -> float:
    """Return a number as float32 has it."""
    if abs(value) > float(np.finfo(np.float32).max):
        raise UserError(f"{where}: expected a number below 3.4e38, got {value:g}; use a larger unit.")
    # This one number means no label, see `IGNORED`: its neighbour replaces it.
    return float(_NEAR_IGNORED) if np.float32(value) == IGNORED else value


#: With more documents, their density is drawn instead of a point for each.
POINTS = 2000


@needs_matplotlib
def draw_predictions(predicted: np.ndarray, true: np.ndarray, scores: RegressionScores, name: str, path: Path) -> None:
    """Draw predicted against true numbers, and residuals against predicted numbers.

    Args:
        predicted: `(n,)`.
        true: `(n,)`.
        scores: The scores of these numbers.
        name: Name of the number.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    predicted, true = predicted.astype(np.float64), true.astype(np.float64)
    low, high = min(predicted.min(), true.min()), max(predicted.max(), true.max())
    room = (high - low) * 0.04 or 1.0
    for axes, y in ((left, predicted), (right, true - predicted)):
        x = true if axes is left else predicted
        if len(x) > POINTS:
            drawn = axes.hexbin(x, y, gridsize=45, bins="log", mincnt=1, cmap="viridis")
            figure.colorbar(drawn, ax=axes, shrink=0.8, label="documents")
        else:
            axes.scatter(x, y, s=10, alpha=0.4, linewidths=0)
        axes.grid(alpha=0.3)
    ends = [low - room, high + room]
    left.plot(ends, ends, color="black", linestyle="--", linewidth=1, label="predicted = true")
    left.axhline(np.mean(true), color="gray", linestyle=":", linewidth=1, label="mean of the true")
    left.set(xlim=ends, ylim=ends, xlabel="true", ylabel="predicted", title=f"MAE {scores.mae:.4g}, R² {scores.r2:.3f}")
    left.legend(loc="upper left", framealpha=0.8)
    right.axhline(0, color="black", linestyle="--", linewidth=1)
    right.set(xlabel="predicted", ylabel="true - predicted", title="residuals")
    figure.suptitle(name, parse_math=False)
    save(figure, path)
