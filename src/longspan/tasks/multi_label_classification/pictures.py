"""Pictures of a multi-label classifier's scores."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from longspan.report.pictures import save, shortened
from longspan.tasks.multi_label_classification.scores import MultiLabelScores, precision_recall

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
