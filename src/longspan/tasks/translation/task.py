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
from longspan.report import count, scores_table, table
from longspan.report.card import Hub
from longspan.report.pictures import needs_matplotlib, save
from longspan.results import Evaluation, Prediction
from longspan.results.outputs import write_text
from longspan.tasks.base.case import Case
from longspan.tasks.base.engine import ModelInput, read_row
from longspan.tasks.base.mistakes import Errors
from longspan.tasks.base.seq2seq.explaining import SourceText, written
from longspan.tasks.base.seq2seq.search import Search
from longspan.tasks.base.seq2seq.task import (
    TargetPipeline,
    TargetTask,
    Written,
    answers,
    by_likelihood,
    data_table,
    describe,
)
from longspan.tasks.base.seq2seq.trainer import TargetTrainer
from longspan.tasks.base.seq2seq.word_alignment import source_words
from longspan.tasks.base.task import Baseline, Recipe, Run, baselines_in
from longspan.tasks.translation import baselines
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
        texts, references = outputs.texts, encoded["target"][:]
        scores = self.task.score(encoded, texts, outputs.loss, True)
        by_length = bleu_by_length(texts, references, encoded["length"][:])
        draw_bleu_by_length(by_length, folder / "bleu_by_length.png")
        write_text(folder / "translations.txt", "".join(f"{text}\n" for text in texts))
        lowest = Errors("chrF", sentence_chrf(texts, references), references.__getitem__, texts.__getitem__, True)
        return scores, {
            "data_table": describe(encoded),
            "search": str(self.how),
            "cut_translations": outputs.cut,
            "padding_fraction": outputs.padding,
            "by_length": by_length,
            "samples": translation_samples(examples, texts, outputs.losses),
            "mistakes": lowest.among(examples, ["source"]),
        }


class Translation(TargetTask[TranslationScores, TranslationData, TrainingOptions]):
    """A text for each text, such as its translation, by an encoder and a decoder."""

    data_config = TranslationData
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

    def search(self, recipe: Recipe[TranslationData, TrainingOptions], options: EvaluationOptions) -> Search:
        return Search(
            beams=options.beams or recipe.options.beams,
            candidates=options.candidates,
            length_penalty=options.length_penalty,
            least=options.min_new_tokens or 0,
            most=options.max_new_tokens,
            batch_size=recipe.training["per_device_eval_batch_size"],
            batch_tokens=recipe.options.batch_tokens,
        )

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

    def baselines(self) -> Mapping[str, type[Baseline[TranslationScores]]]:
        return baselines_in(baselines)

    def evaluation_report(self, evaluation: Evaluation) -> str:
        scores, details, split = evaluation.scores, evaluation.details, evaluation.split
        kind = type(scores).shown()
        told = [
            f"{kind[name]}: 95 % interval {low:.2f} to {high:.2f}, {scores.signatures[name]}"
            for name, (low, high) in scores.intervals.items()
        ]
        told.append(f"Length ratio {scores.length_ratio:.3f}, with {details['search']}.")
        if details["cut_translations"]:
            cut = count(details["cut_translations"])
            told.append(f"{cut} of {count(scores.examples)} translations never ended, and were cut.")
        lengths = (
            [f"{row['from']} to {row['to']}", count(row["examples"]), f"{row['bleu']:.2f}", f"{row['chrf']:.2f}"]
            for row in details["by_length"]
        )
        shown = (
            f"{row['where']} ({row['loss']:.2f} nats per token)\n  source:      {row['source']}\n"
            f"  reference:   {row['reference']}\n  translation: {row['translation']}"
            for row in details["samples"]
        )
        parts = [
            data_table({split: details["data_table"]}),
            scores_table({split: scores}),
            "\n".join(told),
            table(["source tokens", "examples", "BLEU", "chrF"], lengths),
            "From the likeliest reference to the least likely one:\n\n" + "\n".join(shown),
            f"written to {evaluation.folder} (translations.txt has all translations)",
        ]
        return "\n\n".join(parts)


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


def translation_samples(examples: Dataset, texts: Sequence[str], losses: np.ndarray) -> list[dict[str, Any]]:
    """Return some examples, from the one whose reference is most likely to the least likely one, as JSON."""
    return [
        {
            "where": examples[row]["where"],
            "source": examples[row]["source"],
            "reference": examples[row]["target"],
            "translation": texts[row],
            "loss": float(losses[row, 0] / losses[row, 1]),
        }
        for row in by_likelihood(losses)
    ]


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
