"""Audio classification: `AudioClassification`."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from longspan.data.processor import Unreadable
from longspan.data.signals.augmented import AugmentedRecordings
from longspan.data.signals.decoding import raw_input
from longspan.data.signals.processor import RecordingProcessor
from longspan.data.sources.formats.rows import Row
from longspan.models import LongspanForAudioClassification
from longspan.models.embeddings.frames import FrameSettings
from longspan.report import count
from longspan.results import Prediction
from longspan.tasks.audio_classification import baselines
from longspan.tasks.audio_classification.options import AudioData, PredictionOptions
from longspan.tasks.audio_classification.streaming import can_stream, is_long, streamed_logits
from longspan.tasks.audio_classification.stretches import of_pcm, of_rows
from longspan.tasks.base import Baseline, Run
from longspan.tasks.baselines import baselines_in
from longspan.tasks.class_scores import ClassificationScores
from longspan.tasks.classes import ClassTask
from longspan.tasks.examples import Facts
from longspan.tasks.options import LengthTrainingOptions


class AudioClassification(ClassTask[AudioData]):
    """One label for each recording, of any length."""

    data_config = AudioData
    processor = RecordingProcessor
    embeddings = (FrameSettings,)
    prediction_options = PredictionOptions
    model_class = LongspanForAudioClassification
    augmented_class = AugmentedRecordings
    example = "a recording"
    data_hint = (
        "data.path=FOLDER (a folder with one sub-folder of audio files per class, or a csv, tsv, jsonl or parquet file "
        "with paths), or data.train=FILE"
    )
    facts: ClassVar[Facts] = {
        "documents": ("recordings", count),
        "tokens": ("frames", count),
        "median_length": ("median length", count),
        "longest": ("longest", count),
        "cut_documents": ("cut recordings", count),
        "removed_tokens": ("frames cut off", count),
    }

    def inputs_of(
        self,
        run: Run[AudioData, LengthTrainingOptions],
        paths: Sequence[Path | str],
        data: AudioData,
        stdin: BinaryIO | None,
    ) -> Iterator[Row]:
        options: PredictionOptions | None = run.prediction
        if options is not None and options.pcm_rate:
            return of_pcm(raw_input(paths, stdin), options.every, options.pcm_rate)
        return self._stretches(run, super().inputs_of(run, paths, data, stdin))

    def inputs_in_memory(
        self, run: Run[AudioData, LengthTrainingOptions], given: Any, data: AudioData
    ) -> Iterator[Row]:
        return self._stretches(run, super().inputs_in_memory(run, given, data))

    def _stretches(self, run: Run[AudioData, LengthTrainingOptions], rows: Iterator[Row]) -> Iterator[Row]:
        options: PredictionOptions | None = run.prediction
        assert isinstance(run.processor, RecordingProcessor)
        if options is None or not options.every:
            return rows
        return of_rows(rows, options.every, run.processor.sample_rate)

    def predict(self, run: Run[AudioData, LengthTrainingOptions], rows: Iterable[Row]) -> Iterator[Prediction]:
        if run.prediction is not None and run.prediction.every:
            # Each as soon as it has come.
            for row in rows:
                yield from self._answers(run, [row])
        elif run.recipe.data.max_length or not can_stream(run.model):
            yield from super().predict(run, rows)
        else:
            for long, some in itertools.groupby(rows, _is_long):
                answers = (self._streamed(run, row) for row in some) if long else super().predict(run, some)  # noqa: B031
                yield from answers

    def _streamed(self, run: Run[AudioData, LengthTrainingOptions], row: Row) -> Prediction:
        assert isinstance(run.processor, RecordingProcessor)
        try:
            logits = streamed_logits(run.model, run.processor, row.values["recording"])
        except Unreadable as error:
            return self.prediction(row.where, str(error))
        return self.answer(row.where, logits, run.model.config)

    def baselines(self) -> Mapping[str, type[Baseline[ClassificationScores]]]:
        return baselines_in(baselines)


def _is_long(row: Row) -> bool:
    """Return whether a row's recording is read in segments; what cannot be read at all is not."""
    try:
        return not row.problem and is_long(row.values["recording"])
    except Unreadable:
        return False
