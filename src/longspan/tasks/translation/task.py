"""Translation: `Translation`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset

from longspan.data.columns.kinds import Column
from longspan.data.processor import Places
from longspan.data.sources.formats.rows import Row
from longspan.data.text.offsets import spans
from longspan.data.text.pairs import PairProcessor
from longspan.data.text.tokenization import encode_counted
from longspan.models.alignment import aligned_layers
from longspan.report import count, table
from longspan.report.card import Hub
from longspan.report.pictures import needs_matplotlib, save
from longspan.results import Prediction
from longspan.tasks.base.case import Case
from longspan.tasks.base.engine import ModelInput, read_row
from longspan.tasks.base.seq2seq.explaining import SourceText, written
from longspan.tasks.base.seq2seq.task import TargetPipeline, TargetTask, Written, answers
from longspan.tasks.base.seq2seq.trainer import TargetTrainer
from longspan.tasks.base.seq2seq.word_alignment import source_words
from longspan.tasks.base.task import Recipe, Run
from longspan.tasks.translation.options import (
    EvaluationOptions,
    PredictionOptions,
    TrainingOptions,
    TranslationData,
)
from longspan.tasks.translation.scores import TranslationScores, sentence_chrf, translation_scores


@dataclass(frozen=True)
class TranslationPrediction(Prediction):
    """The translation of a source.

    Attributes:
        translation: The best translation.
        score: Mean log probability of its tokens, end token included, in nats.
        cut: True if it never ended, and was cut at its maximum length; None otherwise.
        alignment: The numbers, from 0, of words of the source and of the translation that belong together, [source,
            target] each; None unless asked for. Words are what white space separates.
        alternatives: The `best` translations, the given one first, each with `translation`, `score` and perhaps `cut`
            and `alignment`; None if only one was asked for.
    """

    translation: str | None = None
    score: float | None = None
    cut: bool | None = None
    alignment: list[list[int]] | None = None
    alternatives: list[dict[str, Any]] | None = None


class Source(NamedTuple):
    """A source: its text and its tokens."""

    text: str
    ids: list[int]


class TranslationPipeline(TargetPipeline[Source, PairProcessor]):
    """Sources that are translated."""

    example = "a text"

    def __init__(self, run: Run[TranslationData, TrainingOptions, PairProcessor], options: Any) -> None:
        super().__init__(run, options)
        if isinstance(options, PredictionOptions):
            beams = max(self.how.beams, options.best) if options.beams is None else self.how.beams
            self.how = replace(self.how, best=options.best, beams=beams)
        self.aligned = isinstance(options, PredictionOptions) and options.alignments
        if self.aligned:
            # Refused before anything is read.
            aligned_layers(self.model)

    def preprocess(self, rows: Sequence[Row]) -> Iterator[ModelInput[Source]]:
        texts = [row.values["source"] for row in rows]
        read = encode_counted(self.processor.tokenizer, texts, self.data)
        for text, (ids, lost) in zip(texts, read, strict=True):
            yield ModelInput(Source(text, ids), len(ids), lost, len(ids))

    def forward(self, inputs: Sequence[ModelInput[Source]]) -> list[list[dict[str, Any]]]:
        texts, sources, words = [one.value.text for one in inputs], [one.value.ids for one in inputs], None
        if self.aligned:
            words = source_words(self.processor.tokenizer, texts, list(map(len, sources)))
        return answers(self.run, sources, self.how, "translation", words)

    def postprocess(self, row: Row, read: ModelInput[Source], output: list[dict[str, Any]]) -> TranslationPrediction:
        alternatives = output if self.how.best > 1 else None
        return TranslationPrediction(row.where, None, **output[0], alternatives=alternatives)

    def score(
        self, examples: Dataset, encoded: Dataset, outputs: Written, folder: Path
    ) -> tuple[TranslationScores, dict[str, Any]]:
        scores, details = super().score(examples, encoded, outputs, folder)
        by_length = bleu_by_length(outputs.texts, encoded["target"][:], encoded["length"][:])
        draw_bleu_by_length(by_length, folder / "bleu_by_length.png")
        return scores, details | {"by_length": by_length}


class Translation(TargetTask[TranslationScores, TranslationData, TrainingOptions]):
    """A text for each text, such as its translation, by an encoder and a decoder."""

    data_config = TranslationData
    text_names = ("translation", "translations")
    hub = Hub("translation", ("translation",), ("bleu", "chrf"))
    packages = ("sacrebleu",)
    pipeline_class = TranslationPipeline
    trainer_class = TargetTrainer
    training_options = TrainingOptions
    evaluation_options = EvaluationOptions
    prediction_options = PredictionOptions
    data_hint = (
        "data.path=FILE,FILE (parallel text files, one text per line), or data.path=FILE (a csv, tsv, jsonl, parquet "
        "or tmx file with a source and a target in each row)"
    )
    scores = TranslationScores
    prediction = TranslationPrediction
    leaves_out = True

    def columns(self, data: TranslationData) -> Sequence[Column]:
        return PairProcessor.columns(data)

    def searched_examples(self, recipe: Recipe[TranslationData, TrainingOptions]) -> int:
        return recipe.options.translated_examples

    def bpe_dropout(self, recipe: Recipe[TranslationData, TrainingOptions]) -> float:
        return recipe.options.bpe_dropout

    def shared_vocabulary(self, recipe: Recipe[TranslationData, TrainingOptions]) -> bool:
        return recipe.data.shared_vocabulary

    def score(self, rows: Dataset, texts: Sequence[str], loss: float | None, intervals: bool) -> TranslationScores:
        return translation_scores(texts, rows["target"][:], loss=loss, intervals=intervals)

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        read_row(self.pipeline(run), row)
        text, data = row.values["source"], run.recipe.data
        ids, characters, lost = spans(run.processor.tokenizer, text, data.max_length, data.keep)
        source = SourceText(ids.tolist(), Places("characters", characters, text), lost)
        how = self.search_of(run, EvaluationOptions())
        return written(run, row.where, source, how, "translation", of, at)

    def formats(self) -> Mapping[str, Callable[[Any], str]]:
        return {"text": lambda found: found.translation or "", "pharaoh": _pharaoh}

    def format_options(self) -> Mapping[str, Mapping[str, Any]]:
        return {"pharaoh": {"alignments": True}}

    def worst(self, texts: Sequence[str], references: Sequence[str]) -> tuple[str, np.ndarray]:
        return "chrF", sentence_chrf(texts, references)

    def sampled(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"source": row["source"]}

    def told(self, scores: TranslationScores, search: str) -> list[str]:
        kind = type(scores).shown()
        told = [
            f"{kind[name]}: 95 % interval {low:.2f} to {high:.2f}, {scores.signatures[name]}"
            for name, (low, high) in scores.intervals.items()
        ]
        return [*told, f"Length ratio {scores.length_ratio:.3f}, with {search}."]

    def tables(self, details: Mapping[str, Any]) -> list[str]:
        lengths = (
            [f"{row['from']} to {row['to']}", count(row["examples"]), f"{row['bleu']:.2f}", f"{row['chrf']:.2f}"]
            for row in details["by_length"]
        )
        return [table(["source tokens", "examples", "BLEU", "chrF"], lengths)]


def _pharaoh(found: TranslationPrediction) -> str:
    """Return an alignment as "0-1 1-0", as other tools write it."""
    return " ".join(f"{source}-{target}" for source, target in found.alignment or [])


_BINS = 5


def bleu_by_length(texts: Sequence[str], references: Sequence[str], lengths: Sequence[int]) -> list[dict[str, float]]:
    """Return BLEU and chrF of about equally many examples each, by the length of the source in tokens."""
    order = np.argsort(lengths, kind="stable")
    found = []
    for rows in np.array_split(order, min(_BINS, len(order))):
        scores = translation_scores([texts[row] for row in rows], [references[row] for row in rows], intervals=False)
        found.append(
            {
                "from": int(lengths[rows[0]]),
                "to": int(lengths[rows[-1]]),
                "examples": len(rows),
                "bleu": scores.bleu,
                "chrf": scores.chrf,
            }
        )
    return found


@needs_matplotlib
def draw_bleu_by_length(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw BLEU and chrF by the length of the source.

    Args:
        rows: Result of `bleu_by_length`.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 3.6), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    for name, words, marker in (("bleu", "BLEU", "o"), ("chrf", "chrF", "s")):
        axes.plot(places, [row[name] for row in rows], marker=marker, label=words)
    axes.set_xticks(places, [f"{row['from']:.0f} to {row['to']:.0f}" for row in rows])
    axes.set(xlabel="source (tokens)", ylabel="score", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save(figure, path)
