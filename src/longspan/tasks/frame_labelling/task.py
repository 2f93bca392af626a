"""Frame labelling: `FrameLabelling`."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.batches.by_length import padding_fraction
from longspan.data.columns.kinds import Column
from longspan.data.columns.values import in_order
from longspan.data.processor import Unreadable
from longspan.data.signals.decoding import blocks, pcm, raw_input, resampled
from longspan.data.signals.frame_blocks import frame_blocks, windows
from longspan.data.signals.processor import FRAMES
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.models import LongspanConfig, LongspanForAudioFrameClassification
from longspan.models.embeddings.frames import FrameSettings
from longspan.models.limits import too_long
from longspan.report import count, table
from longspan.results import Evaluation, Prediction
from longspan.results.mistakes import Mistakes
from longspan.tasks.base.case import Case
from longspan.tasks.base.classes import labels, scores_by_label
from longspan.tasks.base.engine import Pipeline
from longspan.tasks.base.examples import ProcessedTask
from longspan.tasks.base.options import LengthTrainingOptions
from longspan.tasks.base.task import Facts, Prepared, Recipe, Run
from longspan.tasks.frame_labelling.options import FrameData, PredictionOptions
from longspan.tasks.frame_labelling.prediction import FramesPrediction, Segmenter, frame_case
from longspan.tasks.frame_labelling.processor import Counted, FrameProcessor
from longspan.tasks.frame_labelling.scores import FrameScores, frame_scores
from longspan.tasks.frame_labelling.smoothing import Smoother
from longspan.tasks.frame_labelling.trainer import (
    FrameTrainer,
    combined,
    compare_labels,
    log_probabilities,
    output_of,
    position_logits,
    smoothed,
)
from longspan.tasks.frame_labelling.windows import LABELS, DrawnWindows, cut_for, recordings, windowed
from longspan.training.arguments import data_seed

#: Windows of a recording that are read together, and seconds of raw sound that are waited for.
_TOGETHER, _PIECE = 8, 0.1


FrameRun = Run[FrameData, LengthTrainingOptions, FrameProcessor]


class FramePipeline(Pipeline[None, None, FrameProcessor]):
    """Recordings of any length, all of them read in pieces and in constant memory."""

    example = "a window of a recording"

    def streams(self, row: Row) -> bool:
        return True

    def stream(self, row: Row) -> Iterator[Prediction]:
        rate = self.processor.sample_rate
        if "pcm" in row.values:
            own = self.options.pcm_rate
            sound = resampled(pcm(row.values["pcm"], _PIECE, own), own, rate, row.where)
            # Each as soon as it has come.
            yield from (FramesPrediction(row.where, segments=[one]) for one in self._segments(sound, 1))
        else:
            pieces = blocks(row.values["recording"], rate)
            yield FramesPrediction(row.where, segments=list(self._segments(pieces, _TOGETHER)))

    def _segments(self, pieces: Iterable[np.ndarray], together: int) -> Iterator[dict[str, Any]]:
        """Segments of sound that comes in pieces.

        Raises:
            Unreadable: The sound cannot be read, or is too long for the model.
        """
        processor, model, stride = self.processor, self.model, self.model.config.embeddings.stride
        sound = Counted(pieces)
        cut = cut_for(self.data.max_length, stride)
        smoother = Smoother(float(model.switch_penalty))
        position, lead = processor.hop * stride, processor.middle - processor.hop / 2
        segmenter = Segmenter(labels(model.config), position, lead)
        found = windows(frame_blocks(processor.extractor, sound), cut.size, cut.context)
        while some := list(itertools.islice(found, together)):
            lengths = [len(window.frames) for window in some]
            if problem := too_long(model, max(lengths)):
                raise Unreadable(problem)
            read = [{FRAMES: processor.extractor.normalised(window.frames)} for window in some]
            logits = position_logits(model, read, lengths, batches=self.batches(lengths), streams=processor.streams)
            scores, start = log_probabilities(logits), 0
            for window, length in zip(some, lengths, strict=True):
                own = scores[start + window.first // stride : start + -(-window.last // stride)]
                start += -(-length // stride)
                yield from segmenter.add(*smoother.add(own))
        yield from segmenter.add(*smoother.end())
        yield from segmenter.end(sound.count / processor.sample_rate)

    def encode(self, examples: Dataset, split: str) -> Dataset:
        # Without what only training reads.
        return windowed(examples, self.processor, self.data, self.model.config, split, drawn=False)

    def outputs(self, encoded: Dataset) -> Tensor:
        sizes, read = encoded["length"][:], encoded.select_columns([FRAMES]).with_format("numpy")
        how = {"batches": self.batches(sizes), "streams": self.processor.streams, "progress": True}
        return position_logits(self.model, read, sizes, name=output_of(self.model), **how)

    def score(
        self, examples: Dataset, encoded: Dataset, outputs: Tensor, folder: Path
    ) -> tuple[FrameScores, dict[str, Any]]:
        config, stride, sizes = self.model.config, self.model.config.embeddings.stride, encoded["length"][:]
        penalty = float(self.model.switch_penalty)
        logits = combined(self.model, outputs)
        parts = {}
        if self.model.wide is not None:
            parts = {"parts": compare_labels(encoded, outputs, logits, penalty, stride).to_dict()}
        scored = recordings(encoded, log_probabilities(logits), stride)
        gold, (given,) = smoothed(scored, [penalty], stride)
        scores = frame_scores(gold, given, labels(config))
        from longspan.report.confusion import confusion

        confusion(scores.confusion, labels(config), folder / "confusion.png")
        return scores, {
            **self.task.details(config),
            "data_summary": self.task.describe(encoded, config),
            "switch_penalty": penalty,
            "padding_fraction": padding_fraction(self.batches(sizes), sizes),
            "mistakes": worst_stretches(gold, given, examples, labels(config), self.processor),
            **parts,
        }


class FrameLabelling(ProcessedTask[FrameScores, FrameData, FrameProcessor]):
    """A label for each frame of recordings of any length, and segments of equal labels."""

    data_config = FrameData
    pipeline_class = FramePipeline
    trainer_class = FrameTrainer
    scores = FrameScores
    prediction = FramesPrediction
    prediction_options = PredictionOptions
    cuts_examples = False
    processor = FrameProcessor
    embeddings = (FrameSettings,)
    model_class = LongspanForAudioFrameClassification
    example = "a window of a recording"
    data_hint = (
        "data.path=FILE (a csv, tsv, jsonl or parquet file with paths of recordings, and a row per segment or a list "
        "of segments), or data.train=FILE"
    )
    facts: ClassVar[Facts] = {
        "documents": ("recordings", count),
        "frames": ("frames", count),
        "median_length": ("median length", count),
        "longest": ("longest", count),
        "windows": ("windows", count),
    }

    def columns(self, data: FrameData) -> Sequence[Column]:
        return self.processor.columns(data)

    # What is trained

    def head(self, training: Dataset, data: FrameData) -> dict[str, Any]:
        found = {label for segments in training["segments"][:] for label in segments["label"]} - {data.outside}
        if not found:
            raise UserError(
                f"expected segments with labels other than {data.outside!r} in the training data, got none; check "
                "data.segments_column and data.label_column, or set data.outside."
            )
        names = [data.outside, *in_order(found)]
        return {
            "id2label": dict(enumerate(names)),
            "label2id": {name: number for number, name in enumerate(names)},
        }

    def describe(self, tokens: Dataset, config: LongspanConfig) -> dict[str, Any]:
        columns = tokens.select_columns(["document", "first", "last"]).with_format("numpy")[:]
        lengths = np.bincount(columns["document"], columns["last"] - columns["first"])
        return {
            "documents": len(lengths),
            "frames": int(lengths.sum()),
            "median_length": float(np.median(lengths)) if len(lengths) else 0.0,
            "longest": int(lengths.max(initial=0)),
            "windows": len(tokens),
        }

    def details(self, config: LongspanConfig) -> dict[str, Any]:
        return {"labels": labels(config)}

    def trainer_options(
        self,
        recipe: Recipe[FrameData, LengthTrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared[FrameProcessor],
    ) -> dict[str, Any]:
        processor, names, drawn = prepared.processor, labels(model.config), None
        if recipe.data.augmentation:
            numbers = {name: number for number, name in enumerate(names)}
            drawn = DrawnWindows(prepared.splits["train"], processor, recipe.data, numbers, data_seed(arguments))
        return {
            "batch_tokens": recipe.options.batch_tokens,
            "streams": {**processor.streams, **LABELS},
            "names": names,
            "drawn": drawn,
        }

    def encode(
        self, examples: Dataset, processor: FrameProcessor, data: FrameData, config: LongspanConfig, name: str
    ) -> Dataset:
        return windowed(examples, processor, data, config, name, drawn=name == "train" and bool(data.augmentation))

    # What a trained model does

    def inputs_of(
        self,
        run: FrameRun,
        paths: Sequence[Path | str],
        data: FrameData,
        stdin: BinaryIO | None,
    ) -> Iterator[Row]:
        options: PredictionOptions | None = run.prediction
        if options is None or not options.pcm_rate:
            return super().inputs_of(run, paths, data, stdin)
        return iter([Row({"pcm": raw_input(paths, stdin)}, "standard input")])

    def case(self, run: FrameRun, row: Row, of: str, at: float | None) -> Case:
        (prediction,) = self.predict(run, [row])
        assert isinstance(prediction, FramesPrediction)
        return frame_case(run, row, of, at, prediction)

    def formats(self) -> Mapping[str, Callable[[Any], str]]:
        return {"rttm": FramesPrediction.to_rttm}

    # What is reported

    def sections(self, evaluation: Evaluation[FrameScores]) -> list[str]:
        scores, penalty = evaluation.scores, evaluation.details["switch_penalty"]
        keys = ("segments", "substitutions", "deletions", "insertions")
        return [
            f"penalty of changes of the label: {penalty:g} nats, chosen on the validation split",
            *super().sections(evaluation),
            table(keys, [[count(float(getattr(scores, key))) for key in keys]]),
            scores_by_label(scores.per_class, "label", "frames"),
        ]


def worst_stretches(
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
