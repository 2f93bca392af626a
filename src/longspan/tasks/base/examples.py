"""Tasks whose examples have one answer each, a number, a class or a sequence: read in batches of similar length.

`ExampleTask` does what they share. A subclass defines the answers: how a column becomes labels, how a model's outputs
are scored, and what a prediction contains. A processor turns the rest of an example into streams; `ProcessedTask` has
what goes with that, whatever the answers are.
"""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from datasets import Dataset, Value
from torch import Tensor
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.batches.by_length import padding_fraction
from longspan.data.batches.drawn import AugmentedExamples
from longspan.data.batches.encoding import encoded, lengths, truncation_table
from longspan.data.batches.streams import Stream, measured, pad
from longspan.data.batches.unreadable import (
    UNREADABLE,
    each_encoded,
    good_rows,
    misfits,
    readable,
    refusal,
    unreadable,
)
from longspan.data.columns.kept import Carried
from longspan.data.processor import Processor, Unreadable
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import Splits, load
from longspan.errors import UserError
from longspan.explanations.question import Question, Read
from longspan.models import LongspanConfig
from longspan.models.limits import check_length, too_long
from longspan.models.model import LongspanPreTrainedModel
from longspan.report import count, table
from longspan.results import Prediction
from longspan.results.scores import S
from longspan.tasks.base.case import Asked, Case, no_place
from longspan.tasks.base.mistakes import Wrong
from longspan.tasks.base.options import LengthTrainingOptions
from longspan.tasks.base.task import Counted, D, Prepared, Recipe, Run, Task
from longspan.training.encoder_outputs import EncoderOutputs
from longspan.training.lengths import LengthTrainer, data_seed, outputs, scoring_batches, targets

#: One window of examples is read, grouped by length and answered at a time.
WINDOW_EXAMPLES = 512
WINDOW_CHARACTERS = 1_000_000

#: Columns of texts.
_TEXTS = (Value("string"), Value("large_string"))

Facts = Mapping[str, tuple[str, Callable[[Any], str]]]


class ProcessedTask(Task[S, D, LengthTrainingOptions], Generic[S, D]):
    """Examples that a processor turns into streams, read in batches of similar length."""

    training_options: ClassVar[type[LengthTrainingOptions]] = LengthTrainingOptions
    #: What one is called in messages.
    example: ClassVar[str] = "an example"
    #: What tables say about the data of each split: keys of `describe`, each with its words and how it is written.
    facts: ClassVar[Facts] = {
        "documents": ("examples", count),
        "tokens": ("positions", count),
        "median_length": ("median length", count),
        "longest": ("longest", count),
        "cut_documents": ("cut examples", count),
        "removed_tokens": ("positions cut off", count),
    }

    def head(self, training: Dataset, data: D) -> dict[str, Any]:
        """Return the settings of the model that depend on the training data, such as `id2label`, as JSON."""
        return {}

    def load(self, data: D) -> Splits:
        """Read and split the examples."""
        return load(data, self.columns(data), stratify=self.stratify)

    def learned(self, training: Dataset, data: D) -> Processor:
        """Return the processor for a training split."""
        return self.processor.learned(training, data)

    def streams(self, processor: Processor) -> Mapping[str, Stream]:
        """Return the streams that the model reads, and the labels, if they are a stream of the processor."""
        return processor.streams

    def describe(self, tokens: Dataset, config: LongspanConfig) -> dict[str, Any]:
        """Return what results should say about the examples and labels of a split, the keys of `facts` among it."""
        return truncation_table(tokens)

    def details(self, config: LongspanConfig) -> dict[str, Any]:
        """Return what results should contain about the answers, such as the labels."""
        return {}

    @abc.abstractmethod
    def _encoded(self, examples: Dataset, processor: Processor, data: D, config: LongspanConfig, name: str) -> Dataset:
        """Return the examples of the split `name` as the trainer reads them, with their `length`."""

    # The rest is the same for all of them.

    def prepare(self, recipe: Recipe[D, LengthTrainingOptions]) -> Prepared:
        data, loaded = recipe.data, self.load(recipe.data)
        try:
            return self._prepared(recipe, loaded)
        except Unreadable:
            if not data.skip_bad_rows:
                raise
        good = readable(loaded, lambda rows: self.learned(rows, data), data, self.columns(data))
        return self._prepared(recipe, good)

    def _prepared(self, recipe: Recipe[D, LengthTrainingOptions], loaded: Splits) -> Prepared:
        training = loaded.splits["train"]
        head = self.head(training, recipe.data)
        processor = self._learned(training, recipe.data)
        config = {**processor.settings({}), **head}
        # Labels depend on no settings but those that depend on the data.
        made = self.configure(recipe.model, config)
        splits = {
            name: self._encoded(split, processor, recipe.data, made, name) for name, split in loaded.splits.items()
        }
        data: dict[str, Any] = {name: self.describe(split, made) for name, split in splits.items()}
        data |= loaded.notices()
        return Prepared(splits, processor, config, data, self.details(made))

    def build_model(
        self, recipe: Recipe[D, LengthTrainingOptions], prepared: Prepared, counted: Counted | None = None
    ) -> PreTrainedModel:
        model = super().build_model(recipe, prepared, counted)
        longest = max(int(lengths(split).max()) for split in prepared.splits.values())
        shorter = "set data.max_length={most}, or " if hasattr(recipe.data, "max_length") else "shorten it, or set "
        check_length(model, longest, self.example, shorter + "{longer}")
        if isinstance(model, LongspanPreTrainedModel) and model.frozen_encoder is not None:
            EncoderOutputs(model.frozen_encoder).store(prepared.splits.values())
        return model

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        splits = {name: row for name, row in data.items() if "documents" in row}
        rows = (
            [name, *(write(row.get(key)) for key, (_, write) in self.facts.items())] for name, row in splits.items()
        )
        return table(["split", *(words for words, _ in self.facts.values())], rows, style)

    def _learned(self, training: Dataset, data: D) -> Processor:
        """Return the processor for a training split. Raises Unreadable for the first row that it cannot read."""
        try:
            return self.learned(training, data)
        except Exception as error:
            # Recordings of other sensors can lead to any error.
            if self.processor.reads_all or (isinstance(error, UserError) and not isinstance(error, Unreadable)):
                raise
            bad = next(misfits(lambda rows: self.learned(rows, data), training, data), None)
            if bad is None:
                raise
            number, problem = bad
            raise refusal(training[number]["where"], problem) from None

    def _usable(self, run: Run[D, LengthTrainingOptions], examples: Dataset) -> tuple[Dataset, dict[int, str]]:
        """Return the examples that can be read, and what is wrong with the others, by number, which may be left out."""
        data = run.recipe.data
        if not data.skip_bad_rows or run.processor.reads_all:
            return examples, {}
        bad = dict(unreadable(run.processor, examples, data))
        return good_rows(examples, bad, "all"), bad

    def _batches(self, run: Run[D, LengthTrainingOptions], sizes: Sequence[int] | np.ndarray) -> list[list[int]]:
        """Group examples of similar length into batches as large as in training's evaluations, longest first."""
        size, most = run.recipe.training["per_device_eval_batch_size"], run.recipe.options.batch_tokens
        return scoring_batches(sizes, size, most)


class ExampleTask(ProcessedTask[S, D], Generic[S, D]):
    """Examples, each of which has one answer."""

    #: Which of the model's outputs are scored, and make answers.
    output: ClassVar[str] = "logits"
    #: The sequences that its models read, whose positions are explained.
    reads: ClassVar[Sequence[Read]] = (Read(),)
    #: What trains its models.
    trainer_class: ClassVar[type[LengthTrainer]] = LengthTrainer
    #: What training reads where `data.augmentation` changes examples; None where a task's data have none.
    augmented_class: ClassVar[type[AugmentedExamples] | None] = None

    @abc.abstractmethod
    def target(self, config: LongspanConfig) -> Carried:
        """Return how a column of targets becomes the model's labels: numbers of the type that its loss wants."""

    @abc.abstractmethod
    def score(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> S:
        """Return the scores of a model's outputs, (n, ...) float32, against targets, (n, ...).

        Outputs and targets of several lengths end with -100.

        Raises:
            UserError: There is nothing to score, or outputs are not finite.
        """

    @abc.abstractmethod
    def answer(self, where: str, logits: Tensor, config: LongspanConfig) -> Prediction:
        """Return the prediction for one example from the model's outputs for it, (...)."""

    def logits(
        self, run: Run[D, LengthTrainingOptions], targets: Tensor, outputs: Callable[[str], Tensor]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return a model's outputs for examples, and what else the results should say about them.

        Args:
            run: The trained model.
            targets: What is right, (n, ...).
            outputs: Computes the model's outputs of a name, such as "logits", for all of the examples.
        """
        return outputs(self.output), {}

    def draw(self, scores: S, logits: Tensor, targets: Tensor, config: LongspanConfig, folder: Path) -> None:
        """Draw pictures of scores, and of the outputs and targets they are of, into `folder`; by default none.

        What draws is imported here, not above: Matplotlib takes long to import, and predictions draw nothing.
        """

    def wrong(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> Mapping[str, Wrong]:
        """Return which of the answers are wrong, as "mistakes", and perhaps which of the labels, as "label_issues".

        `evaluate` lists the worst of each. By default, it is not known.
        """
        return {}

    def told(self, config: LongspanConfig, options: Any) -> LongspanConfig:
        """Return the configuration to evaluate with, given the `evaluation_options`."""
        return config

    def asked(self, config: LongspanConfig, prediction: Prediction, of: str) -> Asked:
        """Return what is explained of a prediction: `of`, by default what it says.

        Raises:
            UserError: The model says nothing about what is called so.
        """
        raise UserError(
            f"expected a task that says what its predictions are about (`asked`), got {self.name!r}; name a run of "
            "classes, labels or numbers of whole examples."
        )

    # The rest is the same for all of them.

    def case(self, run: Run[D, LengthTrainingOptions], row: Row, of: str, at: float | None) -> Case:
        no_place(at)
        processor, data, model = run.processor, run.recipe.data, run.model
        problem = row.problem or processor.problem(row.values)
        if not problem:
            encoded, places = processor.placed(row.values, data)
            longest = max(len(encoded.streams[name]) for name in measured(processor.streams))
            problem = too_long(model, longest)
        if problem:
            raise UserError(f"{row.where}: expected {self.example} to explain, got {problem}; choose another row.")
        batch = {name: given.to(model.device) for name, given in pad([encoded.streams], processor.streams).items()}
        with torch.no_grad():
            logits = model(**batch)[self.output].float().cpu()
        prediction = self.answer(row.where, logits[0], model.config)
        asked = self.asked(model.config, prediction, of)
        # Edges belong to all rows of a batch together.
        how: dict[str, Any] = {"masked": places.unit == "characters", "rows": 1 if "edges" in batch else None}
        question = Question(model, batch, asked.value, asked.share, self.reads, **how)
        ids = np.asarray(encoded.streams[next(iter(processor.streams))]) if getattr(model, "wide", None) else None
        return Case(row.where, asked, question, places, prediction.to_dict(), encoded.removed, ids, logits)

    def make_trainer(
        self,
        recipe: Recipe[D, LengthTrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared,
    ) -> LengthTrainer:
        training, augmented = prepared.splits["train"], self._augmented(recipe.data)
        return self.trainer_class(
            model,
            arguments,
            train_dataset=training,
            eval_dataset=prepared.splits["validation"],
            batch_tokens=recipe.options.batch_tokens,
            streams=self.streams(prepared.processor),
            output=self.output,
            measure=lambda logits, targets: self.score(logits, targets, model.config),
            drawn=augmented(training, prepared.processor, recipe.data, data_seed(arguments)) if augmented else None,
        )

    def evaluate(
        self, run: Run[D, LengthTrainingOptions], examples: Dataset, split: str, options: Any, folder: Path
    ) -> tuple[S, dict[str, Any]]:
        config = self.told(run.model.config, options)
        examples, bad = self._usable(run, examples)
        tokens = self._encoded(examples, run.processor, run.recipe.data, config, split)
        sizes = lengths(tokens)
        check_length(run.model, int(sizes.max()), self.example, "cut it, or train a model with {longer}")
        batches = self._batches(run, sizes)
        streams = self.streams(run.processor)
        read = tokens.select_columns([name for name in streams if name != "labels"]).with_format("numpy")
        wanted = targets(tokens)
        found, more = self.logits(
            run, wanted, lambda name: outputs(run.model, read, batches, streams=streams, name=name, progress=True)
        )
        scores = self.score(found, wanted, config)
        self.draw(scores, found, wanted, config, folder)
        texts = [name for name, feature in examples.features.items() if feature in _TEXTS and name in self._read(run)]
        wrong = self.wrong(found, wanted, config)
        return scores, {
            "documents": len(tokens),
            **self.details(config),
            **({"skipped": {UNREADABLE: len(bad)}} if bad else {}),
            "truncation": self.describe(tokens, config),
            "padding_fraction": padding_fraction(batches, sizes),
            **{name: one.among(examples, texts) for name, one in wrong.items()},
            **more,
        }

    def predict(self, run: Run[D, LengthTrainingOptions], rows: Iterable[Row]) -> Iterator[Prediction]:
        columns = self.inputs(run.recipe.data)
        for window in windows(rows, lambda row: sum(one.size(row.values.get(one.name)) for one in columns)):
            yield from self._answers(run, window)

    def _read(self, run: Run[D, LengthTrainingOptions]) -> list[str]:
        return [column.name for column in self.inputs(run.recipe.data)]

    def _encoded(self, examples: Dataset, processor: Processor, data: D, config: LongspanConfig, name: str) -> Dataset:
        keep = {"labels": self.target(config)}
        if name == "train" and self._augmented(data):
            keep |= {column.name: Carried(column.name) for column in processor.columns(data)}
        return encoded(examples, processor, data, f"{processor.work} {name}", keep=keep)

    def _augmented(self, data: Any) -> type[AugmentedExamples] | None:
        """Return what training reads in place of encoded examples, None for these."""
        return self.augmented_class if self.augmented_class is not None and data.augmentation else None

    def _answers(self, run: Run[D, LengthTrainingOptions], window: list[Row]) -> Iterator[Prediction]:
        processor, data = run.processor, run.recipe.data
        problems = [row.problem or processor.problem(row.values) for row in window]
        good = [row.values for row, problem in zip(window, problems, strict=True) if not problem]
        read = each_encoded(processor, _by_column(good, [column.name for column in processor.columns(data)]), data)
        both = [(None, problem) if problem else next(read) for problem in problems]
        found, problems = [one for one, _ in both], [problem for _, problem in both]
        names = measured(processor.streams)
        sizes = np.array([[0 if one is None else len(one.streams[name]) for name in names] for one in found])
        problems = [
            problem or too_long(run.model, int(own.max())) for problem, own in zip(problems, sizes, strict=True)
        ]
        usable = [number for number, problem in enumerate(problems) if not problem]
        examples = [one.streams for number, one in enumerate(found) if one is not None and not problems[number]]
        batches = self._batches(run, sizes[usable] if len(names) > 1 else sizes[usable, 0])
        streams = self.streams(processor)
        # Without autograd's counters, which take a tenth of the time of a short text.
        with torch.inference_mode():
            results = iter(outputs(run.model, examples, batches, streams=streams, name=self.output))
        for row, problem, one, length in zip(window, problems, found, sizes.sum(1).tolist(), strict=True):
            if problem or one is None:
                yield self.prediction(row.where, problem)
                continue
            answer = self.answer(row.where, next(results), run.model.config)
            lost = one.removed
            yield replace(answer, tokens_read=length, tokens_total=length + lost) if lost else answer


def _by_column(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in columns}


def _characters(row: Row) -> int:
    return sum(len(value) for value in row.values.values() if isinstance(value, str | list))


def windows(rows: Iterable[Row], size: Callable[[Row], int] = _characters) -> Iterator[list[Row]]:
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
        characters += size(row)
        if len(window) >= WINDOW_EXAMPLES or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window
    if failure is not None:
        raise failure
