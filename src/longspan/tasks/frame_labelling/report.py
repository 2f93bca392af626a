"""Report of `longspan evaluate` on labelled frames."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from datasets import Dataset

from longspan.report import count, scores_table, share, table
from longspan.results import Evaluation
from longspan.results.mistakes import Mistakes
from longspan.tasks.base.task import Task
from longspan.tasks.frame_labelling.processor import FrameProcessor
from longspan.tasks.frame_labelling.scores import FrameScores


def mistakes(
    right: Sequence[np.ndarray],
    given: Sequence[np.ndarray],
    recordings: Dataset,
    names: Sequence[str],
    processor: FrameProcessor,
) -> Mistakes:
    """Return the stretches of recordings with one wrong label in place of another, the longest first.

    Args:
        right: The right classes of the frames of each recording, (t,).
        given: The model's, likewise.
        recordings: They have `where`.
        names: The classes.
        processor: Says where frames are.
    """
    found: list[tuple[int, int, int]] = []
    for number, (gold, said) in enumerate(zip(right, given, strict=True)):
        changes = np.flatnonzero((np.diff(gold) != 0) | (np.diff(said) != 0)) + 1
        stretches = pairwise([0, *changes.tolist(), len(gold)])
        found += [(number, begin, end) for begin, end in stretches if begin < end and gold[begin] != said[begin]]
    lead = processor.middle - processor.hop / 2

    def tell(one: int) -> dict[str, str]:
        number, begin, end = found[one]
        start, stop = (max(0.0, frame * processor.hop + lead) for frame in (begin, end))
        return {
            "where": f"{recordings[number]['where']}, {start:.2f} to {stop:.2f} s",
            "expected": names[int(right[number][begin])],
            "said": names[int(given[number][begin])],
        }

    return Mistakes.ranked("seconds", [(end - begin) * processor.hop for _, begin, end in found], tell)


def evaluation_report(task: Task, evaluation: Evaluation[FrameScores]) -> str:
    """Report that `longspan evaluate` prints."""
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
