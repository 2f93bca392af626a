"""Audio classification: `AudioClassification`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from torch import Tensor

from longspan.data.processor import Unreadable
from longspan.data.signals.decoding import blocks, pcm, raw_input, seconds_of
from longspan.data.signals.frame_blocks import frame_blocks
from longspan.data.signals.processor import FRAMES, AugmentedRecordings, RecordingProcessor
from longspan.data.sources.formats.rows import Row
from longspan.models import LongspanForAudioClassification
from longspan.models.embeddings.frames import Frames, FrameSettings
from longspan.models.hub.feature_extraction import LongspanFeatureExtractor
from longspan.models.limits import limits
from longspan.models.parts.streamed_pooling import StreamedPooling
from longspan.models.states import CACHE
from longspan.results import Prediction
from longspan.tasks.audio_classification.options import AudioData, PredictionOptions
from longspan.tasks.base.classes import ClassTask
from longspan.tasks.base.engine import check_outputs
from longspan.tasks.base.examples import ExamplePipeline
from longspan.tasks.base.options import LengthTrainingOptions
from longspan.tasks.base.task import Facts, Run, length_facts

AudioRun = Run[AudioData, LengthTrainingOptions, RecordingProcessor]


class AudioPipeline(ExamplePipeline[RecordingProcessor]):
    """Recordings, those in long files read in segments where the model allows it."""

    def __init__(self, run: AudioRun, options: Any) -> None:
        super().__init__(run, options)
        # Answers for stretches come as soon as these have come.
        every = isinstance(options, PredictionOptions) and bool(options.every)
        self.window = 1 if every else None
        self.segments = not every and not self.data.max_length and can_stream(run.model)

    def streams(self, row: Row) -> bool:
        try:
            return self.segments and is_long(row.values["recording"])
        except Unreadable:
            return False

    def stream(self, row: Row) -> Iterator[Prediction]:
        logits = streamed_logits(self.model, self.processor, row.values["recording"])
        check_outputs(logits)
        yield self.task.answer(row.where, logits, self.model.config)


class AudioClassification(ClassTask[AudioData, RecordingProcessor]):
    """One label for each recording, of any length."""

    data_config = AudioData
    pipeline_class = AudioPipeline
    processor = RecordingProcessor
    embeddings = (FrameSettings,)
    prediction_options = PredictionOptions
    model_class = LongspanForAudioClassification
    unused = ClassTask.unused - {"wide"}
    augmented_class = AugmentedRecordings
    example = "a recording"
    data_hint = (
        "data.path=FOLDER (a folder with one sub-folder of audio files per class, or a csv, tsv, jsonl or parquet file "
        "with paths), or data.train=FILE"
    )
    facts: ClassVar[Facts] = length_facts("recordings", "frames")

    def inputs_of(
        self,
        run: AudioRun,
        paths: Sequence[Path | str],
        data: AudioData,
        stdin: BinaryIO | None,
    ) -> Iterator[Row]:
        options: PredictionOptions | None = run.prediction
        if options is not None and options.pcm_rate:
            return of_pcm(raw_input(paths, stdin), options.every, options.pcm_rate)
        return self._stretches(run, super().inputs_of(run, paths, data, stdin))

    def inputs_in_memory(self, run: AudioRun, given: Any, data: AudioData) -> Iterator[Row]:
        return self._stretches(run, super().inputs_in_memory(run, given, data))

    def _stretches(self, run: AudioRun, rows: Iterator[Row]) -> Iterator[Row]:
        options: PredictionOptions | None = run.prediction
        if options is None or not options.every:
            return rows
        return of_rows(rows, options.every, run.processor.sample_rate)


#: Recordings of more seconds are read in segments where the model allows it, each of this number of positions.
LONG, SEGMENT = 60.0, 1024


def can_stream(model: LongspanForAudioClassification) -> bool:
    """Return whether a model reads recordings of any length in constant memory."""
    mixers = [block.mixer for block in model.longspan.backbone.layers]
    streaming = all(mixer.capabilities.streaming and mixer.bounded_state for mixer in mixers)
    return bool(model.config.causal) and streaming and not limits(model) and model.wide is None


def is_long(recording: Mapping[str, Any]) -> bool:
    """Return whether a recording is in a file and has more than `LONG` seconds."""
    return recording["samples"] is None and seconds_of(recording) > LONG


def streamed_logits(
    model: LongspanForAudioClassification, processor: RecordingProcessor, recording: Mapping[str, Any]
) -> Tensor:
    """Return the logits for a recording, (c,) float32: up to rounding, those for all of its frames at once.

    The recording is decoded twice, as its normalisation depends on all of it.

    Raises:
        Unreadable: It cannot be read.
    """
    extractor, rate = processor.extractor, processor.sample_rate
    mean, deviation = _moments(extractor, frame_blocks(extractor, blocks(recording, rate)))
    frames = (
        ((block - mean) / deviation).astype(np.float32) for block in frame_blocks(extractor, blocks(recording, rate))
    )
    body, pooling = model.longspan, StreamedPooling(model.pooling)
    assert isinstance(body.embeddings, Frames)
    with torch.inference_mode():
        states = body.init_states(1)
        for vectors in vector_blocks(body.embeddings, frames, model.device):
            found = body(inputs_embeds=vectors, past_key_values=states, use_cache=True)
            states = found[CACHE]
            pooling.add(found.last_hidden_state)
        logits: Tensor = model.classifier(pooling.result().to(model.dtype))[0]
        return logits.float().cpu()


def vector_blocks(embeddings: Frames, frames: Iterable[np.ndarray], device: torch.device) -> Iterator[Tensor]:
    """Yield the vectors of frames that come in blocks, (1, p, dim) at a time."""
    context, step = embeddings.reach, SEGMENT * embeddings.stride
    # Frames before the segment, of which its first vectors depend on, and the segment.
    before, kept = np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32)
    for block in frames:
        kept = np.concatenate([kept, block]) if len(kept) else block
        while len(kept) >= step + context:
            yield _vectors(embeddings, before, kept[: step + context], step, device)
            seen = np.concatenate([before, kept[:step]]) if len(before) else kept[:step]
            before, kept = seen[len(seen) - min(context, len(seen)) :], kept[step:]
    if len(kept):
        yield _vectors(embeddings, before, kept, len(kept), device)


def _vectors(embeddings: Frames, before: np.ndarray, frames: np.ndarray, count: int, device: torch.device) -> Tensor:
    """Return the vectors of the first `count` frames after those `before` them."""
    given = np.concatenate([before, frames]) if len(before) else frames
    first, positions = len(before) // embeddings.stride, -(-count // embeddings.stride)
    found = embeddings({FRAMES: torch.from_numpy(given).unsqueeze(0).to(device)})
    return found[:, first : first + positions]


def _moments(extractor: LongspanFeatureExtractor, frames: Iterable[np.ndarray]) -> tuple[Any, Any]:
    """Mean and standard deviation of all frames of a recording, to normalise them by."""
    axis = extractor.axis
    count, total, squares = 0, np.float64(0), np.float64(0)
    for block in frames if extractor.normalise != "none" else ():
        values = block.astype(np.float64)
        count += values.size if axis is None else len(values)
        total, squares = total + values.sum(axis), squares + np.square(values).sum(axis)
    if not count:
        return 0.0, 1.0
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - np.square(mean), 0))
    return mean, np.maximum(deviation, extractor.least)


def of_rows(rows: Iterable[Row], seconds: float, rate: int) -> Iterator[Row]:
    """Yield a row for each stretch of the recordings in rows, in constant memory.

    Times count from the beginning of a row's file. A row that cannot be read is yielded with its problem, after the
    stretches before it.

    Args:
        rows: Rows with a `recording`.
        seconds: The length of a stretch; the last of a recording may be shorter.
        rate: Samples per second of the stretches.
    """
    for row in rows:
        if row.problem:
            yield row
            continue
        try:
            recording = row.values["recording"]
            pieces = _cut(blocks(recording, rate), max(1, round(seconds * rate)))
            for number, sound in enumerate(pieces):
                begin = (recording["start"] or 0.0) + number * seconds
                yield _row(f"{row.where}, ", begin, sound, rate, row.values)
        except Unreadable as error:
            yield row._replace(problem=str(error).removesuffix("."))


def of_pcm(stream: BinaryIO, seconds: float, rate: int) -> Iterator[Row]:
    """Yield a row for each stretch of raw PCM, as soon as it has come: see `longspan.data.signals.decoding.pcm`."""
    for number, sound in enumerate(pcm(stream, seconds, rate)):
        yield _row("standard input, ", number * seconds, sound, rate, {})


def _cut(pieces: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yield samples in stretches of `size`, the last one perhaps shorter."""
    kept = np.zeros(0, np.float32)
    for piece in pieces:
        kept = np.concatenate([kept, piece])
        while len(kept) >= size:
            yield kept[:size]
            kept = kept[size:]
    if len(kept):
        yield kept


def _row(begin: str, start: float, sound: np.ndarray, rate: int, values: dict[str, Any]) -> Row:
    end = start + len(sound) / rate
    found = {"path": None, "bytes": None, "samples": sound, "rate": rate, "start": None, "end": None}
    return Row({**values, "recording": found}, f"{begin}{start:.2f} to {end:.2f} s")
