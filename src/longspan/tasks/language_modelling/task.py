"""Language modelling: `LanguageModelling`."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from longspan.data.processor import Places
from longspan.data.sources.formats.rows import Row
from longspan.data.text.long_documents import summary, token_arrays, tokenize_documents
from longspan.data.text.offsets import tokens_with_offsets
from longspan.data.text.processor import TextProcessor, tokenizer_of
from longspan.data.text.tokenization import token_ids
from longspan.errors import UserError
from longspan.explanations.question import Question
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.models.limits import check_length, too_long
from longspan.report import count, number, share, table
from longspan.report.card import Hub
from longspan.report.pictures import needs_matplotlib, save
from longspan.results import Evaluation, Prediction, Statistics
from longspan.results.mistakes import Mistakes
from longspan.tasks.base.case import Case, likeliest, numbered, token_asked
from longspan.tasks.base.corpora import CorpusTask, read_corpus, token_rows
from longspan.tasks.base.engine import ModelInput, Pipeline, PipelineTask
from longspan.tasks.base.options import CorpusData, GenerationOptions
from longspan.tasks.base.task import Prepared, Recipe, Run
from longspan.tasks.language_modelling import generation
from longspan.tasks.language_modelling.likelihood import (
    attention_length,
    set_attention_length,
    token_losses,
    token_outputs,
)
from longspan.tasks.language_modelling.options import EvaluationOptions, LanguageModellingData, TrainingOptions
from longspan.tasks.language_modelling.parts import losses_without, losses_without_parts, parts_of
from longspan.tasks.language_modelling.scores import LanguageScores, language_scores, loss_by_position
from longspan.tasks.language_modelling.segments import check_enough
from longspan.tasks.language_modelling.trainer import SegmentTrainer, carries


@dataclass(frozen=True)
class LossPrediction(Prediction):
    """Prediction of a document: `LanguageScores` of it alone, its `tokens`, and the `targets` whose mean the loss is:
    the tokens and the end."""

    loss: float | None = None
    perplexity: float | None = None
    bits_per_byte: float | None = None
    bits_per_character: float | None = None
    tokens: int | None = None
    targets: int | None = None


class LossPipeline(Pipeline[np.ndarray, np.ndarray, TextProcessor]):
    """Documents, each token of which is predicted from those before it."""

    def __init__(self, run: Run[CorpusData, TrainingOptions, TextProcessor], options: Any) -> None:
        super().__init__(run, options)
        self.how = reading(run, options if isinstance(options, EvaluationOptions) else EvaluationOptions())

    def preprocess(self, rows: Sequence[Row]) -> Iterator[ModelInput[np.ndarray]]:
        for ids in token_ids(self.processor.tokenizer, [row.values["text"] for row in rows]):
            yield ModelInput(ids, longest=self.how.at_once(len(ids) + 1))

    def forward(self, inputs: Sequence[ModelInput[np.ndarray]]) -> list[np.ndarray]:
        return token_losses(self.model, [one.value for one in inputs], **asdict(self.how))

    def postprocess(self, row: Row, read: ModelInput[np.ndarray], output: np.ndarray) -> LossPrediction:
        text = row.values["text"]
        numbers: dict[str, Any] = language_scores([output], len(text), len(text.encode())).numbers()
        return LossPrediction(row.where, None, **numbers, tokens=len(read.value), targets=len(output))

    def encode(self, examples: Dataset, split: str) -> Dataset:
        return tokenize_documents(examples, self.processor.tokenizer, self.data, f"Tokenising {split}")

    def check_lengths(self, encoded: Dataset) -> None:
        length = self.how.at_once(summary(encoded)["longest"] + 1)
        what = "a window" if length == self.how.window else "a document with its end"
        check_length(self.model, length, what, "score it in smaller windows, with --context sliding --window {most}")

    def outputs(self, encoded: Dataset) -> tuple[list[np.ndarray], dict[str, Any]]:
        """Losses of the tokens of each document, and what else the results should say about them."""
        documents = token_arrays(encoded)
        if (mixture := self.model.wide) is None:
            return token_losses(self.model, documents, **asdict(self.how), progress=True), {}
        take = functools.partial(losses_without_parts, mixture)
        found = token_outputs(self.model, documents, take, **asdict(self.how), progress=True)
        details = {"parts": parts_of(found).to_dict(), "without": losses_without(mixture, found)}
        return [row[:, 0] for row in found], details

    def score(
        self, examples: Dataset, encoded: Dataset, outputs: tuple[list[np.ndarray], dict[str, Any]], folder: Path
    ) -> tuple[LanguageScores, dict[str, Any]]:
        (losses, details), counts = outputs, summary(encoded)
        by_position = loss_by_position(losses)
        draw_loss_by_position(by_position, folder / "loss_by_position.png")
        worst = worst_passages(losses, encoded, self.processor.tokenizer)
        more = {**self.how.details(self.model), **details, "by_position": by_position, "mistakes": worst}
        return language_scores(losses, counts["characters"], counts["bytes"]), {**counts, **more}


class LanguageModelling(CorpusTask, PipelineTask[LanguageScores, CorpusData, TrainingOptions, TextProcessor]):
    """The next token of documents, with memory that outlives the segment."""

    data_config = LanguageModellingData
    hub = Hub("text-generation", metrics=("perplexity",))
    pipeline_class = LossPipeline
    trainer_class = SegmentTrainer
    training_options = TrainingOptions
    evaluation_options = EvaluationOptions
    scores = LanguageScores
    length_key = "training.segment_length"
    prediction = LossPrediction
    model_class = LongspanForCausalLM

    def prepare(self, recipe: Recipe) -> Prepared:
        corpus = read_corpus(recipe, end=True)
        # Documents begin with the token that ends them.
        end = corpus.tokenizer.eos_token_id
        config = {
            "vocab_size": len(corpus.tokenizer),
            "pad_token_id": corpus.tokenizer.pad_token_id,
            "bos_token_id": end,
            "eos_token_id": end,
        }
        details = corpus.stream.details() if corpus.stream else {}
        return Prepared(corpus.splits, TextProcessor(corpus.tokenizer), config, corpus.table, details, corpus.stream)

    def configure(self, settings: Mapping[str, Any], from_data: Mapping[str, Any]) -> LongspanConfig:
        if not settings.get("causal", True):
            raise UserError("model.causal=false would show the model the tokens that it is to predict; leave it out.")
        # Before the data are read, any vocabulary will do that is large enough for the clusters.
        cutoffs = settings.get("cutoffs")
        vocab_size = 1 + max([LongspanConfig.vocab_size, *(cutoffs if isinstance(cutoffs, list) else [])])
        return super().configure({"causal": True, **settings}, {"vocab_size": vocab_size, **from_data})

    def trainer_options(
        self,
        recipe: Recipe[CorpusData, TrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared[TextProcessor],
    ) -> dict[str, Any]:
        segment_length = recipe.options.segment_length
        # One process cannot distribute states over several GPUs; torchrun starts one for each.
        arguments._n_gpu = min(1, arguments.n_gpu)
        lengths = {name: split["length"][:] for name, split in prepared.splits.items()}
        readers = arguments.world_size // recipe.options.context_parallel
        check_enough(lengths["train"], arguments.train_batch_size, segment_length, max(1, readers))
        carried = carries(model, recipe.options)
        longest, what = 1 + max(map(max, lengths.values())), "a document with its end"
        if not carried and segment_length < longest:
            longest, what = segment_length, "a segment"
        check_length(model, longest, what, "set {longer}, or choose what has no such limit")
        return {
            "segment_length": segment_length,
            "carries": carried,
            "end_id": prepared.processor.tokenizer.eos_token_id,
            "pad_id": prepared.processor.tokenizer.pad_token_id,
            "max_eval_tokens": recipe.options.max_eval_tokens,
            "streamed": prepared.stream,
            "read": lambda texts: token_ids(prepared.processor.tokenizer, texts),
        }

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        return next_token_case(run, row, of, at)

    def token_rows(self, run: Run, examples: Dataset) -> list[list[int]]:
        # Documents begin with what ends them.
        return [[tokenizer_of(run.processor).eos_token_id, *ids] for ids in token_rows(run, examples)]

    def generate(
        self, run: Run[CorpusData, TrainingOptions], prompt: str, options: GenerationOptions, statistics: Statistics
    ) -> Iterator[str]:
        if run.recipe.data.tokens == "characters":
            generation.check_characters(tokenizer_of(run.processor), prompt)
        return generation.generate(
            run.model, tokenizer_of(run.processor), prompt, options, run.recipe.options.segment_length, statistics
        )

    def sections(self, evaluation: Evaluation) -> list[str]:
        details = evaluation.details
        positions = (
            [count(row["from"]) if row["from"] == row["to"] else f"{count(row['from'])} to {count(row['to'])}",
             count(row["tokens"]), share(row["loss"])]
            for row in details["by_position"]
        )  # fmt: skip
        without = [[part, share(loss), number(math.exp(loss))] for part, loss in details.get("without", {}).items()]
        return [
            *super().sections(evaluation),
            f"{_context_line(details)}\nThe ends of documents count as tokens, but have no bytes and no characters.",
            table(["position", "tokens", "nats per token"], positions),
            *([table(["without", "nats per token", "perplexity"], without)] if without else []),
        ]


#: Tokens of the passages whose losses are compared.
_PASSAGE = 64


def _context_line(result: Mapping[str, Any]) -> str:
    """Say what tokens were predicted from."""
    if result["context"] == "sliding":
        return (
            f"Each token was predicted from at most {count(result['window'])} before it, in windows "
            f"{count(result['stride'])} apart."
        )
    reach = result["attention_length"]
    memory = "" if reach is None else f", with {count(reach)} positions of memory"
    return f"Documents were read {count(result['segment_length'])} tokens at a time with carried states{memory}."


def worst_passages(losses: Sequence[np.ndarray], documents: Dataset, tokenizer: PreTrainedTokenizerBase) -> Mistakes:
    """Worst passages: those with the highest loss per token, and the least expected token of each.

    Args:
        losses: For each document, `(n + 1,)` nats of its tokens and of its end.
        documents: The same documents, with `input_ids` and `where`.
        tokenizer: Turns tokens into text.
    """
    first = [np.arange(0, len(row), _PASSAGE) for row in losses]
    ends = np.cumsum([len(places) for places in first])
    means = [
        np.add.reduceat(row.astype(np.float64), places) / np.diff([*places, len(row)])
        for row, places in zip(losses, first, strict=True)
    ]

    def tell(number: int) -> dict[str, str]:
        document = int(np.searchsorted(ends, number, "right"))
        start = int(first[document][number - ends[document]])
        row = documents[document]
        ids = list(row["input_ids"][start : start + _PASSAGE])
        least = int(losses[document][start : start + _PASSAGE].argmax())
        expected = tokenizer.decode(ids[least]) if least < len(ids) else "the end of the document"
        where = f"{row['where']}, tokens {start + 1} to {start + max(1, len(ids))}"
        return {"where": where, "expected": expected, "said": "", "text": tokenizer.decode(ids)}

    return Mistakes.ranked("nats per token", np.concatenate(means), tell)


@needs_matplotlib
def draw_loss_by_position(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw the loss against the position in the document, on a logarithmic axis.

    Args:
        rows: Result of `longspan.tasks.language_modelling.scores.loss_by_position`.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 3.6), layout="constrained")
    axes = figure.subplots()
    edges = [row["from"] for row in rows] + [rows[-1]["to"] + 1]
    axes.stairs([row["loss"] for row in rows], edges, baseline=None, linewidth=2)
    axes.set(xscale="log", xlabel="position in the document (tokens)", ylabel="nats per token")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    save(figure, path)


def next_token_case(run: Run, row: Row, of: str, at: float | None) -> Case:
    """Case of the token at `at`, by default the one after the end of the text.

    The model reads as many tokens before it as it scores documents with, without carried states.

    Args:
        run: The run.
        row: The text.
        of: The token; by default the one there, or the likeliest one after the end.
        at: Its number, from 1.

    Raises:
        UserError: See `Task.case`.
    """
    model, tokenizer, text = run.model, tokenizer_of(run.processor), row.values.get("text") or ""
    if problem := row.problem or ("" if text.strip() else "empty document"):
        raise UserError(f"{row.where}: expected a text to explain, got {problem}; choose another row.")
    ((ids, offsets),) = tokens_with_offsets(tokenizer, [text])
    # The next one after the last has a number, too.
    place = len(ids) if at is None else numbered(at, len(ids) + 1, "a token")
    first = max(0, place + 1 - _most_read(run, place + 1))
    before = np.concatenate([[tokenizer.eos_token_id], ids[:place]]).astype(np.int64)[first:]
    if problem := too_long(model, len(before)):
        raise UserError(f"{row.where}: {problem}.")
    batch = {"input_ids": torch.from_numpy(before).unsqueeze(0).to(model.device)}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    settings = {"use_cache": False, "logits_to_keep": 1}
    with torch.no_grad():
        logits = model(**batch, **settings).logits.float().cpu()
    scores = logits[0, -1]
    known = None if of or place == len(ids) else int(ids[place])
    asked = token_asked(tokenizer, of, scores, known).at(-1)
    question = Question(model, batch, asked.value, asked.share, masked=False, settings=settings)
    spans = np.concatenate([np.full((1, 2), -1), offsets[:place]])[first:]
    said = {"probabilities": likeliest(tokenizer, scores)}
    where = f"{row.where}, token {place + 1:,}"
    return Case(where, asked, question, Places("characters", spans, text), said, first, outputs=logits)


def _most_read(run: Run, length: int) -> int:
    """Number of `length` tokens that are read at most."""
    how = reading(run, EvaluationOptions())
    if how.window:
        return how.window
    memory = attention_length(run.model)
    return length if memory is None else how.segment_length + memory


@dataclass(frozen=True)
class Reading:
    """Arguments of `token_losses`, with all defaults filled in.

    Attributes:
        context: "carried" or "sliding".
        rows: Documents, or windows, in a batch.
        segment_length: Tokens read at a time with carried states.
        window: Tokens in a sliding window; 0 with carried states.
        stride: Tokens from one window to the next; 0 with carried states.
    """

    context: str
    rows: int
    segment_length: int
    window: int
    stride: int

    def at_once(self, length: int) -> int:
        """Number of positions of a document of `length` tokens, its end included, that are counted at once."""
        return min(self.window, length) if self.window else length

    def details(self, model: PreTrainedModel) -> dict[str, Any]:
        """Details of results."""
        if self.context == "sliding":
            return {"context": self.context, "window": self.window, "stride": self.stride}
        return {
            "context": self.context,
            "segment_length": self.segment_length,
            "attention_length": attention_length(model),
        }


def reading(run: Run[CorpusData, TrainingOptions], options: EvaluationOptions) -> Reading:
    """Reading of documents by the model of `run`: as `options` say, and otherwise as in training.

    Models that read each segment from an empty state are scored in sliding windows. An attention length is set in the
    model.

    Raises:
        UserError: Options that do not fit each other, or the model.
    """
    training = run.recipe.options
    context = options.context or ("carried" if carries(run.model, training) else "sliding")
    rows = run.recipe.training["per_device_eval_batch_size"]
    if context == "carried":
        if (options.window, options.stride) != (None, None):
            raise UserError(
                "expected a sliding context with window and stride, got a model whose states are carried; leave them "
                "out, or use --context sliding."
            )
        if options.attention_length is not None:
            set_attention_length(run.model, options.attention_length)
        return Reading(context, rows, options.segment_length or training.segment_length, 0, 0)
    if (options.segment_length, options.attention_length) != (None, None):
        raise UserError(
            "expected carried states with a segment length or an attention length, got the context 'sliding'; give "
            "--window instead, or --context carried."
        )
    window = options.window or training.segment_length
    stride = options.stride or (window + 1) // 2
    if stride > window:
        raise UserError(f"expected a stride of at most the window, {window}, got {stride}; make it smaller.")
    return Reading(context, rows, training.segment_length, window, stride)
