"""What `longspan evaluate` prints about labelled frames."""

from longspan.report import count, scores_table, share, table
from longspan.results import Evaluation
from longspan.tasks.base import Task
from longspan.tasks.frame_labelling.scores import FrameScores


def evaluation_report(task: Task, evaluation: Evaluation[FrameScores]) -> str:
    """Return what `longspan evaluate` prints."""
    scores, split, details = evaluation.scores, evaluation.split, evaluation.details
    keys = ("precision", "recall", "f1")
    classes = (
        [name, *(share(row[key]) for key in keys), count(row["support"])] for name, row in scores.per_class.items()
    )
    edits = [count(float(getattr(scores, key))) for key in ("segments", "substitutions", "deletions", "insertions")]
    parts = [
        task.data_table({split: details["data_summary"]}),
        f"penalty of changes of the label: {details['switch_penalty']:g} nats, chosen on the validation split",
        scores_table({split: scores}),
        table(["segments", "substitutions", "deletions", "insertions"], [edits]),
        table(["label", "precision", "recall", "F1", "frames"], classes),
        f"written to {evaluation.folder}",
    ]
    return "\n\n".join(parts)
