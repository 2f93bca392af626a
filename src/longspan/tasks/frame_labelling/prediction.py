"""Predictions of frame labelling: segments, as JSON and in RTTM."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from longspan.machine.printing import printable
from longspan.results import Prediction
from longspan.tasks.frame_labelling.scores import OUTSIDE


@dataclass(frozen=True)
class FramesPrediction(Prediction):
    """The segments of a recording.

    Attributes:
        segments: Each with its `start` and `end` in seconds, its `label`, and its `confidence`, the mean probability of
            the label over the positions of the segment. What is between them is outside of all segments.
    """

    segments: list[dict[str, Any]] | None = None

    def to_rttm(self) -> str:
        """Return a line for each segment in the format RTTM of NIST, with labels in place of speakers.

        White space within names becomes "_", as fields end there. An error is a comment.
        """
        if self.segments is None:
            return f";; {printable(f'{self.where}: {self.error}')}\n"
        file = _field(self.where)
        lines = (
            f"SPEAKER {file} 1 {one['start']:.3f} {one['end'] - one['start']:.3f} <NA> <NA> {_field(one['label'])} "
            f"{one['confidence']:.4f} <NA>\n"
            for one in self.segments
        )
        return "".join(lines)


def _field(text: str) -> str:
    return "_".join(printable(text).split()) or "_"


class Segmenter:
    """Labels of positions as segments, each as soon as it has ended.

    Args:
        names: The class names.
        position: Seconds from one position to the next.
        lead: Seconds by which the first sample that counts for a position comes after `position` times its number: a
            frame counts for the middle of its window.
    """

    def __init__(self, names: Sequence[str], position: float, lead: float) -> None:
        self.names, self.position, self.lead = names, position, lead
        self.count, self.start, self.label = 0, 0, OUTSIDE
        self.confidences: list[np.ndarray] = []

    def add(self, labels: np.ndarray, scores: np.ndarray) -> list[dict[str, Any]]:
        """Return the segments that have ended, given the labels of more positions, (n,), and log-probabilities, (n,
        c)."""
        found = []
        changes = np.flatnonzero(np.diff(labels, prepend=self.label)).tolist()
        for first, last in zip([0, *changes], [*changes, len(labels)], strict=True):
            if first < last and labels[first] != self.label:
                found += self._ended(self.count + first)
                self.start, self.label = self.count + first, int(labels[first])
            if self.label != OUTSIDE:
                self.confidences.append(np.exp(scores[first:last, self.label]))
        self.count += len(labels)
        return found

    def end(self, seconds: float) -> list[dict[str, Any]]:
        """Return the last segment, if it lasts until the end of the recording, a time in seconds."""
        return self._ended(self.count, seconds)

    def _ended(self, place: int, seconds: float | None = None) -> list[dict[str, Any]]:
        if self.label == OUTSIDE:
            return []
        confidence = float(np.concatenate(self.confidences).mean())
        self.confidences = []
        start = self.start * self.position + self.lead if self.start else 0.0
        end = place * self.position + self.lead if seconds is None else seconds
        return [
            {
                "start": round(start, 3),
                "end": round(end, 3),
                "label": self.names[self.label],
                "confidence": round(confidence, 4),
            }
        ]
