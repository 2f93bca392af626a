"""Interface that the verbs use for all tasks alike: `Task`."""

import abc
import dataclasses
import hashlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

import tomli_w
import torch
from datasets import Dataset, DatasetDict
from transformers import PreTrainedModel, TrainingArguments
from typing_extensions import TypeVar as DefaultTypeVar

from longspan.data.columns.kinds import Column
from longspan.data.config import DataConfig, SourceData
from longspan.data.processor import Processor
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.in_memory import with_data
from longspan.data.sources.loading import Splits, load
from longspan.data.sources.shards import Streamed
from longspan.data.text.processor import TextProcessor
from longspan.errors import UserError
from longspan.machine.imports import modules_in, require
from longspan.models import LongspanConfig
from longspan.models.embeddings.encoder import EncoderSettings
from longspan.models.embeddings.tokens import TokenSettings
from longspan.models.settings import EmbeddingSettings, arguments, chosen_kind
from longspan.report import count, scores_table, table
from longspan.report.card import Hub
from longspan.results import Evaluation, Statistics
from longspan.results.scores import S, Scores
from longspan.tasks.base.answering import Inference
from longspan.tasks.base.case import Case
from longspan.tasks.base.options import EvaluationOptions, GenerationOptions, PredictionOptions, TrainingOptions
from longspan.training.base import LongspanTrainer

__all__ = ["Baseline", "D", "Fitted", "O", "P", "Recipe", "Run", "Task"]


#: What a task's `[data]` and the keys that it adds to `[training]` become, and what turns its examples into streams.
D = TypeVar("D", bound=SourceData)
O = TypeVar("O", bound=TrainingOptions)  # noqa: E741
P = DefaultTypeVar("P", bound=Processor, default=Any)


@dataclass(frozen=True)
class Prepared(Generic[P]):
    """Data of a recipe that are ready for training, before a model is built.

    Attributes:
        splits: "train", and "validation" and "test" where there are any, ready for the trainer. The column `length`
            holds each example's size in tokens.
        processor: Processor that turned examples into streams, saved with the model.
        config: Settings of `LongspanConfig` that depend on the data, such as the size of the vocabulary.
        data: By split, how many examples, tokens and the like there are, and under "skipped" the rows left out, and
            under "encodings" those in other encodings than UTF-8.
        details: Further details for `TrainingResult.details`, by names that its fields do not have.
        stream: All training rows, where "train" is a sample of them.
    """

    splits: dict[str, Dataset]
    processor: P
    config: dict[str, Any]
    data: dict[str, Any]
    details: dict[str, Any] = field(default_factory=dict)
    stream: Streamed | None = None


def read_splits(recipe: "Recipe[Any, Any]") -> DatasetDict:
    """Return the splits of a recipe's data, of which one is for validation.

    Raises:
        UserError: For whatever is wrong with them.
    """
    splits = load(recipe.data, recipe.task.columns(recipe.data)).splits
    check_validation(splits)
    return splits


def check_validation(splits: Collection[str]) -> None:
    """Raise UserError unless there is a validation split."""
    if "validation" not in splits:
        raise UserError("expected a validation split, got none; set data.validation or data.validation_fraction.")


def _usual() -> Any:
    return TrainingOptions()


@dataclass(frozen=True)
class Recipe(Generic[D, O]):
    """One complete run.

    Attributes:
        name: Name of the recipe, for the run folder and messages.
        task: The learned task.
        data: Where examples come from and how they become tokens, a `task.data_config`.
        model: Arguments of `LongspanConfig`, without those that depend on the data.
        start_from: The run folder whose processor, embeddings and layers it starts with; "" for a new model. What the
            recipe leaves open of these, `longspan.recipes.load` fills in.
        training: Arguments of `transformers.TrainingArguments`, defaults filled in.
        options: The keys of `[training]` that longspan and the task add, a `task.training_options`.
        description: One or two sentences for people.
    """

    name: str
    task: "Task"
    data: D
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    options: O = field(default_factory=_usual)
    description: str = ""
    start_from: str = ""

    def to_toml(self) -> str:
        """Return the resolved recipe as TOML. Every field of `[data]` and `[training]` is spelled out, so that a later
        change of defaults does not change this run. `longspan.recipes.load` reads it back as an equal recipe, except
        for the name, which is the file's."""
        tables = {
            "task": self.task.name,
            "description": self.description,
            "data": dataclasses.asdict(self.data),
            "model": ({"start_from": self.start_from} if self.start_from else {}) | self.model,
            "training": self.training | dataclasses.asdict(self.options),
        }
        return tomli_w.dumps(_without_none(tables))

    def reading(self, data: Any) -> "Recipe[D, O]":
        """Return the recipe with other data: see `Task.reading`."""
        return dataclasses.replace(self, data=self.task.reading(self.data, data))

    def sampled(self, share: float) -> "Recipe[D, O]":
        """Return the recipe with this share of the rows; 0 for the share that its time allows."""
        return dataclasses.replace(self, data=dataclasses.replace(self.data, sample=share))

    def require_data(self) -> None:
        """Raise `UserError` if the recipe does not say where its examples come from."""
        if not self.data.path and not self.data.train:
            if given := [name for name in ("validation", "test") if getattr(self.data, name)]:
                raise UserError(
                    f"recipe {self.name!r} expected training data, got only a {given[0]} split; add a split 'train' "
                    "(data.train)."
                )
            raise UserError(f"recipe {self.name!r} expected {self.task.data_hint}, got neither; set one of them.")


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """Leave out None, also in nested tables: TOML has no null."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


@dataclass(frozen=True)
class Run(Generic[D, O, P]):
    """A trained model with everything needed to use it.

    Attributes:
        folder: The run folder.
        model: The model, in evaluation mode, on the accelerator if there is one.
        processor: Processor that turns examples into its inputs.
        recipe: The resolved recipe it was trained with.
        checkpoint: The step after which the model was saved, if it is that of a checkpoint.
        prediction: How predictions are made, the task's `prediction_options`; None for its defaults.
    """

    folder: Path
    model: PreTrainedModel
    processor: P
    recipe: Recipe[D, O]
    checkpoint: int | None = None
    prediction: Any = None

    @property
    def task(self) -> "Task":
        """The task it was trained for."""
        return self.recipe.task

    @property
    def data(self) -> D:
        """The keys of its recipe's `[data]`."""
        return self.recipe.data

    @property
    def labels(self) -> list[str]:
        """Names of the model's outputs, in order."""
        names = self.model.config.id2label
        return [names[number] for number in sorted(names)]

    @property
    def false_alarms(self) -> float:
        """Share of validation texts that are unfamiliar."""
        return self.processor.false_alarms


@dataclass(frozen=True)
class Fitted(Generic[S]):
    """A baseline that was fitted.

    Attributes:
        scores: Its scores on the validation split and, where there is one, the test split.
        chosen: The settings that were chosen on the validation split, as JSON.
        parameters: Number of learned parameters.
    """

    scores: dict[str, S]
    chosen: dict[str, Any]
    parameters: int


class Baseline(abc.ABC, Generic[S]):
    """A method without a sequence model, which `longspan compare` adds to the table of the mixers.

    The first line of a subclass's docstring says in one sentence what it does.
    """

    #: The packages that it imports and longspan itself does without, when `fit` is called.
    packages: ClassVar[tuple[str, ...]] = ()
    #: Whether the recipe's epochs and time budget are also its own.
    trains: ClassVar[bool] = False

    @classmethod
    def summary(cls) -> str:
        """The first sentence of its docstring."""
        return (inspect.getdoc(cls) or "").partition("\n")[0]

    @abc.abstractmethod
    def fit(self, recipe: Recipe) -> Fitted[S]:
        """Fit on the training split of a recipe, choose settings on its validation split, and score.

        The splits are those of the recipe's runs, and scores are those that a run with equal outputs would get.

        Raises:
            UserError: For whatever is wrong with the data.
        """


class ModelBaseline(Baseline[S]):
    """A baseline over a pretrained model, which `--baselines` names after a colon: "embeddings:MODEL".

    Subclasses check in `__init__` that the model can be used, and read it in `fit`.

    Args:
        model: Text after the colon.

    Attributes:
        source: Identity of its model, whatever the current directory is; by default `model`.

    Raises:
        UserError: There is no such model on this machine, or a package that it needs is not installed.
    """

    #: A model that messages name.
    example: ClassVar[str] = "MODEL"

    def __init__(self, model: str) -> None:
        self.model = self.source = model

    def label(self) -> str:
        """Return a short name of the model for files, with a digest that tells it from others."""
        last = re.split(r"[/\\]", self.source.rstrip("/\\"))[-1]
        readable = re.sub(r"[^\w.-]", "_", last, flags=re.ASCII)[:40]
        return f"{readable}-{hashlib.sha256(self.source.encode()).hexdigest()[:8]}"


class RunBaseline(ModelBaseline[S]):
    """A baseline over a run of another task, which `--baselines` names after a colon: "evidence:RUN".

    Args:
        model: Text after the colon, a run folder.
        run: That run, loaded.
    """

    def __init__(self, model: str, run: Run) -> None:
        super().__init__(model)
        self.run, self.source = run, str(run.folder.absolute())


def baselines_in(package: ModuleType) -> dict[str, type[Baseline]]:
    """Return the baselines of a package by name: each file has a class of its name in CamelCase.

    Files whose names begin with "_" hold what they share.
    """
    return {
        name: getattr(importlib.import_module(f"{package.__name__}.{name}"), name.title().replace("_", ""))
        for name in modules_in(*package.__path__)
    }


@dataclass(frozen=True)
class Counted:
    """A count-based model fitted to the training split, ready to become the wide part of a model.

    Attributes:
        settings: Settings of the model that depend on it, such as the size of its tables.
        enter: Puts what was fitted into a new model with these settings.
    """

    settings: dict[str, Any]
    enter: Callable[[PreTrainedModel], None]


class Counts(Baseline[S]):
    """A count-based model: a baseline of `longspan compare`, and the wide part of models with `model.wide`.

    It is fitted before the network. What the network reads of it in training is cross-fitted: fitted to other training
    examples. The validation split chooses the weights of both.
    """

    @abc.abstractmethod
    def count(self, recipe: Recipe, prepared: Prepared) -> Counted:
        """Fit to the training split that was prepared for a model.

        Raises:
            UserError: For whatever is wrong with the data, or sizes that do not fit into memory.
        """


Facts = Mapping[str, tuple[str, Callable[[Any], str]]]


def length_facts(examples: str, tokens: str, median: str = "median length", longest: str = "longest") -> Facts:
    """Return the facts of `truncation_table`, in the words for examples, their tokens and lengths."""
    words = {"documents": examples, "tokens": tokens, "median_length": median, "longest": longest}
    words |= {"cut_documents": f"cut {examples}", "removed_tokens": f"{tokens} cut off"}
    return {key: (name, count) for key, name in words.items()}


#: Keys of facts about the data among the details of evaluations.
_DATA = ("truncation", "data_summary", "data_table")


class Task(Inference, Generic[S, D, O, P]):
    """One kind of prediction that models learn, with everything specific to it; an instance holds only its name.

    The class says what the task reads and measures, and which options it has; the verbs do the rest.

    Args:
        name: Its name in recipes: the folder's name, or the dotted path of the class.
    """

    #: The `[data]` keys: `SourceData`, or a subclass with further keys, as texts have.
    data_config: ClassVar[type[SourceData]] = DataConfig
    #: The keys of `[training]` that transformers does not have.
    training_options: ClassVar[type[TrainingOptions]] = TrainingOptions
    #: The options of `longspan.evaluate` besides run, data and split.
    evaluation_options: ClassVar[type] = EvaluationOptions
    #: The options of `longspan.predict` besides what is read.
    prediction_options: ClassVar[type] = PredictionOptions
    #: Settings that error messages name when a recipe names no data.
    data_hint: ClassVar[str] = "data.path=FILE (a csv, tsv, jsonl or parquet file), or data.train=FILE"
    #: The column of labels by whose classes splits are made, if there is one.
    stratify: ClassVar[str | None] = None
    #: Its scores: names, words and order, and which of them chooses the best epoch.
    scores: ClassVar[type[Scores]]
    #: Whether only a part is read of examples longer than `data.max_length`, as predictions then say: not so where they
    #: are read in windows, or where the parts of an example are cut, such as titles.
    cuts_examples: ClassVar[bool] = True
    #: The key of a recipe that sets the length of what is read at once, which `longspan plan` varies; "" for none.
    length_key: ClassVar[str] = "data.max_length"
    #: Whether all splits are parts of one source, such as the nodes of a graph, so that none has copies in another.
    one_source: ClassVar[bool] = False
    #: Whether the outputs of an exported program, with the labels and thresholds of its model, are all its predictions
    #: are made of.
    program_answers: ClassVar[bool] = False
    #: Metadata of its model cards for the Hugging Face Hub; their text is `card.md` in its folder, see `base.md` here.
    hub: ClassVar[Hub] = Hub()
    #: The packages that its scores import and longspan itself does without.
    packages: ClassVar[tuple[str, ...]] = ()
    #: Columns of `data_table`: keys of each split in `Prepared.data`, with their words and how they are written.
    facts: ClassVar[Facts] = {"documents": ("examples", count)}
    #: The class of its models.
    model_class: ClassVar[type[PreTrainedModel]]
    #: Processor that turns its examples into the streams of a batch.
    processor: ClassVar[type[Processor]] = TextProcessor
    #: What turns its inputs into vectors: the kind whose required settings a recipe gives, or the first.
    embeddings: ClassVar[Sequence[type[EmbeddingSettings]]] = (TokenSettings, EncoderSettings)
    #: Settings of the model's parts that it has no use for: by default, attention to another sequence.
    unused: ClassVar[frozenset[str]] = frozenset({"cross_mixers"})

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        # They hold nothing else, and recipes with equal contents are equal.
        return type(self) is type(other) and isinstance(other, Task) and self.name == other.name

    def __hash__(self) -> int:
        return hash((type(self), self.name))

    def check_packages(self) -> None:
        """Raise UserError unless the packages are installed that its scores need."""
        for package in self.packages:
            require(package, f"scoring the task {self.name!r}")

    # What is read

    @abc.abstractmethod
    def columns(self, data: D) -> Sequence[Column]:
        """Return the columns that are read, targets among them; predictions are made without these."""

    def inputs(self, data: D) -> Sequence[Column]:
        """Return the columns that predictions are made from: by default, all but the targets."""
        return [column for column in self.columns(data) if not column.target]

    def reading(self, data: D, given: Any) -> D:
        """Return the keys of `[data]` with other data in place of all that they name: by default, see
        `in_memory.with_data`.

        Raises:
            UserError: The data are of another kind.
        """
        found: D = with_data(data, self.columns(data), given)
        return found

    def splits(self, data: D) -> Splits:
        """Data to score, by split; `evaluate` gets one of these. Training data need not be there.

        Raises:
            UserError: For whatever is wrong with the data.
        """
        return load(data, self.columns(data), training=False, stratify=self.stratify)

    def other_splits(self, run: "Run[D, O, P]", data: D) -> Splits:
        """Data to score that are not those of training; by default, the run says nothing about them.

        Raises:
            UserError: See `splits`.
        """
        return self.splits(data)

    @abc.abstractmethod
    def prepare(self, recipe: Recipe[D, O]) -> Prepared[P]:
        """Read, split and process the data; whatever is learned from them is learned from the training split alone.

        Raises:
            UserError: For whatever is wrong with the data.
        """

    # What is trained

    def configure(self, settings: Mapping[str, Any], from_data: Mapping[str, Any]) -> LongspanConfig:
        """Return the configuration that a recipe's `[model]` describes, with the settings that depend on the data.

        This is also called without the latter before any data are read, to find mistakes early.

        Raises:
            UserError: For settings that do not fit each other, or the task.
        """
        # Models without weights, built to find out about the rest of them, do without what is found in files.
        stand_in = chosen_kind(settings, self.embeddings).stand_in
        given = {**stand_in, **settings, **from_data}
        return LongspanConfig(**arguments(given, self.embeddings, getattr(self.model_class, "head_settings", None)))

    def without_values(self, settings: Mapping[str, Any]) -> PreTrainedModel:
        """Return a model of these `[model]` settings without memory or values, as far as these say what it is like.

        It is also built to find mistakes before data are read.

        Raises:
            UserError: For whatever is wrong with them.
        """
        with torch.device("meta"):
            return self.model_class(self.configure(settings, {}))

    def counted(self, recipe: Recipe[D, O], prepared: Prepared[P]) -> Counted | None:
        """Return the wide part of the recipe's model fitted to these data, or None if it has none (`counts`).

        Raises:
            UserError: For whatever is wrong with the data.
        """
        counts = self.counts() if recipe.model.get("wide") else None
        return None if counts is None else counts().count(recipe, prepared)

    def build_model(
        self, recipe: Recipe[D, O], prepared: Prepared[P], counted: Counted | None = None
    ) -> PreTrainedModel:
        """Return a new model of the recipe's shape for these data.

        Args:
            recipe: The recipe.
            prepared: The data.
            counted: Its wide part; by default, that of `counted`.

        Raises:
            UserError: For sizes that do not fit together.
        """
        processor, counted = prepared.processor, counted or self.counted(recipe, prepared)
        settings = recipe.model if counted is None else {**recipe.model, **counted.settings}
        model = self.model_class(self.configure(settings, {**prepared.config, **processor.settings(recipe.model)}))
        processor.introduce(model)
        if counted is not None:
            counted.enter(model)
        return model

    @abc.abstractmethod
    def make_trainer(
        self, recipe: Recipe[D, O], model: PreTrainedModel, arguments: TrainingArguments, prepared: Prepared[P]
    ) -> LongspanTrainer:
        """Trainer of `model` on `prepared.splits["train"]` that scores the validation split.

        Raises:
            UserError: Before anything is written, for data that the model or the options do not allow.
        """

    # What a trained model does

    @abc.abstractmethod
    def evaluate(
        self, run: Run[D, O, P], examples: Any, split: str, options: Any, folder: Path
    ) -> tuple[S, dict[str, Any]]:
        """Score examples and draw figures of the scores.

        Args:
            run: The trained model.
            examples: One of the `splits`: by default a `Dataset` of rows with the task's `columns` and `where`.
            split: Their name, for progress bars.
            options: An `evaluation_options`.
            folder: Folder of the figures.

        Returns:
            The scores, and what else the result should contain, by names of its own. Three names are known: more rows
            that were "skipped", the `Mistakes` as "mistakes", and likely wrong labels, also `Mistakes`, as
            "label_issues".

        Raises:
            UserError: For examples that the model cannot score, or options that do not fit it.
        """

    def generate(
        self, run: Run[D, O, P], prompt: str, options: GenerationOptions, statistics: Statistics
    ) -> Iterator[str]:
        """Yield the text that continues `prompt`, in pieces, and fill in `statistics`.

        Raises:
            UserError: The task's models generate no text, or the prompt cannot be continued.
        """
        raise UserError(
            f"expected a run that continues texts, got {str(run.folder)!r} of the task {self.name!r}, whose models do "
            "not; name a run of language modelling."
        )

    def token_rows(self, run: Run[D, O, P], examples: Dataset) -> list[list[int]]:
        """Return the token ids of each of a few examples, as the model reads them: what an export is checked on.

        Raises:
            UserError: The task's models read something other than one row of tokens for each example.
        """
        raise UserError(
            f"expected a task whose models read rows of tokens to export one, got {self.name!r}, which does not "
            "say how (`Task.token_rows`); name another run."
        )

    def write_answers(self, run: Run[D, O, P], folder: Path) -> dict[str, Any]:
        """Write what predictions of an exported program need next to it, and return what `export.json` says of them.

        Empty where they need more. See `longspan.tasks.base.answering.Answering`.
        """
        return {}

    def case(self, run: Run[D, O, P], row: Row, of: str, at: float | None) -> Case:
        """Case to explain: what a model says of a row; see `longspan.explain`.

        Raises:
            UserError: The task's predictions cannot be explained, the row has none, nothing is called `of`, or there is
                nothing at `at`.
        """
        raise UserError(
            f"expected a run whose predictions can be explained, got {str(run.folder)!r} of the task {self.name!r}, "
            "which does not say how (`Task.case`); name another run."
        )

    # What it is compared with

    def baselines(self) -> Mapping[str, type[Baseline[S]]]:
        """Baselines of this task by name: by default, those in the package `baselines` next to its `task.py`.

        A task that extends one with such a package has the same. Without a package there are none.
        """
        for kind in type(self).__mro__[: type(self).__mro__.index(Task)]:
            folder, _, module = kind.__module__.rpartition(".")
            if folder and module == "task" and importlib.util.find_spec(f"{folder}.baselines") is not None:
                return baselines_in(importlib.import_module(f"{folder}.baselines"))
        return {}

    def counts(self) -> type[Counts[S]] | None:
        """Count-based model of this task, which models with `model.wide` contain: by default, that of `baselines`."""
        return next((kind for kind in self.baselines().values() if issubclass(kind, Counts)), None)

    # What is reported

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        """Return the table of splits from `Prepared.data`; `style` is one of tabulate's."""
        rows = (
            [name, *(write(row.get(key)) for key, (_, write) in self.facts.items())]
            for name, row in data.items()
            if isinstance(row, Mapping) and row.keys() & self.facts.keys()
        )
        return table(["split", *(words for words, _ in self.facts.values())], rows, style)

    def evaluation_report(self, evaluation: Evaluation[S]) -> str:
        """Report that `longspan evaluate` prints: the data, if details say what they are, scores, and the folder."""
        details, more = evaluation.details, {"skipped": evaluation.skipped}
        tables = [self.data_table({evaluation.split: details[key]} | more) for key in _DATA if key in details]
        return "\n\n".join([*tables, *self.sections(evaluation), f"written to {evaluation.folder}"])

    def sections(self, evaluation: Evaluation[S]) -> list[str]:
        """Return the scores, and what else the report of an evaluation says."""
        return [scores_table({evaluation.split: evaluation.scores})]
