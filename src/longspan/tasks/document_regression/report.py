"""Results of document regression: tables, and what the model card says."""

from pathlib import Path

import numpy as np

from longspan.report import number, scores_table, table
from longspan.results import Evaluation
from longspan.tasks.base.task import Task
from longspan.tasks.document_regression.scores import RegressionScores


def evaluation_report(task: Task, evaluation: Evaluation[RegressionScores]) -> str:
    """Report that `longspan evaluate` prints."""
    scores, split = evaluation.scores, evaluation.split
    rows = {"the model": (scores.mae, scores.rmse), "the training mean": tuple(scores.baseline.values())}
    parts = [
        task.data_table({split: evaluation.details["truncation"]}),
        scores_table({split: scores}),
        table(["predicting", "MAE", "RMSE"], ([name, *map(number, errors)] for name, errors in rows.items())),
        f"written to {evaluation.folder}",
    ]
    return "\n\n".join(parts)


#: With more documents, their density is drawn instead of a point for each.
POINTS = 2000


def predicted_and_true(
    predicted: np.ndarray, true: np.ndarray, scores: RegressionScores, name: str, path: Path
) -> None:
    """Draw predicted against true numbers, and residuals against predicted numbers.

    Args:
        predicted: `(n,)`.
        true: `(n,)`.
        scores: The scores of these numbers.
        name: What the number is called.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure

    from longspan.report.pictures import save

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
