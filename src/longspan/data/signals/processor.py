"""Recordings as frames of features: `RecordingProcessor`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset

from longspan.data.batches.drawn import AugmentedExamples, Index
from longspan.data.batches.streams import Stream
from longspan.data.columns.kinds import Column
from longspan.data.columns.media import Recording
from longspan.data.processor import Encoded, Places, Processor, Unreadable
from longspan.data.signals.augmentation import Augmentation, faster
from longspan.data.signals.decoding import rate_of, samples
from longspan.data.signals.options import RecordingData
from longspan.machine.printing import note
from longspan.models.hub.feature_extraction import RATES, LongspanFeatureExtractor
from longspan.options import REQUIRED, option, same_as

#: The main stream, as in transformers.
FRAMES = "input_features"
#: The highest sample rate that is chosen without being asked for: speech has little above half of it.
MOST_RATE = 16_000
_LOOKED_AT = 1000
_SETTINGS = ("features", "bands", "frame_seconds", "hop_seconds", "normalise")


@dataclass(frozen=True)
class RecordingProcessor(Processor):
    """Recordings as frames: see `longspan.data.signals.options.RecordingData`, from which its settings come."""

    files: ClassVar[tuple[str, ...]] = ("processor.json", "preprocessor_config.json")

    sample_rate: int = option(REQUIRED, "samples per second", RATES)
    features: str = same_as(RecordingData, "features")
    bands: int = same_as(RecordingData, "bands")
    frame_seconds: float = same_as(RecordingData, "frame_seconds")
    hop_seconds: float = same_as(RecordingData, "hop_seconds")
    normalise: str = same_as(RecordingData, "normalise")

    def check_values(self) -> None:
        assert self.extractor

    @property
    def streams(self) -> Mapping[str, Stream]:
        return {FRAMES: Stream("float32", width=self.width, mask="attention_mask")}

    @property
    def width(self) -> int:
        """Numbers in a frame."""
        return self.bands if self.features == "mel" else max(1, round(self.hop_seconds * self.sample_rate))

    @property
    def extractor(self) -> LongspanFeatureExtractor:
        """Feature extractor that makes frames of samples, also for transformers."""
        return LongspanFeatureExtractor(
            self.width,
            self.sample_rate,
            features=self.features,
            frame_seconds=self.frame_seconds,
            hop_seconds=self.hop_seconds,
            normalise=self.normalise,
        )

    @classmethod
    def columns(cls, data: RecordingData) -> Sequence[Column]:
        return [Recording("recording", "recording_column", start=data.start_column, end=data.end_column)]

    @classmethod
    def learned(cls, training: Dataset, data: RecordingData) -> "RecordingProcessor":
        if data.filter and data.features == "samples":
            note(f"data.filter={data.filter:g} has no effect on samples (data.features=samples)")
        return cls(data.sample_rate or usual_rate(training["recording"]), *(getattr(data, name) for name in _SETTINGS))

    def encode(self, rows: Mapping[str, Sequence[Any]], data: RecordingData) -> list[Encoded]:
        found, extractor, most = [], self.extractor, data.max_length
        for recording in rows["recording"]:
            frames = extractor.frames(samples(recording, self.sample_rate))
            kept = frames[:most] if most else frames
            found.append(Encoded({FRAMES: extractor.normalised(kept)}, len(frames) - len(kept)))
        return found

    def places(self, values: Mapping[str, Any], encoded: Encoded, data: Any) -> Places:
        hop = self.extractor.hop / self.sample_rate
        first = np.arange(len(encoded.streams[FRAMES])) * hop
        return Places("seconds", np.stack([first, first + hop], 1))

    def augmented(
        self, sound: np.ndarray, change: Augmentation, random: np.random.Generator, max_length: int = 0
    ) -> dict[str, np.ndarray]:
        """Return samples (n,) as streams, changed at random, with at most this number of frames; 0 for all."""
        extractor, speed, warp = self.extractor, change.tempo(random), change.warping(random)
        if self.features == "samples" and speed != 1:
            sound = faster(sound, speed)
        # Resampling would leave the highest bands empty, or lose them, which new recordings do not.
        frames = extractor.frames(change.waveform(sound, self.sample_rate, random), speed * warp, speed)
        kept = change.filtered(frames[:max_length] if max_length else frames, random)
        return {FRAMES: change.frames(extractor.normalised(kept), random)}

    def settings(self, model: Mapping[str, Any]) -> dict[str, Any]:
        return {"channels": self.width}

    @property
    def slow(self) -> bool:
        return True

    def save_pretrained(self, folder: str | Path) -> None:
        super().save_pretrained(folder)
        self.extractor.save_pretrained(folder)

    def facts(self, data: Any) -> Any:
        # Not how training changes them.
        return {"max_length": data.max_length}


def usual_rate(recordings: Sequence[Mapping[str, Any]]) -> int:
    """Return the most frequent sample rate of recordings, the lowest of several, at most `MOST_RATE`.

    Raises:
        Unreadable: None can be read.
    """
    step = -(-len(recordings) // _LOOKED_AT)
    rates: Counter[int] = Counter()
    problem: Unreadable | None = None
    for number in range(0, len(recordings), step):
        try:
            rates[rate_of(recordings[number]) or MOST_RATE] += 1
        except Unreadable as error:
            problem = problem or error
    if not rates and problem is not None:
        raise problem
    return min(MOST_RATE, min(rates, key=lambda rate: (-rates[rate], rate)))


class AugmentedRecordings(AugmentedExamples):
    """Recordings as frames. They are decoded again in each epoch."""

    processor: RecordingProcessor
    data: RecordingData

    def draw(self, index: Index, random: np.random.Generator) -> dict[str, Any]:
        row = self.rows[index[1]]
        sound = samples(row["recording"], self.processor.sample_rate)
        frames = self.processor.augmented(sound, self.change, random, self.data.max_length)
        return {"labels": row["labels"], **frames}
