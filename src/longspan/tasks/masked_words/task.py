"""Masked words: `MaskedWords`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedModel, TrainingArguments

from longspan import mixers
from longspan.data.columns.kinds import Column
from longspan.data.sources.formats.rows import Row
from longspan.data.text.long_documents import summary, token_arrays, tokenize_documents
from longspan.data.text.processor import TextProcessor, tokenizer_of
from longspan.data.text.tokenization import token_ids
from longspan.errors import UserError
from longspan.models import LongspanConfig, LongspanForMaskedLM
from longspan.models.limits import check_length, too_long
from longspan.report.card import CardParts
from longspan.results import Evaluation, Prediction, TrainingResult
from longspan.tasks.base import Baseline, Recipe, Run, Task
from longspan.tasks.baselines import baselines_in
from longspan.tasks.corpora import DATA_HINT, documents_table, read_corpus, text_column
from longspan.tasks.examples import windows
from longspan.tasks.explaining import Case
from longspan.tasks.masked_words import baselines, report
from longspan.tasks.masked_words.explaining import filled_mask
from longspan.tasks.masked_words.filling import Filling, fill, ids_with_masks
from longspan.tasks.masked_words.likelihood import masked_losses
from longspan.tasks.masked_words.masking import Masking
from longspan.tasks.masked_words.options import EvaluationOptions, MaskedWordsData, TrainingOptions
from longspan.tasks.masked_words.rows import fixed_rows
from longspan.tasks.masked_words.scores import MaskedScores, masked_scores
from longspan.tasks.masked_words.trainer import MaskedTrainer
from longspan.tasks.options import CorpusData
from longspan.tasks.prepared import Prepared

# Of a document, where a part of it will do.
_CHARACTERS = 100_000


@dataclass(frozen=True)
class FilledPrediction(Prediction):
    """A text in which each "<mask>" is `filled` with its likeliest token, and the likeliest five for each."""

    filled: str | None = None
    masks: list[Filling] | None = None


class MaskedWords(Task[MaskedScores, CorpusData, TrainingOptions]):
    """Words that are masked in documents, from what is on both sides of them."""

    data_config = MaskedWordsData
    training_options = TrainingOptions
    evaluation_options = EvaluationOptions
    scores = MaskedScores
    length_key = "training.segment_length"
    prediction = FilledPrediction
    model_class = LongspanForMaskedLM
    data_hint = DATA_HINT

    def columns(self, data: CorpusData) -> Sequence[Column]:
        return text_column(data)

    def prepare(self, recipe: Recipe) -> Prepared:
        corpus = read_corpus(recipe, mask=True)
        config = {"vocab_size": len(corpus.tokenizer), "pad_token_id": corpus.tokenizer.pad_token_id}
        return Prepared(corpus.splits, TextProcessor(corpus.tokenizer), config, corpus.table)

    def configure(self, settings: Mapping[str, Any], from_data: Mapping[str, Any]) -> LongspanConfig:
        if settings.get("causal"):
            raise UserError(
                "model.causal=true would hide what comes after a masked word; leave it out, or train a recipe of "
                "language modelling."
            )
        return super().configure(settings, from_data)

    def make_trainer(
        self, recipe: Recipe, model: PreTrainedModel, arguments: TrainingArguments, prepared: Prepared
    ) -> MaskedTrainer:
        options = _options(recipe)
        # One process cannot distribute rows of packed documents over several GPUs; torchrun starts one for each.
        arguments._n_gpu = min(1, arguments.n_gpu)
        apart = [name for name in model.config.mixers if not mixers.load(name).capabilities.packing]
        if apart:
            raise UserError(
                f"expected mixers that keep several documents in a row apart, got {apart[0]!r}, which does not; choose "
                "another."
            )
        check_length(
            model, options.segment_length, "a row (training.segment_length)", "make it shorter, or set {longer}"
        )
        return MaskedTrainer(
            model,
            arguments,
            train_dataset=prepared.splits["train"],
            eval_dataset=prepared.splits["validation"],
            segment_length=options.segment_length,
            masking=Masking(tokenizer_of(prepared.processor), options.masking, options.masked_share),
            max_eval_tokens=options.max_eval_tokens,
        )

    def evaluate(
        self, run: Run, examples: Dataset, split: str, options: EvaluationOptions, folder: Path
    ) -> tuple[MaskedScores, dict[str, Any]]:
        training = _options(run.recipe)
        tokens = tokenize_documents(examples, tokenizer_of(run.processor), run.recipe.data, f"Tokenising {split}")
        masking = Masking(tokenizer_of(run.processor), training.masking, training.masked_share)
        rows = fixed_rows(token_arrays(tokens), np.asarray(tokens["length"][:]), training.segment_length, masking)
        size = run.recipe.training["per_device_eval_batch_size"]
        losses, found, wanted = masked_losses(run.model, rows, size, progress=True)
        scores = masked_scores(float(losses.sum(dtype=np.float64)), float((found == wanted).sum()), len(losses))
        worst = report.mistakes(losses, found, wanted, rows, tokens, tokenizer_of(run.processor))
        told: dict[str, Any] = {"masking": training.masking, "masked_share": training.masked_share}
        told |= {"masked": len(losses), "segment_length": training.segment_length, "mistakes": worst}
        return scores, {**summary(tokens), **told}

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[FilledPrediction]:
        for window in windows(rows):
            for row in window:
                text = row.values.get("text") or ""
                ids = ids_with_masks(tokenizer_of(run.processor), text)
                problem = row.problem or ("" if len(ids) and text.strip() else "empty document")
                if problem := problem or too_long(run.model, len(ids)):
                    yield FilledPrediction(row.where, problem)
                else:
                    yield FilledPrediction(row.where, None, *fill(run.model, tokenizer_of(run.processor), text, ids))

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        return filled_mask(run, row, of, at)

    def token_rows(self, run: Run, examples: Dataset) -> list[list[int]]:
        # A few thousand tokens of each are plenty.
        texts = [text[:_CHARACTERS] for text in examples["text"][:]]
        return [ids.tolist() for ids in token_ids(tokenizer_of(run.processor), texts)]

    def baselines(self) -> Mapping[str, type[Baseline[MaskedScores]]]:
        return baselines_in(baselines)

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        return documents_table(data, style)

    def evaluation_report(self, evaluation: Evaluation) -> str:
        return report.evaluation_report(evaluation)

    def card_parts(self, recipe: Recipe, result: TrainingResult) -> CardParts:
        return report.card_parts(recipe)


def _options(recipe: Recipe[CorpusData, TrainingOptions]) -> TrainingOptions:
    return recipe.options
