"""Masked spans: `MaskedSpans`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from longspan.data.batches.by_length import padding_fraction
from longspan.data.columns.kinds import Column
from longspan.data.fingerprints import fingerprint
from longspan.data.processor import Places
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import load
from longspan.data.text.long_documents import pieces, summary, tokenize_documents
from longspan.data.text.masks import characters_of
from longspan.data.text.pairs import PairProcessor, check_exact, pair_tokenizer
from longspan.data.text.tokenizer_training import MASK
from longspan.errors import UserError
from longspan.report import count
from longspan.report.card import Hub
from longspan.results import Evaluation, Prediction
from longspan.results.mistakes import Mistakes
from longspan.results.scores import Scores, score
from longspan.tasks.base.case import Case
from longspan.tasks.base.corpora import (
    CorpusTask,
    mean_nats,
    perplexity,
    scored_lengths,
    text_column,
    tokenised,
)
from longspan.tasks.base.engine import ModelInput, Pipeline, read_row
from longspan.tasks.base.seq2seq.explaining import SourceText, written
from longspan.tasks.base.seq2seq.search import Search, pair_lengths, search, target_losses
from longspan.tasks.base.seq2seq.task import PairTask, settings_of
from longspan.tasks.base.seq2seq.trainer import PairTrainer
from longspan.tasks.base.task import Prepared, Recipe, Run
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
from longspan.training.arguments import data_seed


@dataclass(frozen=True)
class SpanScores(Scores):
    """Scores of masked spans, each token predicted given those before it.

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


class MaskedText(NamedTuple):
    """A text with masks: their number, and the tokens with a sentinel for each."""

    masks: int
    ids: list[int]


class SpanPipeline(Pipeline[MaskedText, list[int], PairProcessor]):
    """Texts with masks, whose spans are written."""

    example = f"a text with {MASK} in it"

    def __init__(self, run: Run[MaskedSpansData, TrainingOptions, PairProcessor], options: Any) -> None:
        super().__init__(run, options)
        self.sentinels = sentinels_of(self.processor.tokenizer)

    def preprocess(self, rows: Sequence[Row]) -> Iterator[ModelInput[MaskedText]]:
        for row in rows:
            ids = with_sentinels(self.processor.tokenizer, row.values["text"], self.sentinels)
            yield ModelInput(MaskedText(row.values["text"].count(MASK), ids), longest=len(ids))

    def forward(self, inputs: Sequence[ModelInput[MaskedText]]) -> list[list[int]]:
        targets: list[list[int]] = [[] for _ in inputs]
        masks = np.array([one.value.masks for one in inputs])
        for number in np.unique(masks[masks > 0]).tolist():
            # A target ends at a length of its own, whatever the others are.
            rows = np.flatnonzero(masks == number).tolist()
            sources = [inputs[row].value.ids for row in rows]
            found = search(self.model, sources, self.search(number), self.processor.streams)
            for row, (best,) in zip(rows, found.targets, strict=True):
                targets[row] = best
        return targets

    def postprocess(self, row: Row, read: ModelInput[MaskedText], output: list[int]) -> SpanPrediction:
        text = row.values["text"]
        return SpanPrediction(row.where, None, *filled(self.processor.tokenizer, text, output, self.sentinels))

    def search(self, masks: int) -> Search:
        """Search for the spans of a number of masks."""
        size = int(self.run.recipe.training["per_device_eval_batch_size"])
        return Search(beams=1, most=masks * (LONGEST + 1), batch_size=size, batch_tokens=0)

    def encode(self, examples: Dataset, split: str) -> Dataset:
        tokenizer = self.processor.tokenizer
        self.documents = tokenize_documents(examples, tokenizer, self.data, f"Tokenising {split}")
        return _windows(self.run.recipe, self.documents, self.processor, split, 0)

    def check_lengths(self, encoded: Dataset) -> None:
        self.task.check_lengths(self.model, encoded, "score it without this document")

    def outputs(self, encoded: Dataset) -> np.ndarray:
        """Nats of each target, and its number of tokens, (n, 2)."""
        streams = self.processor.streams
        read = encoded.select_columns([*streams]).with_format("numpy")
        self.model.eval()
        return target_losses(self.model, read, self.batches(pair_lengths(encoded)), streams, progress=True)

    def score(
        self, examples: Dataset, encoded: Dataset, outputs: np.ndarray, folder: Path
    ) -> tuple[SpanScores, dict[str, Any]]:
        (nats, tokens), how, length = outputs.sum(0), self.run.recipe.options, self.data.max_length
        sizes = pair_lengths(encoded)
        return span_scores(float(nats), float(tokens)), {
            **summary(self.documents),
            "windows": len(encoded),
            "max_length": length,
            "masked_share": how.masked_share,
            "span_length": how.span_length,
            "padding_fraction": padding_fraction(self.batches(sizes), sizes),
            "mistakes": worst_spans(outputs, encoded, self.documents, length, self.processor.tokenizer),
        }


class MaskedSpans(CorpusTask, PairTask[SpanScores, MaskedSpansData, TrainingOptions]):
    """Spans that are masked in texts, written by an encoder and a decoder."""

    data_config = MaskedSpansData
    hub = Hub(metrics=("perplexity",))
    pipeline_class = SpanPipeline
    trainer_class = SpanTrainer
    training_options = TrainingOptions
    evaluation_options = EvaluationOptions
    scores = SpanScores
    prediction = SpanPrediction
    processor: ClassVar[type[PairProcessor]] = SpanProcessor
    cuts_examples = False
    sides = ("a window (data.max_length)", "the masked spans of a window")

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
        tokenizer = pair_tokenizer(data, pieces(training, data), f"spans {fingerprint(training)}")
        add_sentinels(tokenizer, spans_of(data.max_length, options.masked_share, options.span_length)[1])
        corpus, processor = tokenised(recipe, loaded, tokenizer), self.processor(tokenizer)
        splits = {
            name: _windows(recipe, documents, processor, name, 0 if name == "train" else options.max_eval_tokens)
            for name, documents in corpus.splits.items()
        }
        return Prepared(splits, processor, settings_of(processor), corpus.table)

    def trainer_options(
        self,
        recipe: Recipe[MaskedSpansData, TrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared[PairProcessor],
    ) -> dict[str, Any]:
        masking = _masking(recipe, prepared.processor)
        return {
            "batch_tokens": recipe.options.batch_tokens,
            "streams": prepared.processor.streams,
            "drawn": DrawnSpans(prepared.splits["train"], masking, data_seed(arguments)),
        }

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        pipeline: SpanPipeline = self.pipeline(run)
        read = read_row(pipeline, row)
        text = row.values["text"]
        if not (masks := text.count(MASK)):
            raise UserError(f"{row.where}: expected {pipeline.example} to explain, got no {MASK}; choose another row.")
        characters = np.concatenate([characters_of(run.processor.tokenizer, text), [[-1, -1]]])
        source = SourceText(read.value.ids, Places("characters", characters, text))
        return written(run, row.where, source, pipeline.search(masks), "spans", of, at)

    def sections(self, evaluation: Evaluation) -> list[str]:
        details = evaluation.details
        return [
            *super().sections(evaluation),
            f"{details['masked_share']:.0%} of the tokens were masked, in spans of {details['span_length']:g} on "
            f"average, the same ones each time, in {count(details['windows'])} windows of at most "
            f"{count(details['max_length'])} tokens.",
        ]


def _windows(
    recipe: Recipe[MaskedSpansData, TrainingOptions], documents: Dataset, processor: PairProcessor, name: str, most: int
) -> Dataset:
    """Windows of documents, of at most so many tokens in all; 0 for no limit."""
    scored = scored_lengths(documents, most)
    masking, size = _masking(recipe, processor), recipe.data.max_length
    return windows(documents, scored, size, masking, processor.tokenizer, f"Cutting {name} into windows")


def _masking(recipe: Recipe[MaskedSpansData, TrainingOptions], processor: PairProcessor) -> SpanMasking:
    tokenizer, options = processor.tokenizer, recipe.options
    return SpanMasking(sentinels_of(tokenizer), tokenizer.eos_token_id, options.masked_share, options.span_length)


def worst_spans(
    losses: np.ndarray, windows: Dataset, documents: Dataset, size: int, tokenizer: PreTrainedTokenizerBase
) -> Mistakes:
    """Return the windows whose masked spans have the highest loss per token.

    Args:
        losses: `(n, 2)` the nats of each window's target, and its tokens.
        windows: Result of `longspan.tasks.masked_spans.masking.windows` for the documents.
        documents: They have `length` and `where`.
        size: Tokens of a window.
        tokenizer: Turns tokens into text.
    """
    ends = np.cumsum(-(-np.asarray(documents["length"][:]) // size))

    def tell(number: int) -> dict[str, str]:
        document = int(np.searchsorted(ends, number, "right"))
        window = number - int(ends[document - 1] if document else 0)
        row = windows[number]
        return {
            "where": f"{documents[document]['where']}, window {window + 1}",
            "expected": tokenizer.decode(row["labels"]),
            "said": "",
            "text": tokenizer.decode(row["input_ids"]),
        }

    return Mistakes.ranked("nats per token", losses[:, 0] / losses[:, 1], tell)
