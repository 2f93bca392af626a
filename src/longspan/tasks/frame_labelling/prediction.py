"""Predictions of frame labelling: segments, as JSON and in RTTM, and their explanations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from longspan.data.batches.streams import pad
from longspan.data.processor import Places
from longspan.data.signals.decoding import blocks
from longspan.data.signals.frame_blocks import frame_blocks, windows
from longspan.data.signals.processor import FRAMES
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.explanations.question import Question
from longspan.machine.printing import printable
from longspan.models.limits import too_long
from longspan.results import Prediction
from longspan.tasks.base.case import Case, class_asked
from longspan.tasks.base.classes import labels
from longspan.tasks.base.task import Run
from longspan.tasks.frame_labelling.processor import FrameProcessor
from longspan.tasks.frame_labelling.scores import OUTSIDE
from longspan.tasks.frame_labelling.windows import cut_for


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


def frame_case(run: Run, row: Row, of: str, at: float | None, prediction: FramesPrediction) -> Case:
    """Case of the label of a recording at a time.

    What speaks for it are the frames of the window in which it is labelled.

    Args:
        run: The run.
        row: The recording.
        of: The label; by default that of the segment that it is in.
        at: Seconds; by default the middle of the first segment, or of the recording, if it has none.
        prediction: The segments.

    Raises:
        UserError: See `Task.case`.
    """
    model, processor, names = run.model, run.processor, labels(run.model.config)
    assert isinstance(processor, FrameProcessor)
    if prediction.segments is None:
        raise UserError(f"{row.where}: expected a recording to explain, got {prediction.error}; choose another row.")
    frames = np.concatenate(
        list(frame_blocks(processor.extractor, blocks(row.values["recording"], processor.sample_rate)))
    )
    seconds = _time(at, prediction.segments, len(frames) * processor.hop)
    inside = (one["label"] for one in prediction.segments if one["start"] <= seconds < one["end"])
    label = next(inside, names[OUTSIDE])
    frame = min(len(frames) - 1, max(0, round((seconds - processor.middle) / processor.hop)))
    stride = model.config.embeddings.stride
    cut = cut_for(run.recipe.data.max_length, stride)
    first, own = 0, 0
    for window in windows([frames], cut.size, cut.context):
        own += window.last - window.first
        if frame < own:
            break
        first += cut.size - 2 * cut.context
    read = processor.extractor.normalised(window.frames)
    if problem := too_long(model, len(read)):
        raise UserError(f"{row.where}: {problem}.")
    place = (frame - first) // stride
    batch = {name: each.to(model.device) for name, each in pad([{FRAMES: read}], processor.streams).items()}
    asked = class_asked(names, of or label).at(place)
    with torch.no_grad():
        logits = model(**batch).logits.float().cpu()
    begins = (first + np.arange(len(read))) * processor.hop
    places = Places("seconds", np.stack([begins, begins + processor.hop], 1))
    question = Question(model, batch, asked.value, asked.share, masked=False, at=place)
    said = {"label": label, "probabilities": dict(zip(names, logits[0, place].softmax(-1).tolist(), strict=True))}
    return Case(f"{row.where}, at {seconds:.2f} s", asked, question, places, said, outputs=logits)


def _time(at: float | None, segments: list[dict[str, float]], end: float) -> float:
    """Return the time that is explained, in seconds."""
    if at is None:
        return (segments[0]["start"] + segments[0]["end"]) / 2 if segments else end / 2
    if not 0 <= at <= end:
        raise UserError(f"expected seconds of the recording, from 0 to {end:.2f}, got {at:g}; choose a time within it.")
    return at
