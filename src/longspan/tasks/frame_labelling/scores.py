"""Scores of labelled frames, and of the segments that they make."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longspan.errors import UserError
from longspan.results.scores import Scores, score

#: The class of frames outside of all segments.
OUTSIDE = 0


@dataclass(frozen=True)
class FrameScores(Scores):
    """Scores of labelled frames.

    Attributes:
        accuracy: Share of the frames with the right label, those outside of segments included.
        macro_f1: Mean of F1 over the classes that occur in the labels or the predictions, frame by frame.
        segment_error: Segment error rate. Of each recording, equal labels that follow each other are merged, and those
            outside of segments are left out. This gives two sequences of labels. Their Levenshtein distances
            (substitutions, deletions and insertions), summed over the recordings, are divided by the number of segments
            in the references; by 1 where these have none. For digits, it is the digit error rate. It may exceed 1.
        substitutions, deletions, insertions: Their numbers in an alignment with the smallest distance.
        segments: The number of segments in the references, merged likewise.
        per_class: For each name its `precision`, `recall`, `f1` and `support` (frames), 0 where undefined.
        confusion: Frames, rows true and columns predicted.
    """

    per_class: dict[str, dict[str, float]]
    confusion: list[list[int]]
    segments: int
    substitutions: int
    deletions: int
    insertions: int
    accuracy: float = score("frame accuracy", higher_is_better=True, share=True)
    macro_f1: float = score("macro-F1", higher_is_better=True, share=True)
    segment_error: float = score("segment error rate", higher_is_better=False, share=True)


def frame_scores(right: Sequence[np.ndarray], found: Sequence[np.ndarray], names: Sequence[str]) -> FrameScores:
    """Score the labels of the frames of recordings.

    Args:
        right: For each recording (t,) class numbers.
        found: As many, those that a model gives.
        names: The class names; the first one is that of frames outside of segments.

    Raises:
        UserError: There are no frames.
    """
    classes = len(names)
    pairs = sum((np.bincount(a * classes + b, minlength=classes**2) for a, b in zip(right, found, strict=True)), 0)
    confusion = np.reshape(pairs, (classes, classes)) if len(right) else np.zeros((classes, classes), np.int64)
    frames = int(confusion.sum())
    if not frames:
        raise UserError("expected at least one recording with frames to score, got none; choose other data.")
    hits, true, given = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    precision, recall = hits / np.maximum(given, 1), hits / np.maximum(true, 1)
    f1 = 2 * hits / np.maximum(true + given, 1)
    edits, segments = np.zeros(3, np.int64), 0
    for one, other in zip(right, found, strict=True):
        reference = merged(one)
        edits += edit_counts(reference, merged(other))
        segments += len(reference)
    return FrameScores(
        accuracy=float(hits.sum() / frames),
        macro_f1=float(f1[true + given > 0].mean()),
        segment_error=float(edits.sum() / max(1, segments)),
        segments=segments,
        substitutions=int(edits[0]),
        deletions=int(edits[1]),
        insertions=int(edits[2]),
        per_class={
            name: {
                "precision": float(precision[number]),
                "recall": float(recall[number]),
                "f1": float(f1[number]),
                "support": int(true[number]),
            }
            for number, name in enumerate(names)
        },
        confusion=confusion.tolist(),
    )


def merged(labels: np.ndarray) -> np.ndarray:
    """Return class numbers (t,) with equal neighbours merged, without those outside of segments."""
    kept = labels[np.flatnonzero(np.diff(labels, prepend=-1))]
    found: np.ndarray = kept[kept != OUTSIDE]
    return found


def edit_counts(reference: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Return the substitutions, deletions and insertions, (3,), that turn one sequence into another.

    Their sum is the Levenshtein distance (1966). The time is the product of the lengths; rows of the table are computed
    at once, as the cost of insertions along one is a running minimum.
    """
    places = np.arange(len(given) + 1)
    table = np.empty((len(reference) + 1, len(given) + 1), np.int32)
    table[0] = places
    for number, label in enumerate(reference, 1):
        above = table[number - 1]
        row = np.minimum(above + 1, np.concatenate([[number], above[:-1] + (given != label)]))
        table[number] = np.minimum.accumulate(row - places) + places
    counts, row, column = np.zeros(3, np.int64), len(reference), len(given)
    while row or column:
        here = table[row, column]
        if row and column and here == table[row - 1, column - 1] + (reference[row - 1] != given[column - 1]):
            counts[0] += reference[row - 1] != given[column - 1]
            row, column = row - 1, column - 1
        elif row and here == table[row - 1, column] + 1:
            counts[1] += 1
            row -= 1
        else:
            counts[2] += 1
            column -= 1
    return counts
