"""Tasks whose examples are whole documents with one answer each: read in batches of similar length.

`DocumentTask` does what they share. A subclass says what the answers are: how a column becomes labels, how a model's
outputs are scored, and what a prediction contains.
"""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic

from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, TrainingArguments
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from longspan.data.batches.by_length import padding_fraction
from longspan.data.columns.kept import Carried
from longspan.data.sources.loading import Splits, load
from longspan.data.sources.rows import Row
from longspan.data.text.tokenization import build_tokenizer, encode, encode_counted, tokenize, truncation_table
from longspan.models import LongspanConfig
from longspan.models.limits import check_length, too_long
from longspan.models.model import LongspanPreTrainedModel
from longspan.report import count, table
from longspan.results import Prediction
from longspan.scores import S
from longspan.tasks.base import Prepared, Run, Task
from longspan.tasks.options import LengthTrainingOptions
from longspan.tasks.recipe import D, Recipe
from longspan.training.encoder_outputs import EncoderOutputs
from longspan.training.lengths import LengthTrainer, outputs, scoring_batches, targets

#: One window of documents is read, grouped by length and answered at a time.
WINDOW_DOCUMENTS = 512
WINDOW_CHARACTERS = 1_000_000

Facts = Mapping[str, tuple[str, Callable[[Any], str]]]


class DocumentTask(Task[S, D, LengthTrainingOptions], Generic[S, D]):
    """Documents, each of which has one answer."""

    training_options: ClassVar[type[LengthTrainingOptions]] = LengthTrainingOptions
    data_hint = (
        "data.path=FOLDER (a folder with one sub-folder per class, or a csv, tsv, jsonl or parquet file), or "
        "data.train=FILE"
    )
    #: The column of documents, among `columns`.
    text: ClassVar[str] = "text"
    #: What trains its models.
    trainer_class: ClassVar[type[LengthTrainer]] = LengthTrainer
    #: What tables say about the data of each split: keys of `describe`, each with its words and how it is written.
    facts: ClassVar[Facts] = {
        "documents": ("documents", count),
        "tokens": ("tokens", count),
        "median_length": ("median length", count),
        "longest": ("longest", count),
        "cut_documents": ("cut documents", count),
        "removed_tokens": ("tokens cut off", count),
    }

    @abc.abstractmethod
    def head(self, training: Dataset, data: D) -> dict[str, Any]:
        """Return the settings of `LongspanConfig` that depend on the training data, such as `id2label`, as JSON."""

    @abc.abstractmethod
    def target(self, config: LongspanConfig) -> Carried:
        """Return how a column of targets becomes the model's labels: numbers of the type that its loss wants."""

    @abc.abstractmethod
    def score(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> S:
        """Return the scores of a model's outputs, (n, num_labels) float32, against targets, (n, ...).

        Raises:
            UserError: There is nothing to score, or outputs are not finite.
        """

    @abc.abstractmethod
    def answer(self, where: str, logits: Tensor, config: LongspanConfig) -> Prediction:
        """Return the prediction for one document from the model's outputs for it, (num_labels,)."""

    def logits(
        self, run: Run[D, LengthTrainingOptions], targets: Tensor, outputs: Callable[[str], Tensor]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return a model's logits for documents, and what else the results should say about them.

        Args:
            run: The trained model.
            targets: What is right, (n, ...).
            outputs: Computes the model's outputs of a name, such as "logits", for all of the documents.
        """
        return outputs("logits"), {}

    def draw(self, scores: S, logits: Tensor, targets: Tensor, config: LongspanConfig, folder: Path) -> None:
        """Draw pictures of scores, and of the outputs and targets they are of, into `folder`; by default none."""

    def load(self, data: D) -> Splits:
        """Read and split the documents."""
        return load(data, self.columns(data), stratify=self.stratify)

    def describe(self, tokens: Dataset, config: LongspanConfig) -> dict[str, Any]:
        """Return what results should say about the tokens and labels of a split, the keys of `facts` among it."""
        return truncation_table(tokens)

    def told(self, config: LongspanConfig, options: Any) -> LongspanConfig:
        """Return the configuration to evaluate with, given the `evaluation_options`."""
        return config

    # The rest is the same for all of them.

    def prepare(self, recipe: Recipe[D, LengthTrainingOptions]) -> Prepared:
        loaded = self.load(recipe.data)
        training = loaded.splits["train"]
        head = self.head(training, recipe.data)
        tokenizer = build_tokenizer(recipe.data, training[self.text], cache_key=training._fingerprint)
        # A pipeline, which reads documents whole unless told otherwise, then warns of longer ones.
        tokenizer.model_max_length = recipe.data.max_length or VERY_LARGE_INTEGER
        config = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **head}
        # Labels depend on no settings but those that depend on the data.
        made = self.configure(recipe.model, config)
        splits = {
            name: self._tokens(split, tokenizer, recipe.data, made, name) for name, split in loaded.splits.items()
        }
        data: dict[str, Any] = {name: self.describe(split, made) for name, split in splits.items()}
        data |= loaded.notices()
        return Prepared(splits, tokenizer, config, data, self.details(made))

    def details(self, config: LongspanConfig) -> dict[str, Any]:
        """Return what results should contain about the answers, such as the labels."""
        return {}

    def build_model(self, recipe: Recipe[D, LengthTrainingOptions], prepared: Prepared) -> PreTrainedModel:
        model = super().build_model(recipe, prepared)
        longest = max(max(split["length"][:]) for split in prepared.splits.values())
        check_length(model, longest, "a document", "set data.max_length={most}, or {longer}")
        if isinstance(model, LongspanPreTrainedModel) and model.frozen_encoder is not None:
            EncoderOutputs(model.frozen_encoder).store(prepared.splits.values())
        return model

    def make_trainer(
        self,
        recipe: Recipe[D, LengthTrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared,
    ) -> LengthTrainer:
        return self.trainer_class(
            model,
            arguments,
            train_dataset=prepared.splits["train"],
            eval_dataset=prepared.splits["validation"],
            batch_tokens=recipe.options.batch_tokens,
            pad_id=prepared.processor.pad_token_id,
            measure=lambda logits, targets: self.score(logits, targets, model.config),
        )

    def evaluate(
        self, run: Run[D, LengthTrainingOptions], examples: Dataset, split: str, options: Any, folder: Path
    ) -> tuple[S, dict[str, Any]]:
        config = self.told(run.model.config, options)
        tokens = self._tokens(examples, run.processor, run.recipe.data, config, split)
        lengths = tokens["length"][:]
        check_length(run.model, max(lengths), "a document", "cut it, or train a model with {longer}")
        batches = self._batches(run, lengths)
        examples = tokens.select_columns(["input_ids"]).with_format("numpy")
        wanted = targets(tokens)
        pad_id = run.processor.pad_token_id
        found, more = self.logits(
            run, wanted, lambda name: outputs(run.model, examples, batches, pad_id=pad_id, name=name, progress=True)
        )
        scores = self.score(found, wanted, config)
        self.draw(scores, found, wanted, config, folder)
        return scores, {
            "documents": len(tokens),
            **self.details(config),
            "truncation": self.describe(tokens, config),
            "padding_fraction": padding_fraction(batches, lengths),
            **more,
        }

    def predict(self, run: Run[D, LengthTrainingOptions], rows: Iterable[Row]) -> Iterator[Prediction]:
        for window in windows(rows, self.text):
            yield from self._answers(run, window)

    def token_rows(self, run: Run[D, LengthTrainingOptions], examples: Dataset) -> list[list[int]]:
        return encode(run.processor, examples[self.text][:], run.recipe.data)

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        splits = {name: row for name, row in data.items() if "documents" in row}
        rows = (
            [name, *(write(row.get(key)) for key, (_, write) in self.facts.items())] for name, row in splits.items()
        )
        return table(["split", *(words for words, _ in self.facts.values())], rows, style)

    def _tokens(self, examples: Dataset, tokenizer: Any, data: D, config: LongspanConfig, name: str) -> Dataset:
        keep = {"labels": self.target(config)}
        return tokenize(examples, tokenizer, data, f"Tokenising {name}", text=self.text, keep=keep)

    def _batches(self, run: Run[D, LengthTrainingOptions], lengths: Sequence[int]) -> list[list[int]]:
        """Group documents of similar length into batches as large as in training's evaluations, longest first."""
        size, most = run.recipe.training["per_device_eval_batch_size"], run.recipe.options.batch_tokens
        return scoring_batches(lengths, size, most)

    def _answers(self, run: Run[D, LengthTrainingOptions], window: list[Row]) -> Iterator[Prediction]:
        texts = [row.values.get(self.text) or "" for row in window]
        counted = encode_counted(run.processor, texts, run.recipe.data)
        tokens = [ids for ids, _ in counted]
        problems = [
            row.problem or ("" if text.strip() else "empty document") or too_long(run.model, len(ids))
            for row, text, ids in zip(window, texts, tokens, strict=True)
        ]
        usable = [number for number, problem in enumerate(problems) if not problem]
        examples = [{"input_ids": tokens[number]} for number in usable]
        batches = self._batches(run, [len(tokens[number]) for number in usable])
        found = iter(outputs(run.model, examples, batches, pad_id=run.processor.pad_token_id))
        for row, problem, (ids, lost) in zip(window, problems, counted, strict=True):
            if problem:
                yield self.prediction(row.where, problem)
                continue
            answer = self.answer(row.where, next(found), run.model.config)
            yield replace(answer, tokens_read=len(ids), tokens_total=len(ids) + lost) if lost else answer


def windows(rows: Iterable[Row], text: str) -> Iterator[list[Row]]:
    """Yield rows in windows of a limited size; if reading fails, yield what was read before, then raise the failure."""
    window: list[Row] = []
    characters = 0
    failure = None
    remaining = iter(rows)
    while True:
        try:
            row = next(remaining, None)
        except Exception as error:
            row, failure = None, error
        if row is None:
            break
        window.append(row)
        characters += len(row.values.get(text) or "")
        if len(window) >= WINDOW_DOCUMENTS or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window
    if failure is not None:
        raise failure
