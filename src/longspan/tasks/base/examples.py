"""Tasks whose examples have one answer each, a number, a class or a sequence: read in batches of similar length.

`ExampleTask` does what they share. A subclass defines the answers: how a column becomes labels, how a model's outputs
are scored, and what a prediction contains. A processor turns the rest of an example into streams; `ProcessedTask` has
what goes with that, whatever the answers are.
"""

import abc
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    each_encoded,
    misfits,
    readable,
    refusal,
)
from longspan.data.columns.kept import Carried
from longspan.data.processor import Processor, Unreadable
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import Splits, load
from longspan.errors import UserError
from longspan.explanations.question import InputSequence, Question
from longspan.models import LongspanConfig
from longspan.models.limits import check_length
from longspan.models.model import LongspanPreTrainedModel
from longspan.models.wide.classifier import Wide
from longspan.results import Prediction
from longspan.results.scores import S
from longspan.tasks.base.case import Case, Target, no_place
from longspan.tasks.base.engine import ModelInput, Pipeline, PipelineTask, read_row
from longspan.tasks.base.mistakes import Errors
from longspan.tasks.base.mixing import WideTrainer, in_units
from longspan.tasks.base.options import LengthTrainingOptions
from longspan.tasks.base.task import Counted, D, Facts, P, Prepared, Recipe, Run, length_facts
from longspan.training.arguments import data_seed
from longspan.training.encoder_outputs import EncoderOutputs
from longspan.training.lengths import LengthTrainer, outputs, targets

#: Columns of texts.
_TEXTS = (Value("string"), Value("large_string"))


def _unchanged(value: Any, where: str) -> Any:
    return value


class ProcessedTask(PipelineTask[S, D, LengthTrainingOptions, P], Generic[S, D, P]):
    """Examples that a processor turns into streams, read in batches of similar length."""

    training_options: ClassVar[type[LengthTrainingOptions]] = LengthTrainingOptions
    #: Name of one in messages.
    example: ClassVar[str] = "an example"
    facts: ClassVar[Facts] = length_facts("examples", "positions")

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
        """Facts about the examples and labels of a split for the results, the keys of `facts` among them."""
        return truncation_table(tokens)

    def details(self, config: LongspanConfig) -> dict[str, Any]:
        """Facts about the answers for the results, such as the labels."""
        return {}

    @abc.abstractmethod
    def encode(self, examples: Dataset, processor: P, data: D, config: LongspanConfig, name: str) -> Dataset:
        """Return the examples of the split `name` as the trainer reads them, with their `length`."""

    # The rest is the same for all of them.

    def prepare(self, recipe: Recipe[D, LengthTrainingOptions]) -> Prepared[P]:
        data, loaded = recipe.data, self.load(recipe.data)
        try:
            return self._prepared(recipe, loaded)
        except Unreadable:
            if not data.skip_bad_rows:
                raise
        good = readable(loaded, lambda rows: self.learned(rows, data), data, self.columns(data))
        return self._prepared(recipe, good)

    def _prepared(self, recipe: Recipe[D, LengthTrainingOptions], loaded: Splits) -> Prepared[P]:
        training = loaded.splits["train"]
        head = self.head(training, recipe.data)
        processor: Any = self._learned(training, recipe.data)
        config = {**processor.settings({}), **head}
        # Labels depend on no settings but those that depend on the data.
        made = self.configure(recipe.model, config)
        splits = {name: self.encode(split, processor, recipe.data, made, name) for name, split in loaded.splits.items()}
        data: dict[str, Any] = {name: self.describe(split, made) for name, split in splits.items()}
        data |= loaded.notices()
        # Data without a validation split are refused later.
        if "validation" in splits:
            processor = processor.with_familiarity(splits["train"], splits["validation"])
        stream = loaded.stream
        details = self.details(made) | (stream.details() if stream else {})
        return Prepared(splits, processor, config, data, details, stream)

    def build_model(
        self, recipe: Recipe[D, LengthTrainingOptions], prepared: Prepared[P], counted: Counted | None = None
    ) -> PreTrainedModel:
        model = super().build_model(recipe, prepared, counted)
        longest = max(int(lengths(split).max()) for split in prepared.splits.values())
        shorter = "set data.max_length={most}, or " if hasattr(recipe.data, "max_length") else "shorten it, or set "
        check_length(model, longest, self.example, shorter + "{longer}")
        if isinstance(model, LongspanPreTrainedModel) and model.frozen_encoder is not None:
            EncoderOutputs(model.frozen_encoder).store(prepared.splits.values())
        return model

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


class ExamplePipeline(Pipeline[Mapping[str, Any], Tensor, P], Generic[P]):
    """Examples with one answer each: what the methods of an `ExampleTask` do with a run."""

    shorten = "cut it, or train a model with {longer}"

    def __init__(self, run: Run[Any, LengthTrainingOptions, P], options: Any) -> None:
        super().__init__(run, options)
        self.example = self.task.example
        self.streams_read = self.task.streams(self.processor)

    def size(self, row: Row) -> int:
        return sum(column.size(row.values.get(column.name)) for column in self.task.inputs(self.data))

    def preprocess(self, rows: Sequence[Row]) -> Iterator[ModelInput[Mapping[str, Any]] | str]:
        columns = {
            column.name: [row.values.get(column.name) for row in rows] for column in self.processor.columns(self.data)
        }
        names = measured(self.processor.streams)
        for example, problem in each_encoded(self.processor, columns, self.data):
            if example is None:
                yield problem
                continue
            sizes = [len(example.streams[name]) for name in names]
            yield ModelInput(example.streams, sum(sizes), example.removed, max(sizes))

    def forward(self, inputs: Sequence[ModelInput[Mapping[str, Any]]]) -> Tensor:
        examples = [one.value for one in inputs]
        sizes = np.array([[len(streams[name]) for name in measured(self.processor.streams)] for streams in examples])
        batches = self.batches(sizes[:, 0] if sizes.ndim == 2 and sizes.shape[1] == 1 else sizes)
        return outputs(self.model, examples, batches, streams=self.streams_read, name=self.task.output)

    def postprocess(self, row: Row, read: ModelInput[Mapping[str, Any]], output: Tensor) -> Prediction:
        answer: Prediction = self.task.answer(row.where, output, self.model.config)
        return answer

    def unfamiliar(self, read: ModelInput[Mapping[str, Any]]) -> bool:
        return self.processor.unfamiliar(read.value)

    def encode(self, examples: Dataset, split: str) -> Dataset:
        config = self.task.eval_config(self.model.config, self.options)
        rows: Dataset = self.task.encode(examples, self.processor, self.data, config, split)
        return rows

    def outputs(self, encoded: Dataset) -> tuple[Tensor, dict[str, Any]]:
        """Outputs, (n, ...), and what else the results should say about them."""
        read = encoded.select_columns([name for name in self.streams_read if name != "labels"]).with_format("numpy")
        batches, streams = self.batches(lengths(encoded)), self.streams_read
        found: tuple[Tensor, dict[str, Any]] = self.task.logits(
            self.run,
            targets(encoded),
            lambda name: outputs(self.model, read, batches, streams=streams, name=name, progress=True),
        )
        return found

    def score(
        self, examples: Dataset, encoded: Dataset, outputs: tuple[Tensor, dict[str, Any]], folder: Path
    ) -> tuple[Any, dict[str, Any]]:
        task, config = self.task, self.task.eval_config(self.model.config, self.options)
        (logits, details), gold = outputs, targets(encoded)
        scores = task.score(logits, gold, config)
        task.draw(scores, logits, gold, config, folder)
        read = {column.name for column in task.inputs(self.data)}
        texts = [name for name, feature in examples.features.items() if feature in _TEXTS and name in read]
        sizes = lengths(encoded)
        return scores, {
            "documents": len(encoded),
            **task.details(config),
            "truncation": task.describe(encoded, config),
            "padding_fraction": padding_fraction(self.batches(sizes), sizes),
            **{name: errors.among(examples, texts) for name, errors in task.errors(logits, gold, config).items()},
            **task.choices(logits, gold, config, self.options),
            **details,
        }


class ExampleTask(ProcessedTask[S, D, P], Generic[S, D, P]):
    """Examples, each of which has one answer."""

    pipeline_class = ExamplePipeline
    #: Output of the model that is scored, and makes answers.
    output: ClassVar[str] = "logits"
    #: The sequences that its models read, whose positions are explained.
    reads: ClassVar[Sequence[InputSequence]] = (InputSequence(),)
    #: Trainer of its models.
    trainer_class: ClassVar[type[LengthTrainer]] = LengthTrainer
    #: Data of training where `data.augmentation` changes examples; None where a task's data have none.
    augmented_class: ClassVar[type[AugmentedExamples] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for former, now in {"told": "eval_config", "asked": "explained", "wrong": "errors"}.items():
            if former in vars(cls):
                raise TypeError(f"{cls.__name__}.{former} is called {now} by now; rename it, as nothing calls it.")

    @abc.abstractmethod
    def target(self, config: LongspanConfig) -> Carried:
        """Conversion of a column of targets to the model's labels: numbers of the type that its loss wants."""

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
        self, run: Run[D, LengthTrainingOptions, P], targets: Tensor, outputs: Callable[[str], Tensor]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return a model's outputs for examples, and what else the results should say about them.

        Args:
            run: The trained model.
            targets: The right answers, (n, ...).
            outputs: Computes the model's outputs of a name, such as "logits", for all of the examples.
        """
        wide, config = getattr(run.model, "wide", None), run.model.config
        if wide is None or not issubclass(self.trainer_class, WideTrainer):
            return outputs(self.output), {}
        parts = outputs("parts")
        both = wide.combined(*parts.unbind(1))
        return in_units(both, config), {"parts": self.trainer_class.compare(parts, both, targets, config).to_dict()}

    def draw(self, scores: S, logits: Tensor, targets: Tensor, config: LongspanConfig, folder: Path) -> None:
        """Draw pictures of scores, and of the outputs and targets they are of, into `folder`; by default none.

        What draws is imported here, not above: Matplotlib takes long to import, and predictions draw nothing.
        """

    def errors(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> Mapping[str, Errors]:
        """Errors among the answers, as "mistakes", and perhaps among the labels, as "label_issues".

        `evaluate` lists the worst of each. By default, it is not known.
        """
        return {}

    def choices(self, logits: Tensor, targets: Tensor, config: LongspanConfig, options: Any) -> Mapping[str, Any]:
        """Details of settings of `predict` that `evaluation_options` choose; by default none."""
        return {}

    def eval_config(self, config: LongspanConfig, options: Any) -> LongspanConfig:
        """Return the configuration to evaluate with, given the `evaluation_options`."""
        return config

    def explained(self, config: LongspanConfig, prediction: Prediction, of: str) -> Target:
        """Target of an explanation: `of`, by default what the model predicts.

        Raises:
            UserError: The model says nothing about what is called so.
        """
        raise UserError(
            f"expected a task that says what its predictions are about (`explained`), got {self.name!r}; name a run of "
            "classes, labels or numbers of whole examples."
        )

    # The rest is the same for all of them.

    def case(self, run: Run[D, LengthTrainingOptions, P], row: Row, of: str, at: float | None) -> Case:
        no_place(at)
        pipeline: ExamplePipeline[Any] = self.pipeline(run)
        read_row(pipeline, row)
        processor, model = run.processor, run.model
        encoded, places = processor.placed(row.values, run.recipe.data)
        batch = {name: given.to(model.device) for name, given in pad([encoded.streams], processor.streams).items()}
        with torch.no_grad():
            logits = model(**batch)[self.output].float().cpu()
        prediction = self.answer(row.where, logits[0], model.config)
        target = self.explained(model.config, prediction, of)
        # Edges belong to all rows of a batch together.
        how: dict[str, Any] = {"masked": places.unit == "characters", "rows": 1 if "edges" in batch else None}
        question = Question(model, batch, target.value, target.share, self.reads, **how)
        counted = isinstance(getattr(model, "wide", None), Wide)
        ids = np.asarray(encoded.streams[next(iter(processor.streams))]) if counted else None
        return Case(row.where, target, question, places, prediction.to_dict(), encoded.removed, ids, logits)

    def trainer_options(
        self,
        recipe: Recipe[D, LengthTrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared[P],
    ) -> dict[str, Any]:
        augmented = self._augmented(recipe.data)
        drawn = (prepared.splits["train"], prepared.processor, recipe.data, data_seed(arguments))
        streamed = {
            "streamed": prepared.stream,
            "read": functools.partial(self._examples, prepared.processor, recipe.data, model.config),
        }
        return {
            "batch_tokens": recipe.options.batch_tokens,
            "streams": self.streams(prepared.processor),
            "output": self.output,
            "measure": lambda logits, targets: self.score(logits, targets, model.config),
            "drawn": augmented(*drawn) if augmented else None,
            **(streamed if prepared.stream else {}),
        }

    def _examples(self, processor: P, data: D, config: LongspanConfig, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Streams and labels of rows, as `encode` has them."""
        target, streams = self.target(config), processor.streams
        values = {column.name: [row.values[column.name] for row in rows] for column in processor.columns(data)}
        labels = [(target.convert or _unchanged)(row.values[target.column], row.where) for row in rows]
        return [
            {**{name: stream.flat(one.streams[name]) for name, stream in streams.items()}, "labels": label}
            for one, label in zip(processor.encode(values, data), labels, strict=True)
        ]

    def encode(self, examples: Dataset, processor: P, data: D, config: LongspanConfig, name: str) -> Dataset:
        keep = {"labels": self.target(config)}
        if name == "train" and self._augmented(data):
            keep |= {column.name: Carried(column.name) for column in processor.columns(data)}
        return encoded(examples, processor, data, f"{processor.work} {name}", keep=keep)

    def _augmented(self, data: Any) -> type[AugmentedExamples] | None:
        """Class of the training data in place of encoded examples, None for these."""
        return self.augmented_class if self.augmented_class is not None and data.augmentation else None
