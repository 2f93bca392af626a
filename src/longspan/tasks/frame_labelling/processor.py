"""Recordings with labelled segments as frames: `FrameProcessor`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from longspan.data.columns.kinds import Column
from longspan.data.columns.segments import Segments, WholeRecording
from longspan.data.processor import Encoded, Unreadable
from longspan.data.signals.decoding import ROUNDING, blocks
from longspan.data.signals.frame_blocks import frame_blocks
from longspan.data.signals.processor import FRAMES, RecordingProcessor
from longspan.tasks.frame_labelling.options import FrameData
from longspan.tasks.frame_labelling.scores import OUTSIDE


class FrameProcessor(RecordingProcessor):
    """Recordings as frames, not normalised, as windows of them are; segments are checked against them."""

    @classmethod
    def columns(cls, data: FrameData) -> Sequence[Column]:  # type: ignore[override]
        recording = WholeRecording("recording", "recording_column")
        start, end, label = data.start_column, data.end_column, data.label_column
        return [recording, Segments("segments", "segments_column", start=start, end=end, label=label)]

    def encode(self, rows: Mapping[str, Sequence[Any]], data: Any) -> list[Encoded]:
        both = zip(rows["recording"], rows["segments"], strict=True)
        return [Encoded({FRAMES: self.frames(recording, segments)}) for recording, segments in both]

    def frames(self, recording: Mapping[str, Any], segments: Mapping[str, Any]) -> np.ndarray:
        """Return the frames of a recording, (t, width). Raises Unreadable, also for segments beyond its end."""
        sound = Counted(blocks(recording, self.sample_rate))
        found = np.concatenate(list(frame_blocks(self.extractor, sound)))
        seconds, end = sound.count / self.sample_rate, max(segments["end"], default=0.0)
        if end > seconds + ROUNDING:
            name = recording["path"] or "the recording"
            raise Unreadable(
                f"expected segments within {name!r}, which is {seconds:.2f} seconds long, got one that ends at "
                f"{end:g}; correct the times, or restore the file."
            )
        return found

    @property
    def middle(self) -> float:
        """Seconds from the first sample that a frame depends on to the middle of its window."""
        return self.extractor.reach / 2 / self.sample_rate

    @property
    def hop(self) -> float:
        """Seconds from one frame to the next."""
        return self.extractor.hop / self.sample_rate

    def facts(self, data: Any) -> Any:
        # Windows are cut later.
        return {}


class Counted:
    """An iterable of pieces of sound that counts the samples it has yielded."""

    def __init__(self, pieces: Iterable[np.ndarray]) -> None:
        self.pieces, self.count = pieces, 0

    def __iter__(self) -> Iterator[np.ndarray]:
        for piece in self.pieces:
            self.count += len(piece)
            yield piece


def classes_at(times: np.ndarray, segments: Mapping[str, Sequence[Any]], numbers: Mapping[str, int]) -> np.ndarray:
    """Return the class numbers, (t,), at times in seconds, given the segments of a recording in order."""
    if not len(segments["start"]):
        return np.full(len(times), OUTSIDE, np.int64)
    classes = np.array([numbers[label] for label in segments["label"]])
    place = np.searchsorted(np.asarray(segments["start"]), times, "right") - 1
    inside = (place >= 0) & (times < np.asarray(segments["end"])[place])
    found: np.ndarray = np.where(inside, classes[place], OUTSIDE)
    return found
