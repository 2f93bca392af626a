"""The engine: predictions, scores and explanations of all tasks, as loops over a `Pipeline`.

As in pipelines of transformers, a task writes how rows are read (`Pipeline.preprocess`), what is asked of the model
(`forward`) and how one output becomes an answer (`postprocess`). The engine keeps what every task promises:

- rows are read in windows of limited size, so memory does not grow with their number, and answers keep their order;
- a row that cannot be read, or that is longer than the model takes, has a prediction with the reason;
- a prediction says how many tokens were left out;
- outputs that are not finite are an error, never an answer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.batches.encoding import lengths
from longspan.data.batches.unreadable import UNREADABLE, good_rows, unreadable
from longspan.data.processor import Unreadable
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.models.limits import check_length, too_long
from longspan.results import Prediction
from longspan.results.scores import S
from longspan.tasks.base.answering import characters, windows
from longspan.tasks.base.task import D, O, P, Prepared, Recipe, Run, Task
from longspan.training.base import LongspanTrainer
from longspan.training.lengths import scoring_batches

#: What `preprocess` makes of a row, and the model's output for it.
I = TypeVar("I")  # noqa: E741
X = TypeVar("X")


@dataclass(frozen=True)
class ModelInput(Generic[I]):
    """One row, ready for the model.

    Attributes:
        value: Input of `Pipeline.forward`.
        tokens: Number of tokens that are read.
        removed: Number of tokens that are cut off.
        longest: Number of positions that the model reads at once, which it must take; 0 if nothing limits them.
    """

    value: I
    tokens: int = 0
    removed: int = 0
    longest: int = 0


class Pipeline(Generic[I, X, P]):
    """One run of a task and what is done with its rows. An object serves one call of a verb.

    Args:
        run: The trained model.
        options: The task's `prediction_options` or `evaluation_options`.

    Attributes:
        task: Its task.
        model: Its model.
        processor: Its processor.
        data: The keys of its recipe's `[data]`.
    """

    #: Rows that are read together at most; None for as many as `windows` has.
    window: int | None = None
    #: An example, as messages call it, and what to do about one that is too long: see `check_length`.
    example: str = "an example"
    shorten: str = "set data.max_length={most}, or train one with {longer}"

    def __init__(self, run: Run[Any, Any, P], options: Any) -> None:
        self.run, self.options = run, options
        self.task: Any = run.task
        self.model: Any = run.model
        self.processor: P = run.processor
        self.data: Any = run.recipe.data

    # Rows: what `predict` and `explain` read

    def size(self, row: Row) -> int:
        """Number of characters of a row, which a window limits."""
        return characters(row)

    def problem(self, row: Row) -> str:
        """Reason why a row has no answer, found before it is read; empty if there is none."""
        return self.processor.problem(row.values)

    def preprocess(self, rows: Sequence[Row]) -> Iterable[ModelInput[I] | str]:
        """Read rows without a problem: for each, in order, an input of the model, or the reason why it has none."""
        raise NotImplementedError(f"{type(self).__name__} must implement preprocess")

    def forward(self, inputs: Sequence[ModelInput[I]]) -> Iterable[X]:
        """Outputs of the model, in the order of the inputs. It runs without gradients."""
        raise NotImplementedError(f"{type(self).__name__} must implement forward")

    def postprocess(self, row: Row, read: ModelInput[I], output: X) -> Prediction:
        """Answer for one row. The engine adds how many tokens were cut off."""
        raise NotImplementedError(f"{type(self).__name__} must implement postprocess")

    def unfamiliar(self, read: ModelInput[I]) -> bool:
        """Whether a row is unlike the training data. By default none is."""
        return False

    def streams(self, row: Row) -> bool:
        """Whether a row is answered by `stream`, as it may be longer than memory. By default none is."""
        return False

    def stream(self, row: Row) -> Iterator[Prediction]:
        """Answers for a row that is read piece by piece, each as soon as there is one.

        Raises:
            Unreadable: A piece cannot be read.
        """
        raise NotImplementedError(f"{type(self).__name__} says that it streams rows, and must implement stream")

    # Splits: what `evaluate` reads

    def encode(self, examples: Dataset, split: str) -> Dataset:
        """Examples of a split as the model reads them, with their `length`."""
        raise NotImplementedError(f"{type(self).__name__} must implement encode")

    def check_lengths(self, encoded: Dataset) -> None:
        """Raise UserError if the model does not take the longest example."""
        check_length(self.model, int(lengths(encoded).max()), self.example, self.shorten)

    def outputs(self, encoded: Dataset) -> Any:
        """Outputs of the model for a split, with a progress bar."""
        raise NotImplementedError(f"{type(self).__name__} must implement outputs")

    def score(self, examples: Dataset, encoded: Dataset, outputs: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
        """Scores of a split and what else its results contain; figures go into `folder`. See `Task.evaluate`."""
        raise NotImplementedError(f"{type(self).__name__} must implement score")

    def close(self) -> None:
        """Release what it holds, such as files: called at the end of a verb, however it ends."""

    # Shared by tasks

    def batches(self, sizes: Sequence[int] | np.ndarray) -> list[list[int]]:
        """Batches of examples of similar length, as large as in training's evaluations, the longest first."""
        recipe = self.run.recipe
        return scoring_batches(sizes, recipe.training["per_device_eval_batch_size"], recipe.options.batch_tokens)


def read_rows(pipeline: Pipeline[I, X, P], rows: Sequence[Row]) -> list[ModelInput[I] | str]:
    """Inputs of the model for rows, or the reasons why they have none."""
    problems = [row.problem or pipeline.problem(row) for row in rows]
    usable = [row for row, problem in zip(rows, problems, strict=True) if not problem]
    read = iter(pipeline.preprocess(usable) if usable else ())
    result: list[ModelInput[I] | str] = []
    for problem in problems:
        one = problem or next(read)
        if isinstance(one, ModelInput) and (limit := too_long(pipeline.model, one.longest)):
            one = limit
        result.append(one)
    return result


def read_row(pipeline: Pipeline[I, X, P], row: Row) -> ModelInput[I]:
    """Input of the model for a row that is to be explained.

    Raises:
        UserError: It has none.
    """
    (read,) = read_rows(pipeline, [row])
    if isinstance(read, str):
        raise UserError(f"{row.where}: expected {pipeline.example} to explain, got {read}; choose another row.")
    return read


def predictions(pipeline: Pipeline[I, X, P], rows: Iterable[Row]) -> Iterator[Prediction]:
    """Predictions for rows, in order; what `rows` raises is raised after those for what was read before."""
    with closing(pipeline):
        yield from _predictions(pipeline, rows)


def _predictions(pipeline: Pipeline[I, X, P], rows: Iterable[Row]) -> Iterator[Prediction]:
    failed = pipeline.run.task.prediction

    for window in row_windows(pipeline, rows):
        if _streamed(pipeline, window[0]):
            try:
                yield from pipeline.stream(window[0])
            except Unreadable as error:
                yield failed(window[0].where, str(error))
            continue
        read = read_rows(pipeline, window)
        inputs = [one for one in read if isinstance(one, ModelInput)]
        # Without autograd's counters, which take a tenth of the time of a short text.
        with torch.inference_mode():
            outputs = iter(list(pipeline.forward(inputs)) if inputs else ())
        for row, one in zip(window, read, strict=True):
            if isinstance(one, str):
                yield failed(row.where, one)
                continue
            output = next(outputs)
            check_outputs(output)
            answer = pipeline.postprocess(row, one, output)
            if one.removed:
                answer = replace(answer, tokens_read=one.tokens, tokens_total=one.tokens + one.removed)
            yield replace(answer, unfamiliar=True) if pipeline.unfamiliar(one) else answer


def row_windows(pipeline: Pipeline[I, X, P], rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows that are read together, see `windows`; one that is answered by `Pipeline.stream` is alone."""
    return windows(rows, pipeline.size, pipeline.window, partial(_streamed, pipeline))


def _streamed(pipeline: Pipeline[I, X, P], row: Row) -> bool:
    return not row.problem and pipeline.streams(row)


def check_outputs(output: Any) -> None:
    """Raise UserError if an output, or a part of it, is not finite: its model has diverged, or its file is damaged."""
    if isinstance(output, Mapping):
        output = tuple(output.values())
    if isinstance(output, tuple | list):
        for part in output:
            check_outputs(part)
        return
    if isinstance(output, Tensor):
        finite = not output.is_floating_point() or bool(torch.isfinite(output).all())
    elif isinstance(output, np.ndarray | np.floating | float):
        finite = not np.issubdtype(np.asarray(output).dtype, np.floating) or bool(np.isfinite(output).all())
    else:
        return
    if not finite:
        raise UserError(
            "expected finite outputs of the model, got some that are not, as after a training run that diverged; "
            "train again with a lower learning rate (training.learning_rate), or choose another checkpoint."
        )


class PipelineTask(Task[S, D, O, P], Generic[S, D, O, P]):
    """A task whose predictions and scores are those of a `Pipeline`."""

    #: Pipeline for the rows of a run.
    pipeline_class: ClassVar[type[Pipeline]]
    #: Trainer of its models.
    trainer_class: ClassVar[type[LongspanTrainer]]

    def pipeline(self, run: Run[D, O, P], options: Any = None) -> Any:
        """The task's pipeline for a run; by default with its `prediction_options`."""
        return self.pipeline_class(run, options or run.prediction or self.prediction_options())

    def trainer_options(
        self, recipe: Recipe[D, O], model: PreTrainedModel, arguments: TrainingArguments, prepared: Prepared[P]
    ) -> dict[str, Any]:
        """Arguments of `trainer_class` besides the model, its arguments and data sets.

        Raises:
            UserError: Before anything is written, for data that the model or the options do not allow.
        """
        return {}

    def make_trainer(
        self, recipe: Recipe[D, O], model: PreTrainedModel, arguments: TrainingArguments, prepared: Prepared[P]
    ) -> LongspanTrainer:
        options = self.trainer_options(recipe, model, arguments, prepared)
        splits = {"train_dataset": prepared.splits["train"], "eval_dataset": prepared.splits["validation"]}
        return self.trainer_class(model, arguments, **splits, **options)

    def evaluate(
        self, run: Run[D, O, P], examples: Any, split: str, options: Any, folder: Path
    ) -> tuple[S, dict[str, Any]]:
        examples, bad = readable_examples(run, examples)
        with closing(self.pipeline(run, options)) as pipeline:
            encoded = pipeline.encode(examples, split)
            pipeline.check_lengths(encoded)
            scores, details = pipeline.score(examples, encoded, pipeline.outputs(encoded), folder)
        return scores, {**details, **({"skipped": {UNREADABLE: bad}} if bad else {})}

    def windows(self, run: Run[D, O, P], rows: Iterable[Row]) -> Iterator[list[Row]]:
        with closing(self.pipeline(run)) as pipeline:
            yield from row_windows(pipeline, rows)

    def predict(self, run: Run[D, O, P], rows: Iterable[Row]) -> Iterator[Prediction]:
        return predictions(self.pipeline(run), rows)


def readable_examples(run: Run, examples: Any) -> tuple[Any, int]:
    """Examples that the processor can read, and how many others there are: left out with `data.skip_bad_rows`."""
    data = run.recipe.data
    if not isinstance(examples, Dataset) or run.processor.reads_all or not data.skip_bad_rows:
        return examples, 0
    bad = dict(unreadable(run.processor, examples, data))
    return good_rows(examples, bad, "all"), len(bad)
