"""Recordings in windows: those of data sets, and training windows that differ in each epoch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value

from longspan.data.batches.drawn import DrawnExamples, Index
from longspan.data.batches.encoding import file_facts, mapped_once
from longspan.data.batches.streams import Stream
from longspan.data.batches.unreadable import refusal
from longspan.data.columns.kept import class_number
from longspan.data.processor import Unreadable
from longspan.data.signals.augmentation import faster
from longspan.data.signals.decoding import samples, seconds_of
from longspan.data.signals.frame_blocks import windows
from longspan.data.signals.processor import FRAMES
from longspan.models import LongspanConfig
from longspan.models.parts.losses import IGNORED
from longspan.tasks.frame_labelling.options import FrameData
from longspan.tasks.frame_labelling.processor import FrameProcessor, classes_at

#: Labels of frames, as a stream.
LABELS = {"labels": Stream(fill=IGNORED)}
#: One of as many parts of a window is context on either side.
_CONTEXT = 8
#: Recordings that are read and written at a time.
_AT_ONCE = 4


@dataclass(frozen=True)
class Cut:
    """Windows of recordings: frames of a window, 0 for all, and of its context on either side."""

    size: int
    context: int


def cut_for(max_length: int, stride: int) -> Cut:
    """Windows of recordings for a model with this number of frames for each position."""
    size = max(1, max_length // stride) * stride if max_length else 0
    return Cut(size, size // _CONTEXT // stride * stride)


def windowed(
    examples: Dataset, processor: FrameProcessor, data: FrameData, config: LongspanConfig, name: str, *, drawn: bool
) -> Dataset:
    """Return the windows of a split's recordings, cached.

    Each has its frames as a stream, normalised, `labels` (a class number for each frame) and `length` (frames). It has
    the number of its `document`, and the frames from `first` to `last` are its own. With `drawn`, it has what
    `DrawnWindows` reads, too.

    Raises:
        Unreadable: A recording cannot be read, or does not go with its segments.
        UserError: A label is not among those of the model.
    """
    numbers = {label: number for number, label in config.id2label.items()}
    known = class_number("segments", numbers).convert
    assert known is not None
    cut = cut_for(data.max_length, config.embeddings.stride)
    stream = processor.streams[FRAMES]
    features = {FRAMES: stream.feature, "labels": LABELS["labels"].feature}
    features |= {key: Value("int32") for key in ("length", "document", "first", "last")}
    if drawn:
        features |= {key: examples.features[key] for key in ("recording", "segments")}
        features |= {key: Value("float64") for key in ("begin", "lead")}

    def convert(batch: Mapping[str, list[Any]], rows: list[int]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {key: [] for key in features}
        for place, number in enumerate(rows):
            recording, segments, where = (batch[key][place] for key in ("recording", "segments", "where"))
            for label in segments["label"]:
                known(label, where)
            try:
                frames = processor.frames(recording, segments)
            except Unreadable as error:
                raise refusal(where, str(error)) from None
            excerpts = _excerpts(recording, processor, data) if drawn else None
            start = 0
            for window in windows([frames], cut.size, cut.context):
                begin, length = start * processor.hop, len(window.frames)
                times = begin + np.arange(length) * processor.hop + processor.middle
                one = {
                    FRAMES: stream.flat(processor.extractor.normalised(window.frames)),
                    "labels": classes_at(times, segments, numbers),
                    "length": length,
                    "document": number,
                    "first": window.first,
                    "last": window.last,
                }
                if excerpts is not None:
                    excerpt, lead = excerpts(begin, length)
                    one |= {"recording": excerpt, "segments": segments, "begin": begin, "lead": lead}
                for key, value in one.items():
                    found[key].append(value)
                start += cut.size - 2 * cut.context
        return found

    facts = [processor.fingerprint(), cut.size, cut.context, numbers, [drawn, data.shift, data.speed]]
    facts.append(file_facts(examples, processor, data))
    title = f"{processor.work} {name}"
    return mapped_once(
        examples, convert, Features(features), facts, title, _AT_ONCE, slow=processor.slow, with_indices=True
    )


def _excerpts(recording: Mapping[str, Any], processor: FrameProcessor, data: FrameData) -> Any:
    """Return a function that makes the excerpt around a window, given its begin in seconds and its frames.

    It returns a value of the column, and the seconds in it before the window.
    """
    rate, offset = processor.sample_rate, recording["start"] or 0.0
    in_file = recording["path"] is not None
    sound = None if in_file else samples(recording, rate)
    last = offset + seconds_of(recording) if in_file else 0.0

    def excerpt(begin: float, length: int) -> tuple[dict[str, Any], float]:
        seconds = ((length - 1) * processor.hop + 2 * processor.middle) * (1 + data.speed)
        start, end = max(0.0, begin - data.shift), begin + seconds + data.shift
        if sound is not None:
            part = sound[round(start * rate) : round(end * rate)]
            found = {**recording, "bytes": None, "samples": part, "rate": rate, "start": None, "end": None}
            return found, begin - start
        return {**recording, "start": start + offset, "end": min(end + offset, last)}, begin - start

    return excerpt


class DrawnWindows(DrawnExamples[dict[str, Any]]):
    """Training windows that are changed at random. They are decoded again in each epoch.

    Args:
        rows: Result of `windowed` with `drawn`.
        processor: Processor that makes frames of them.
        data: How they are changed.
        numbers: Class numbers by label.
        seed: Seed of the changes.
    """

    def __init__(
        self, rows: Dataset, processor: FrameProcessor, data: FrameData, numbers: Mapping[str, int], seed: int
    ) -> None:
        super().__init__(seed)
        self.rows = rows.select_columns(["recording", "segments", "begin", "lead", "length"])
        self.processor, self.numbers = processor, numbers
        # Which excerpt is read is drawn here, not by changing what is in it.
        self.shift, self.change = data.shift, replace(data.augmentation, shift=0.0)

    def __len__(self) -> int:
        return len(self.rows)

    def draw(self, index: Index, random: np.random.Generator) -> dict[str, Any]:
        row = self.rows[index[1]]
        extractor, rate = self.processor.extractor, self.processor.sample_rate
        sound, change = samples(row["recording"], rate), self.change
        speed, warp = change.tempo(random), change.warping(random)
        hop = round(extractor.hop * speed) if extractor.features == "mel" else extractor.hop * speed
        size = round((row["length"] - 1) * hop + extractor.reach)
        moved = round((row["lead"] + random.uniform(-self.shift, self.shift)) * rate)
        first = min(max(0, moved), max(0, len(sound) - extractor.reach))
        sound = change.waveform(sound[first : first + size], rate, random)
        if extractor.features == "samples" and speed != 1:
            sound = faster(sound, speed)
        frames = change.filtered(extractor.frames(sound, speed * warp, speed)[: row["length"]], random)
        middle = self.processor.middle * (1 if extractor.features == "mel" else speed)
        times = row["begin"] - row["lead"] + first / rate + np.arange(len(frames)) * hop / rate + middle
        labels = classes_at(times, row["segments"], self.numbers)
        return {FRAMES: change.frames(extractor.normalised(frames), random), "labels": labels}


def recordings(tokens: Dataset, logits: np.ndarray, stride: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the classes (t,) of the frames of each recording, and the scores (p, c) of its positions.

    Args:
        tokens: Windows, as `windowed` returns them, those of a recording one after the other.
        logits: The outputs for their positions, one window after the other.
        stride: Frames for each position.
    """
    rows = tokens.select_columns(["labels", "length", "document", "first", "last"]).with_format("numpy")
    right: list[np.ndarray] = []
    scores: list[np.ndarray] = []
    start, document = 0, None
    for row in rows:
        if right and row["document"] != document:
            yield np.concatenate(right), np.concatenate(scores)
            right, scores = [], []
        document, first, last = row["document"], int(row["first"]), int(row["last"])
        right.append(np.asarray(row["labels"], np.int64)[first:last])
        scores.append(logits[start + first // stride : start + -(-last // stride)])
        start += -(-int(row["length"]) // stride)
    if right:
        yield np.concatenate(right), np.concatenate(scores)
