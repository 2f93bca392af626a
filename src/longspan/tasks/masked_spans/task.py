"""Masked spans: `MaskedSpans`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.batches.by_length import padding_fraction
from longspan.data.columns.kinds import Column
from longspan.data.processor import Places
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import load
from longspan.data.text.long_documents import pieces, summary, tokenize_documents
from longspan.data.text.masks import characters_of
from longspan.data.text.pairs import PairProcessor, check_exact, pair_tokenizer
from longspan.data.text.tokenizer_training import MASK
from longspan.errors import UserError
from longspan.models.limits import too_long
from longspan.report.card import CardParts
from longspan.results import Evaluation, Prediction, TrainingResult
from longspan.results.scores import Scores, score
from longspan.tasks.base.case import Case
from longspan.tasks.base.corpora import (
    DATA_HINT,
    documents_table,
    mean_nats,
    perplexity,
    scored_lengths,
    text_column,
    tokenised,
)
from longspan.tasks.base.engine import windows as windows_of_rows
from longspan.tasks.base.seq2seq.explaining import SourceText, written
from longspan.tasks.base.seq2seq.search import Search, pair_lengths, search, target_losses
from longspan.tasks.base.seq2seq.task import PairTask, reader_of, settings_of
from longspan.tasks.base.seq2seq.trainer import PairTrainer
from longspan.tasks.base.task import Prepared, Recipe, Run
from longspan.tasks.masked_spans import report
from longspan.tasks.masked_spans.masking import (
    DrawnSpans,
    SpanMasking,
    add_sentinels,
    filled,
    sentinels_of,
    spans_of,
    windows,
    with_sentinels,
)
from longspan.tasks.masked_spans.options import EvaluationOptions, MaskedSpansData, TrainingOptions
from longspan.training.lengths import data_seed, scoring_batches


@dataclass(frozen=True)
class SpanScores(Scores):
    """How well masked spans are predicted, each token given those before it.

    Attributes:
        loss: Mean nats per token of the targets: of spans, of the sentinel before each, and of the end token.
        perplexity: e to the power of that.
    """

    loss: float = score("loss (nats per target token)", higher_is_better=False)
    perplexity: float = score("perplexity", higher_is_better=False)


def span_scores(nats: float, tokens: float) -> SpanScores:
    """Score predictions of a number of tokens, given the sum of their losses.

    Raises:
        UserError: There is nothing to predict, or losses are not finite, as after a training run that diverged.
    """
    loss = mean_nats(nats, tokens, tokens="target tokens", source="text to mask")
    return SpanScores(loss, perplexity(loss))


class SpanTrainer(PairTrainer[SpanScores]):
    """A `PairTrainer` of which the loss is the score."""

    def rehearse(self, dataset: Dataset) -> None:
        self.score(dataset)

    def score(self, dataset: Dataset) -> SpanScores:
        return span_scores(*self.loss_parts(dataset))


#: Maximum number of tokens that are written for a mask.
LONGEST = 20


@dataclass(frozen=True)
class SpanPrediction(Prediction):
    """A text in which each "<mask>" is `filled` in, and the text of each, `spans`."""

    filled: str | None = None
    spans: list[str] | None = None


class SpanProcessor(PairProcessor):
    """Texts with masks as sources; see `longspan.tasks.masked_spans.masking`."""

    @classmethod
    def columns(cls, data: Any) -> Sequence[Column]:
        return text_column(data)

    def problem(self, values: Mapping[str, Any]) -> str:
        text, most = values.get("text") or "", len(sentinels_of(self.tokenizer))
        if not text.strip():
            return "empty document"
        masks = text.count(MASK)
        return f"expected at most {most} masks, got {masks}" if masks > most else ""


class MaskedSpans(PairTask[SpanScores, MaskedSpansData, TrainingOptions]):
    """Spans that are masked in texts, written by an encoder and a decoder."""

    data_config = MaskedSpansData
    training_options = TrainingOptions
    evaluation_options = EvaluationOptions
    scores = SpanScores
    prediction = SpanPrediction
    processor: ClassVar[type[PairProcessor]] = SpanProcessor
    data_hint = DATA_HINT
    cuts_examples = False
    sides = ("a window (data.max_length)", "the masked spans of a window")

    def columns(self, data: MaskedSpansData) -> Sequence[Column]:
        return text_column(data)

    def prepare(self, recipe: Recipe[MaskedSpansData, TrainingOptions]) -> Prepared:
        data, options = recipe.data, recipe.options
        if data.max_length < 1 or data.keep != "first":
            raise UserError(
                "expected data.max_length, the tokens of a window, of at least 1, and data.keep='first', as documents "
                f"are read in full, got {data.max_length} and {data.keep!r}; set data.max_length, as 512."
            )
        check_exact(data)
        loaded = load(data, self.columns(data))
        training = loaded.splits["train"]
        tokenizer = pair_tokenizer(data, pieces(training, data), f"spans {training._fingerprint}")
        add_sentinels(tokenizer, spans_of(data.max_length, options.masked_share, options.span_length)[1])
        corpus, processor = tokenised(recipe, loaded, tokenizer), self.processor(tokenizer)
        splits = {
            name: self._windows(recipe, documents, processor, name, 0 if name == "train" else options.max_eval_tokens)
            for name, documents in corpus.splits.items()
        }
        return Prepared(splits, processor, settings_of(processor), corpus.table)

    def make_trainer(
        self,
        recipe: Recipe[MaskedSpansData, TrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared,
    ) -> SpanTrainer:
        assert isinstance(prepared.processor, PairProcessor)
        training = prepared.splits["train"]
        return SpanTrainer(
            model,
            arguments,
            train_dataset=training,
            eval_dataset=prepared.splits["validation"],
            batch_tokens=recipe.options.batch_tokens,
            streams=prepared.processor.streams,
            drawn=DrawnSpans(training, _masking(recipe, prepared.processor), data_seed(arguments)),
        )

    def evaluate(
        self, run: Run, examples: Dataset, split: str, options: EvaluationOptions, folder: Path
    ) -> tuple[SpanScores, dict[str, Any]]:
        recipe, reader = run.recipe, reader_of(run)
        tokens = tokenize_documents(examples, reader.tokenizer, recipe.data, f"Tokenising {split}")
        rows = self._windows(recipe, tokens, reader, split, 0)
        self.check_lengths(run.model, rows, "score it without this document")
        size, lengths = recipe.training["per_device_eval_batch_size"], pair_lengths(rows)
        batches = scoring_batches(lengths, size, recipe.options.batch_tokens)
        read = rows.select_columns([*reader.streams]).with_format("numpy")
        run.model.eval()
        losses = target_losses(run.model, read, batches, reader.streams, progress=True)
        nats, count = losses.sum(0)
        return span_scores(float(nats), float(count)), {
            **summary(tokens),
            "windows": len(rows),
            "max_length": recipe.data.max_length,
            "masked_share": recipe.options.masked_share,
            "span_length": recipe.options.span_length,
            "padding_fraction": padding_fraction(batches, lengths),
            "mistakes": report.mistakes(losses, rows, tokens, recipe.data.max_length, reader.tokenizer),
        }

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[SpanPrediction]:
        for window in windows_of_rows(rows):
            yield from self._filled(run, window)

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        reader, text = reader_of(run), row.values.get("text") or ""
        masks = text.count(MASK)
        if problem := row.problem or reader.problem(row.values) or ("" if masks else f"no {MASK}"):
            raise UserError(f"{row.where}: expected a text with {MASK} in it, got {problem}; choose another row.")
        ids = with_sentinels(reader.tokenizer, text, sentinels_of(reader.tokenizer))
        characters = np.concatenate([characters_of(reader.tokenizer, text), [[-1, -1]]])
        source = SourceText(ids, Places("characters", characters, text))
        return written(run, row.where, source, self._search(run, masks), "spans", of, at)

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        return documents_table(data, style)

    def evaluation_report(self, evaluation: Evaluation) -> str:
        return report.evaluation_report(evaluation)

    def card_parts(self, recipe: Recipe, result: TrainingResult) -> CardParts:
        return report.card_parts(recipe)

    def _windows(
        self,
        recipe: Recipe[MaskedSpansData, TrainingOptions],
        documents: Dataset,
        processor: PairProcessor,
        name: str,
        most: int,
    ) -> Dataset:
        """Return the windows of documents, of at most so many tokens in all; 0 for no limit."""
        scored = scored_lengths(documents, most)
        masking, size = _masking(recipe, processor), recipe.data.max_length
        return windows(documents, scored, size, masking, processor.tokenizer, f"Cutting {name} into windows")

    def _filled(self, run: Run, window: list[Row]) -> Iterator[SpanPrediction]:
        reader = reader_of(run)
        tokenizer, sentinels = reader.tokenizer, sentinels_of(reader.tokenizer)
        problems = [row.problem or reader.problem(row.values) for row in window]
        texts = ["" if problem else row.values["text"] for row, problem in zip(window, problems, strict=True)]
        sources = [[] if not text else with_sentinels(tokenizer, text, sentinels) for text in texts]
        problems = [
            problem or too_long(run.model, len(source)) for problem, source in zip(problems, sources, strict=True)
        ]
        targets: list[list[int]] = [[] for _ in window]
        masks = np.array([0 if problem else text.count(MASK) for text, problem in zip(texts, problems, strict=True)])
        for number in np.unique(masks[masks > 0]).tolist():
            # A target ends at a length of its own, whatever the others are.
            how = self._search(run, number)
            chosen = np.flatnonzero(masks == number).tolist()
            with torch.inference_mode():
                found = search(run.model, [sources[row] for row in chosen], how, reader.streams)
            for row, (best,) in zip(chosen, found, strict=True):
                targets[row] = best
        for each, problem, text, target in zip(window, problems, texts, targets, strict=True):
            if problem:
                yield SpanPrediction(each.where, problem)
            else:
                yield SpanPrediction(each.where, None, *filled(tokenizer, text, target, sentinels))

    def _search(self, run: Run, masks: int) -> Search:
        size = int(run.recipe.training["per_device_eval_batch_size"])
        return Search(beams=1, most=masks * (LONGEST + 1), batch_size=size, batch_tokens=0)


def _masking(recipe: Recipe[MaskedSpansData, TrainingOptions], processor: PairProcessor) -> SpanMasking:
    tokenizer, options = processor.tokenizer, recipe.options
    return SpanMasking(sentinels_of(tokenizer), tokenizer.eos_token_id, options.masked_share, options.span_length)
