"""Results of multi-label classifiers: tables, and what the model card says."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longspan.report import count, scores_table, share, table
from longspan.results import Evaluation
from longspan.tasks.base.task import Task
from longspan.tasks.multi_label_classification.scores import MultiLabelScores, precision_recall

_COLUMNS = {
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "average_precision": "average precision",
    "threshold": "threshold",
}


def evaluation_report(task: Task, evaluation: Evaluation[MultiLabelScores]) -> str:
    """Report that `longspan evaluate` prints."""
    scores, split = evaluation.scores, evaluation.split
    labels = (
        [name, *(share(row[key]) for key in _COLUMNS), count(row["support"])] for name, row in scores.per_label.items()
    )
    parts = [
        task.data_table({split: evaluation.details["truncation"]}),
        scores_table({split: scores}),
        table(["label", *_COLUMNS.values(), "documents"], labels),
        f"written to {evaluation.folder}",
    ]
    return "\n\n".join(parts)


#: Labels that are drawn, the most frequent ones; more could not be told apart.
LABELS = 8


def precision_recall_curves(
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

    from longspan.report.pictures import save, shortened

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
