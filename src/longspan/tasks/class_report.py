"""What `longspan evaluate` prints about classifiers, of whatever kind of examples."""

from longspan.report import count, scores_table, share, table
from longspan.results import Evaluation
from longspan.tasks.base import Task
from longspan.tasks.class_scores import ClassificationScores


def evaluation_report(task: Task, evaluation: Evaluation[ClassificationScores]) -> str:
    """Return what `longspan evaluate` prints."""
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
