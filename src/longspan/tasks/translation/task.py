"""Translation: `Translation`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from longspan.data.columns.kinds import Column
from longspan.data.processor import Places
from longspan.data.sources.formats.rows import Row
from longspan.data.text.offsets import spans
from longspan.data.text.pairs import PairProcessor
from longspan.data.text.tokenization import encode_counted
from longspan.errors import UserError
from longspan.models.alignment import aligned_layers
from longspan.models.limits import too_long
from longspan.report.card import CardParts
from longspan.results import Evaluation, Prediction, TrainingResult
from longspan.results.outputs import write_text
from longspan.tasks.base.case import Case
from longspan.tasks.base.engine import windows
from longspan.tasks.base.mistakes import Wrong
from longspan.tasks.base.seq2seq.explaining import SourceText, written
from longspan.tasks.base.seq2seq.search import Search
from longspan.tasks.base.seq2seq.task import TargetTask, answers, describe, reader_of
from longspan.tasks.base.seq2seq.word_alignment import source_words
from longspan.tasks.base.task import Baseline, Recipe, Run, baselines_in
from longspan.tasks.translation import baselines, report
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


class Translation(TargetTask[TranslationScores, TranslationData, TrainingOptions]):
    """A text for each text, such as its translation, by an encoder and a decoder."""

    data_config = TranslationData
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
            least=options.min_new_tokens,
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

    def evaluate(
        self, run: Run, examples: Dataset, split: str, options: EvaluationOptions, folder: Path
    ) -> tuple[TranslationScores, dict[str, Any]]:
        how = self.search(run.recipe, options)
        found = self.written(run, examples, split, how)
        scores = self.score(found.rows, found.texts, found.loss, True)
        references = found.rows["target"][:]
        by_length = report.by_length(found.texts, references, found.rows["length"][:])
        report.draw_by_length(by_length, folder / "bleu_by_length.png")
        write_text(folder / "translations.txt", "".join(f"{text}\n" for text in found.texts))
        return scores, {
            "data_table": describe(found.rows),
            "search": str(how),
            "cut_translations": found.cut,
            "padding_fraction": found.padding,
            "by_length": by_length,
            "samples": report.samples(examples, found.texts, found.losses),
            "mistakes": Wrong(
                "chrF", sentence_chrf(found.texts, references), references.__getitem__, found.texts.__getitem__, True
            ).among(examples, ["source"]),
        }

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[Prediction]:
        options = run.prediction or PredictionOptions()
        how = self.search(run.recipe, options)
        how = replace(
            how, best=options.best, beams=max(how.beams, options.best) if options.beams is None else how.beams
        )
        if options.alignments:
            # Refused before anything is read.
            aligned_layers(run.model)
        for window in windows(rows):
            yield from self._translated(run, window, how, options.alignments)

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        processor, data = reader_of(run), run.recipe.data
        if problem := row.problem or processor.problem(row.values):
            raise UserError(f"{row.where}: expected a text to translate, got {problem}; choose another row.")
        text: str = row.values["source"]
        ids, characters, lost = spans(processor.tokenizer, text, data.max_length, data.keep)
        source = SourceText(ids.tolist(), Places("characters", characters, text), lost)
        how = self.search(run.recipe, EvaluationOptions())
        return written(run, row.where, source, how, "translation", of, at)

    def formats(self) -> Mapping[str, Callable[[Any], str]]:
        return {"text": lambda found: found.translation or "", "pharaoh": _pharaoh}

    def format_options(self) -> Mapping[str, Mapping[str, Any]]:
        return {"pharaoh": {"alignments": True}}

    def baselines(self) -> Mapping[str, type[Baseline[TranslationScores]]]:
        return baselines_in(baselines)

    def evaluation_report(self, evaluation: Evaluation) -> str:
        return report.evaluation_report(evaluation)

    def card_parts(self, recipe: Recipe, result: TrainingResult) -> CardParts:
        return report.card_parts(recipe, result)

    def _translated(self, run: Run, window: list[Row], how: Search, aligned: bool) -> Iterator[Prediction]:
        processor, data = reader_of(run), run.recipe.data
        problems = [row.problem or processor.problem(row.values) for row in window]
        texts = [row.values["source"] for row, problem in zip(window, problems, strict=True) if not problem]
        read = iter(encode_counted(processor.tokenizer, texts, data))
        both = [([], 0) if problem else next(read) for problem in problems]
        problems = [problem or too_long(run.model, len(ids)) for problem, (ids, _) in zip(problems, both, strict=True)]
        usable = [ids for (ids, _), problem in zip(both, problems, strict=True) if not problem]
        words = None
        if aligned:
            told = [row.values["source"] for row, problem in zip(window, problems, strict=True) if not problem]
            words = source_words(processor.tokenizer, told, list(map(len, usable)))
        with torch.inference_mode():
            found = iter(answers(run, usable, how, "translation", words))
        for row, problem, (ids, lost) in zip(window, problems, both, strict=True):
            if problem:
                yield self.prediction(row.where, problem)
                continue
            first, *_ = listed = next(found)
            alternatives = listed if how.best > 1 else None
            made = TranslationPrediction(row.where, None, **first, alternatives=alternatives)
            yield replace(made, tokens_read=len(ids), tokens_total=len(ids) + lost) if lost else made


def _pharaoh(found: TranslationPrediction) -> str:
    """Return an alignment as "0-1 1-0", as other tools write it."""
    return " ".join(f"{source}-{target}" for source, target in found.alignment or [])
