"""Masked words: `MaskedWords`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from longspan import mixers
from longspan.data.processor import Places
from longspan.data.sources.formats.rows import Row
from longspan.data.text.long_documents import summary, token_arrays, tokenize_documents
from longspan.data.text.masks import around_masks, characters_of
from longspan.data.text.processor import TextProcessor, tokenizer_of
from longspan.data.text.tokenizer_training import MASK
from longspan.errors import UserError
from longspan.explanations.question import Question
from longspan.models import LongspanConfig, LongspanForMaskedLM
from longspan.models.limits import check_length, too_long
from longspan.models.parts.losses import IGNORED
from longspan.report import count
from longspan.report.card import Hub
from longspan.results import Evaluation, Prediction
from longspan.results.mistakes import Mistakes
from longspan.tasks.base.case import Case, likeliest, numbered, token_asked
from longspan.tasks.base.corpora import CorpusTask, read_corpus, scored_lengths, token_rows
from longspan.tasks.base.engine import ModelInput, Pipeline, PipelineTask
from longspan.tasks.base.options import CorpusData
from longspan.tasks.base.task import Prepared, Recipe, Run
from longspan.tasks.masked_words.masking import Masking
from longspan.tasks.masked_words.options import EvaluationOptions, MaskedWordsData, TrainingOptions
from longspan.tasks.masked_words.rows import (
    PackedBatches,
    PackedData,
    Packing,
    fixed_rows,
    likeliest_words,
    masked_losses,
)
from longspan.tasks.masked_words.scores import MaskedScores, masked_scores
from longspan.training import processes
from longspan.training.arguments import data_seed
from longspan.training.base import LongspanTrainer
from longspan.training.lengths import Loader


def filled_mask(run: Run, row: Row, of: str, at: float | None) -> Case:
    """Case of the mask with the number `at`, by default the first.

    Args:
        run: The run.
        row: A text with "<mask>" in it.
        of: The token that fills it; by default the likeliest.
        at: The number of the mask, from 1.

    Raises:
        UserError: See `Task.case`.
    """
    model, tokenizer, text = run.model, tokenizer_of(run.processor), row.values.get("text") or ""
    masks = text.count(MASK)
    if problem := row.problem or ("" if masks else f"no {MASK}"):
        raise UserError(
            f"{row.where}: expected a text with {MASK} in it to explain, got {problem}; choose another row."
        )
    ids = ids_with_masks(tokenizer, text)
    if problem := too_long(model, len(ids)):
        raise UserError(f"{row.where}: {problem}.")
    number = numbered(1 if at is None else at, masks, "a mask")
    place = int(np.flatnonzero(ids == tokenizer.mask_token_id)[number])
    batch = {"input_ids": torch.from_numpy(ids).unsqueeze(0).to(model.device)}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    settings = {"logits_to_keep": torch.tensor([place], device=model.device)}
    with torch.no_grad():
        logits = model(**batch, **settings).logits.float().cpu()
    scores = logits[0, 0]
    asked = token_asked(tokenizer, of, scores).at(0)
    question = Question(model, batch, asked.value, asked.share, masked=False, settings=settings, at=place)
    places = Places("characters", characters_of(tokenizer, text), text)
    where = f"{row.where}, mask {number + 1}"
    said = {"probabilities": likeliest(tokenizer, scores)}
    return Case(where, asked, question, places, said, outputs=logits)


BEST = 5
"""How many tokens are given for each mask."""

Filling = dict[str, Any]
"""Where a mask is in its text, `start` and `end` in characters, and `tokens`, each a `token` and its `probability`."""


def ids_with_masks(tokenizer: PreTrainedTokenizerBase, text: str) -> np.ndarray:
    """Return the tokens of a text, `(t,)`, in which each "<mask>" is the mask; see `around_masks`."""
    parts = around_masks(tokenizer, text)
    masked = [np.concatenate([part, [tokenizer.mask_token_id]]) for part in parts[:-1]]
    return np.concatenate([*masked, parts[-1]]).astype(np.int64)


#: The likeliest tokens for a mask, each with its probability.
Likeliest = list[tuple[int, float]]


def fill(tokenizer: PreTrainedTokenizerBase, text: str, likeliest: Sequence[Likeliest]) -> tuple[str, list[Filling]]:
    """A text with the likeliest token for each "<mask>" in it, and the likeliest ones for each.

    Args:
        tokenizer: The model's tokenizer.
        text: The text.
        likeliest: Result of `likeliest_words` for its tokens.
    """
    filled, *parts = text.split(MASK)
    place, fillings = len(filled), []
    for best, part in zip(likeliest, parts, strict=True):
        words = [{"token": str(tokenizer.decode([token])).strip(), "probability": share} for token, share in best]
        fillings.append({"start": place, "end": place + len(MASK), "tokens": words})
        filled += f"{words[0]['token']}{part}"
        place += len(MASK) + len(part)
    return filled, fillings


class MaskedTrainer(LongspanTrainer[MaskedScores]):
    """A `Trainer` that predicts the masked tokens in rows of packed documents, masked differently in every epoch.

    The loss is the mean over the masked tokens of all rows, processes and accumulated batches. Validation masks the
    same tokens each time, whatever the seed.

    Args:
        segment_length: tokens in a row.
        masking: what is masked.
        max_eval_tokens: maximum number of tokens that `score` reads; 0 means all.
        kwargs: what `Trainer` takes. Data sets are those of `longspan.data.text.long_documents.tokenize_documents`.

    Raises:
        UserError: when there are fewer tokens than one step reads.
    """

    def __init__(
        self, *args: Any, segment_length: int, masking: Masking, max_eval_tokens: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.masking, self.max_eval_tokens = masking, max_eval_tokens
        rows = self._train_batch_size * self.args.world_size
        self.packing = Packing(self.train_dataset["length"][:], rows, segment_length, data_seed(self.args))

    def get_train_dataloader(self) -> Loader:
        # No workers: there is little to wait for.
        data = PackedData(token_arrays(self.train_dataset), self.packing, self.masking)
        rank, world = self.args.process_index, self.args.world_size
        batches = PackedBatches(self.packing.steps, self._train_batch_size, rank, world)
        return Loader(data, batch_sampler=batches, pin_memory=self.pins)

    def per_token_columns(self) -> Sequence[str]:
        return ("input_ids",)

    def batch_positions(self, epoch: int) -> list[int]:
        return [self._train_batch_size * self.packing.segment_length] * self.packing.steps

    def padding_fraction(self) -> float:
        return 0.0

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return this batch's share of the mean loss in nats per masked token; see `Trainer`."""
        # Without padding there is nothing to mask, and mixers take a shorter path.
        given = {name: tensor for name, tensor in inputs.items() if name != "attention_mask"}
        return super().compute_loss(model, given, return_outputs, num_items_in_batch)

    def scoring_sizes(self, dataset: Dataset) -> np.ndarray:
        return scored_lengths(dataset, self.max_eval_tokens)

    def score(self, dataset: Dataset) -> MaskedScores:
        """Return the scores of documents, or of an `excerpt` of `max_eval_tokens`. All processes share the work."""
        scored = self.scoring_sizes(dataset)
        rows = fixed_rows(token_arrays(dataset), scored, self.packing.segment_length, self.masking)
        losses, found, wanted = masked_losses(
            self.model,
            rows[self.args.process_index :: self.args.world_size],
            self.args.per_device_eval_batch_size,
            progress=self.reporting()["progress"],
        )
        right = int((found == wanted).sum())
        return masked_scores(*processes.total([float(losses.sum(dtype=np.float64)), float(right), len(losses)]))


@dataclass(frozen=True)
class FilledPrediction(Prediction):
    """A text in which each "<mask>" is `filled` with its likeliest token, and the likeliest five for each."""

    filled: str | None = None
    masks: list[Filling] | None = None


class MaskPipeline(Pipeline[np.ndarray, list[Likeliest], TextProcessor]):
    """Texts with masks, each of them filled in."""

    example = f"a text with {MASK} in it"

    def preprocess(self, rows: Sequence[Row]) -> Iterator[ModelInput[np.ndarray] | str]:
        for row in rows:
            ids = ids_with_masks(self.processor.tokenizer, row.values["text"])
            yield ModelInput(ids, longest=len(ids)) if len(ids) else "empty document"

    def forward(self, inputs: Sequence[ModelInput[np.ndarray]]) -> Iterator[list[Likeliest]]:
        mask = self.processor.tokenizer.mask_token_id
        for one in inputs:
            # Without a mask, there is nothing to ask the model.
            yield likeliest_words(self.model, one.value, mask, BEST) if (one.value == mask).any() else []

    def postprocess(self, row: Row, read: ModelInput[np.ndarray], output: list[Likeliest]) -> FilledPrediction:
        return FilledPrediction(row.where, None, *fill(self.processor.tokenizer, row.values["text"], output))

    def encode(self, examples: Dataset, split: str) -> Dataset:
        return tokenize_documents(examples, self.processor.tokenizer, self.data, f"Tokenising {split}")

    def check_lengths(self, encoded: Dataset) -> None:
        """Do nothing: documents are read in rows of `training.segment_length` tokens."""

    def outputs(self, encoded: Dataset) -> tuple[list[dict[str, Tensor]], tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Rows of packed documents, and the losses, likeliest and right tokens of their masks."""
        how, tokenizer = self.run.recipe.options, self.processor.tokenizer
        masking = Masking(tokenizer, how.masking, how.masked_share)
        lengths = np.asarray(encoded["length"][:])
        rows = fixed_rows(token_arrays(encoded), lengths, how.segment_length, masking)
        size = self.run.recipe.training["per_device_eval_batch_size"]
        return rows, masked_losses(self.model, rows, size, progress=True)

    def score(
        self, examples: Dataset, encoded: Dataset, outputs: Any, folder: Path
    ) -> tuple[MaskedScores, dict[str, Any]]:
        how, (rows, (losses, given, gold)) = self.run.recipe.options, outputs
        scores = masked_scores(float(losses.sum(dtype=np.float64)), float((given == gold).sum()), len(losses))
        return scores, {
            **summary(encoded),
            "masking": how.masking,
            "masked_share": how.masked_share,
            "masked": len(losses),
            "segment_length": how.segment_length,
            "mistakes": worst_words(losses, given, gold, rows, encoded, self.processor.tokenizer),
        }


class MaskedWords(CorpusTask, PipelineTask[MaskedScores, CorpusData, TrainingOptions, TextProcessor]):
    """Words that are masked in documents, from what is on both sides of them."""

    data_config = MaskedWordsData
    hub = Hub("fill-mask", metrics=("perplexity", "accuracy"))
    pipeline_class = MaskPipeline
    trainer_class = MaskedTrainer
    training_options = TrainingOptions
    evaluation_options = EvaluationOptions
    scores = MaskedScores
    length_key = "training.segment_length"
    prediction = FilledPrediction
    model_class = LongspanForMaskedLM

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

    def trainer_options(
        self,
        recipe: Recipe[CorpusData, TrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared[TextProcessor],
    ) -> dict[str, Any]:
        options = recipe.options
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
        return {
            "segment_length": options.segment_length,
            "masking": Masking(tokenizer_of(prepared.processor), options.masking, options.masked_share),
            "max_eval_tokens": options.max_eval_tokens,
        }

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        return filled_mask(run, row, of, at)

    def token_rows(self, run: Run, examples: Dataset) -> list[list[int]]:
        return token_rows(run, examples)

    def sections(self, evaluation: Evaluation) -> list[str]:
        details = evaluation.details
        return [
            *super().sections(evaluation),
            f"{count(details['masked'])} tokens were predicted, {details['masked_share']:.0%} of all in "
            f"{details['masking']}, in rows of {count(details['segment_length'])} tokens, the same ones each time.",
        ]


#: Tokens on either side of a masked one that are shown.
_AROUND = 24


def worst_words(
    losses: np.ndarray,
    found: np.ndarray,
    wanted: np.ndarray,
    rows: Sequence[Mapping[str, Tensor]],
    documents: Dataset,
    tokenizer: PreTrainedTokenizerBase,
) -> Mistakes:
    """Return the masked tokens that are predicted wrongly, those with the highest loss first.

    Args:
        losses: `(n,)` nats of the masked tokens.
        found: `(n,)` the likeliest tokens.
        wanted: `(n,)` the right ones.
        rows: Result of `longspan.tasks.masked_words.rows.fixed_rows` for the documents.
        documents: They have `length` and `where`.
        tokenizer: Turns tokens into text.
    """
    masked = [row["labels"].numpy() != IGNORED for row in rows]
    places = np.flatnonzero(np.concatenate(masked))
    starts = np.cumsum([0, *(len(row) for row in masked)])
    ends = np.cumsum(documents["length"][:])

    def tell(number: int) -> dict[str, str]:
        place = int(places[number])
        document, row = int(np.searchsorted(ends, place, "right")), int(np.searchsorted(starts, place, "right")) - 1
        token = place - int(ends[document - 1] if document else 0)
        at = place - int(starts[row])
        around = rows[row]["input_ids"][max(0, at - _AROUND) : at + _AROUND + 1]
        return {
            "where": f"{documents[document]['where']}, token {token + 1}",
            "expected": tokenizer.decode([int(wanted[number])]),
            "said": tokenizer.decode([int(found[number])]),
            "text": tokenizer.decode(around),
        }

    return Mistakes.ranked("nats", np.where(found == wanted, np.nan, losses), tell)
