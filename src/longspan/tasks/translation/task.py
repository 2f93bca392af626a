"""Translation: `Translation`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, Value
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.batches.by_length import padding_fraction
from longspan.data.batches.encoding import encoded, mapped_once
from longspan.data.columns.kept import Carried
from longspan.data.columns.kinds import Column
from longspan.data.sources.announcements import note
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import load
from longspan.data.text.pairs import PairProcessor
from longspan.data.text.tokenization import encode_counted
from longspan.errors import UserError
from longspan.models import LongspanForSeq2SeqLM
from longspan.models.embeddings.tokens import TokenSettings
from longspan.models.limits import check_length, too_long
from longspan.report.card import CardParts
from longspan.results import Evaluation, Prediction, TrainingResult
from longspan.results.outputs import write_text
from longspan.tasks.base import Baseline, Recipe, Run, Task
from longspan.tasks.baselines import baselines_in
from longspan.tasks.examples import windows
from longspan.tasks.prepared import Prepared
from longspan.tasks.translation import baselines, pictures, report
from longspan.tasks.translation.options import (
    EvaluationOptions,
    PredictionOptions,
    TrainingOptions,
    TranslationData,
)
from longspan.tasks.translation.scores import TranslationScores, translation_scores
from longspan.tasks.translation.trainer import TranslationTrainer, pair_lengths
from longspan.tasks.translation.translating import Search, search, target_losses
from longspan.training.lengths import scoring_batches

#: How results count training pairs that are longer than `data.max_length`.
TOO_LONG = "longer than data.max_length"


@dataclass(frozen=True)
class TranslationPrediction(Prediction):
    """The translation of a source.

    Attributes:
        translation: The best translation.
        score: Mean log probability of its tokens, end token included, in nats.
        cut: True if it never ended, and was cut at its maximum length; None otherwise.
        alternatives: The `best` translations, the given one first, each with `translation`, `score` and perhaps `cut`;
            None if only one was asked for.
    """

    translation: str | None = None
    score: float | None = None
    cut: bool | None = None
    alternatives: list[dict[str, Any]] | None = None


class Translation(Task[TranslationScores, TranslationData, TrainingOptions]):
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
    model_class = LongspanForSeq2SeqLM
    processor = PairProcessor
    embeddings = (TokenSettings,)
    unused = frozenset({"cross_mixers", "shared_vocabulary", "label_smoothing", "causal"})

    def columns(self, data: TranslationData) -> Sequence[Column]:
        return PairProcessor.columns(data)

    def prepare(self, recipe: Recipe[TranslationData, TrainingOptions]) -> Prepared:
        data = recipe.data
        loaded = load(data, self.columns(data))
        processor = PairProcessor.learned(loaded.splits["train"], data)
        splits = {name: _encoded(split, processor, data, name) for name, split in loaded.splits.items()}
        splits["train"], left_out = _short_enough(splits["train"], data.max_length)
        told = loaded.notices()
        if left_out:
            note(f"left out {left_out:,} training pairs longer than {data.max_length:,} tokens (data.max_length)")
            told["skipped"] = {**told["skipped"], TOO_LONG: left_out}
        end = processor.tokenizer.eos_token_id
        config = {**processor.settings({}), "bos_token_id": end, "eos_token_id": end}
        return Prepared(splits, processor, config, {name: describe(rows) for name, rows in splits.items()} | told)

    def build_model(self, recipe: Recipe[TranslationData, TrainingOptions], prepared: Prepared) -> PreTrainedModel:
        model = super().build_model(recipe, prepared)
        for rows in prepared.splits.values():
            _check_lengths(model, rows, "leave it out")
        return model

    def make_trainer(
        self,
        recipe: Recipe[TranslationData, TrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared,
    ) -> TranslationTrainer:
        assert isinstance(prepared.processor, PairProcessor)
        return TranslationTrainer(
            model,
            arguments,
            train_dataset=prepared.splits["train"],
            eval_dataset=prepared.splits["validation"],
            batch_tokens=recipe.options.batch_tokens,
            streams=prepared.processor.streams,
            reader=prepared.processor,
            how=_search(recipe, EvaluationOptions()),
            translated_examples=recipe.options.translated_examples,
        )

    def evaluate(
        self, run: Run, examples: Dataset, split: str, options: EvaluationOptions, folder: Path
    ) -> tuple[TranslationScores, dict[str, Any]]:
        reader = _reader(run)
        rows = _encoded(examples, reader, run.recipe.data, split)
        _check_lengths(run.model, rows, "score it without this example")
        how, streams = _search(run.recipe, options), reader.streams
        batches = scoring_batches(pair_lengths(rows), how.batch_size, how.batch_tokens)
        read = rows.select_columns([*streams]).with_format("numpy")
        losses = target_losses(run.model, read, batches, streams, progress=True)
        with torch.inference_mode():
            found = search(run.model, rows["input_ids"][:], how, streams["input_ids"], progress=True)
        texts = reader.texts([best[0] for best in found])
        references = rows["target"][:]
        scores = translation_scores(texts, references, loss=float(losses[:, 0].sum() / losses[:, 1].sum()))
        longest = how.longest(rows["length"][:], run.model)
        cut = sum(len(best[0]) >= most for best, most in zip(found, longest.tolist(), strict=True))
        by_length = report.by_length(texts, references, rows["length"][:])
        pictures.by_length(by_length, folder / "bleu_by_length.png")
        write_text(folder / "translations.txt", "".join(f"{text}\n" for text in texts))
        return scores, {
            "data_table": describe(rows),
            "beams": how.beams,
            "cut_translations": cut,
            "padding_fraction": padding_fraction(batches, pair_lengths(rows)),
            "by_length": by_length,
            "samples": report.samples(examples, texts, losses),
        }

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[Prediction]:
        options = run.prediction or PredictionOptions()
        how = _search(run.recipe, options)
        how = replace(
            how, best=options.best, beams=max(how.beams, options.best) if options.beams is None else how.beams
        )
        for window in windows(rows):
            yield from self._translated(run, window, how)

    def formats(self) -> Mapping[str, Callable[[Any], str]]:
        return {"text": lambda found: found.translation or ""}

    def token_rows(self, run: Run, examples: Dataset) -> list[list[int]]:
        raise UserError(
            f"expected a model that reads one row of tokens to export it as a program, got {str(run.folder)!r}, which "
            "has an encoder and a decoder; use --format hub."
        )

    def baselines(self) -> Mapping[str, type[Baseline[TranslationScores]]]:
        return baselines_in(baselines)

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        return report.data_table(data, style)

    def evaluation_report(self, evaluation: Evaluation) -> str:
        return report.evaluation_report(evaluation)

    def card_parts(self, recipe: Recipe, result: TrainingResult) -> CardParts:
        return report.card_parts(recipe, result)

    def _translated(self, run: Run, window: list[Row], how: Search) -> Iterator[Prediction]:
        processor, data = _reader(run), run.recipe.data
        problems = [row.problem or processor.problem(row.values) for row in window]
        texts = [row.values["source"] for row, problem in zip(window, problems, strict=True) if not problem]
        read = iter(encode_counted(processor.tokenizer, texts, data))
        both = [([], 0) if problem else next(read) for problem in problems]
        problems = [problem or too_long(run.model, len(ids)) for problem, (ids, _) in zip(problems, both, strict=True)]
        usable = [ids for (ids, _), problem in zip(both, problems, strict=True) if not problem]
        with torch.inference_mode():
            found = iter(_scored(run, usable, how))
        for row, problem, (ids, lost) in zip(window, problems, both, strict=True):
            if problem:
                yield self.prediction(row.where, problem)
                continue
            first, *_ = listed = next(found)
            alternatives = listed if how.best > 1 else None
            made = TranslationPrediction(row.where, None, **first, alternatives=alternatives)
            yield replace(made, tokens_read=len(ids), tokens_total=len(ids) + lost) if lost else made


def _reader(run: Run) -> PairProcessor:
    assert isinstance(run.processor, PairProcessor)
    return run.processor


def _search(recipe: Recipe[TranslationData, TrainingOptions], options: EvaluationOptions) -> Search:
    return Search(
        beams=options.beams or recipe.options.beams,
        length_penalty=options.length_penalty,
        most=options.max_new_tokens,
        batch_size=recipe.training["per_device_eval_batch_size"],
        batch_tokens=recipe.options.batch_tokens,
    )


def _encoded(examples: Dataset, processor: PairProcessor, data: TranslationData, name: str) -> Dataset:
    """Return pairs as streams, with their `length`, `target_length` and `target`, the text."""
    rows = encoded(examples, processor, data, f"{processor.work} {name}", keep={"target": Carried("target")})
    features = Features({**rows.features, "target_length": Value("int32")})

    def measured(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {**batch, "target_length": [len(labels) for labels in batch["labels"]]}

    return mapped_once(rows, measured, features, ["target lengths"], f"Measuring {name}")


def _short_enough(rows: Dataset, most: int) -> tuple[Dataset, int]:
    """Return the pairs of at most that many tokens on each side, and how many others there are; 0 for no limit."""
    if not most:
        return rows, 0
    removed = np.asarray(rows["removed"][:]) > 0
    good = np.flatnonzero(~removed & (np.asarray(rows["target_length"][:]) <= most))
    if not len(good):
        raise UserError(
            f"expected training pairs of at most data.max_length={most} tokens, got only longer ones; raise it."
        )
    return rows.select(good), len(rows) - len(good)


def _check_lengths(model: PreTrainedModel, rows: Dataset, otherwise: str) -> None:
    """Raise UserError for sources and targets that are longer than the encoder's and the decoder's limits."""
    longest = pair_lengths(rows).max(0).tolist()
    check_length(model, longest[0], "a source", "set data.max_length={most}, or {longer}")
    check_length(model.get_decoder(), longest[1], "a target", f"set {{longer}}, or {otherwise}")


def _scored(run: Run, sources: list[list[int]], how: Search) -> list[list[dict[str, Any]]]:
    """Return the translations of each source with their scores, as JSON."""
    reader, end = _reader(run), run.model.generation_config.eos_token_id
    streams = reader.streams
    found = search(run.model, sources, how, streams["input_ids"])
    longest = how.longest([len(source) for source in sources], run.model).tolist()
    pairs = [
        {"input_ids": source, "labels": [*ids, end]}
        for source, best in zip(sources, found, strict=True)
        for ids in best
    ]
    lengths = np.array([[len(pair["input_ids"]), len(pair["labels"])] for pair in pairs]).reshape(-1, 2)
    batches = scoring_batches(lengths, how.batch_size, how.batch_tokens) if len(pairs) else []
    losses = target_losses(run.model, pairs, batches, streams)
    texts = reader.texts([ids for best in found for ids in best])
    rows = iter(zip(texts, losses.tolist(), strict=True))
    result = []
    for best, most in zip(found, longest, strict=True):
        made = []
        for ids in best:
            text, (nats, count) = next(rows)
            cut = {"cut": True} if len(ids) >= most else {}
            made.append({"translation": text, "score": round(-nats / count, 6), **cut})
        result.append(made)
    return result


def describe(rows: Dataset) -> dict[str, Any]:
    """Return what results say about the pairs of a split."""
    lengths, removed = pair_lengths(rows), np.asarray(rows["removed"][:])
    return {
        "pairs": len(rows),
        "tokens": lengths.sum(0).tolist(),
        "median_length": np.median(lengths, 0).tolist(),
        "longest": lengths.max(0).tolist(),
        "cut_sources": int((removed > 0).sum()),
    }
