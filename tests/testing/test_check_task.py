"""What `check_task` says about tasks that break one promise each, and that it lets the built-in tasks pass."""

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from torch import Tensor

from longspan import LongspanConfig, tasks
from longspan.data.columns.kinds import Column, Text
from longspan.data.sources.formats.rows import Row
from longspan.results import Evaluation, Prediction, TrainingResult
from longspan.results.mistakes import Mistake, Mistakes
from longspan.results.scores import score
from longspan.tasks.base.classes import ClassificationScores, ClassPrediction
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions
from longspan.tasks.base.task import Baseline, Counts, Prepared, Recipe, Run, Task
from longspan.tasks.document_classification.options import ClassificationData
from longspan.tasks.document_classification.task import DocumentClassification
from longspan.testing import check_task, task_checks
from longspan.testing.tasks import subject
from longspan.testing.tasks.subject import Subject

SMALL = ["data.tokens=words", "data.vocab_size=60", "model.dim=8", "model.heads=2", "model.depth=1"]


class Undocumented(DocumentClassification):
    pass


Undocumented.__doc__ = None


@dataclass(frozen=True)
class Unexplained(EvaluationOptions):
    tolerance: float = 1.0


class OptionWithoutHelp(DocumentClassification):
    """Nobody can know what its option is for."""

    evaluation_options = Unexplained


@dataclass(frozen=True)
class Demanding(LengthTrainingOptions):
    limit: int = dataclasses.field(kw_only=True, metadata={"help": "a number"})


class OptionWithoutDefault(DocumentClassification):
    """Its recipes must say everything."""

    training_options = Demanding


class NoScores(DocumentClassification):
    """Its scores are a dictionary."""

    scores = dict  # type: ignore[assignment]


class OtherSetting(DocumentClassification):
    """It reads a column that no key names."""

    def columns(self, data: ClassificationData) -> Sequence[Column]:
        return [Text("text", "words_column"), *super().columns(data)[1:]]


class OnlyTargets(DocumentClassification):
    """It predicts from nothing."""

    def columns(self, data: ClassificationData) -> Sequence[Column]:
        return [column for column in super().columns(data) if column.target]


@dataclass(frozen=True)
class Short(ClassificationScores):
    extra: float = score("extra", higher_is_better=True)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if name != "extra"}


class ForgetsAScore(DocumentClassification):
    """One of its scores does not reach the file."""

    scores = Short

    def score(self, logits: Tensor, targets: Tensor, config: LongspanConfig) -> ClassificationScores:
        return Short(**vars(super().score(logits, targets, config)), extra=1.0)


class ScoresOfAnotherClass(DocumentClassification):
    """It declares one class of scores and returns another."""

    scores = Short


class Worse(DocumentClassification):
    """It scores otherwise than in training."""

    def evaluate(
        self, run: Run, examples: Dataset, split: str, options: Any, folder: Path
    ) -> tuple[ClassificationScores, dict[str, Any]]:
        scores, details = super().evaluate(run, examples, split, options, folder)
        return dataclasses.replace(scores, loss=scores.loss + 0.1), details


class Silent(DocumentClassification):
    """It has nothing to say about its scores."""

    def evaluation_report(self, evaluation: Evaluation) -> str:
        return " "


class Hidden(DocumentClassification):
    """What its models count cannot be compared with them."""

    def baselines(self) -> Mapping[str, type[Baseline]]:
        return {name: kind for name, kind in super().baselines().items() if kind is not self.counts()}

    def counts(self) -> type[Counts] | None:
        return tasks.load("document_classification").counts()


class Undivided(DocumentClassification):
    """Its evaluations say nothing of the parts that training tells of."""

    def evaluate(
        self, run: Run, examples: Dataset, split: str, options: Any, folder: Path
    ) -> tuple[ClassificationScores, dict[str, Any]]:
        scores, details = super().evaluate(run, examples, split, options, folder)
        return scores, {name: value for name, value in details.items() if name != "parts"}


class Misdivided(DocumentClassification):
    """Its parts together have another score than its model."""

    def evaluate(
        self, run: Run, examples: Dataset, split: str, options: Any, folder: Path
    ) -> tuple[ClassificationScores, dict[str, Any]]:
        scores, details = super().evaluate(run, examples, split, options, folder)
        details["parts"]["values"]["both"] -= 0.5
        return scores, details


class Backwards(DocumentClassification):
    """Its predictions are in another order."""

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[Prediction]:
        return iter(list(super().predict(run, rows))[::-1])


class Skipping(DocumentClassification):
    """It leaves bad rows out."""

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[Prediction]:
        return (one for one in super().predict(run, rows) if one.error is None)


class Reworded(DocumentClassification):
    """It hides what was wrong with a row."""

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[Prediction]:
        for one in super().predict(run, rows):
            yield dataclasses.replace(one, error="something") if one.error else one


class Comparing(DocumentClassification):
    """Its predictions depend on how many rows there are."""

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[Prediction]:
        found = list(super().predict(run, rows))
        for one in found:
            assert isinstance(one, ClassPrediction)
            assert one.probabilities is not None
            shares = {name: share / len(found) for name, share in one.probabilities.items()}
            yield dataclasses.replace(one, probabilities=shares)


class Giving(DocumentClassification):
    """It gives up on every row."""

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[Prediction]:
        return (Prediction(row.where, row.problem or "too hard") for row in rows)


class Uncounted(DocumentClassification):
    """It says nothing of copies."""

    def prepare(self, recipe: Recipe) -> Prepared:
        prepared = super().prepare(recipe)
        return dataclasses.replace(prepared, data={**prepared.data, "duplicates": {}})


class Cutting(DocumentClassification):
    """It says nothing of what it leaves out."""

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[Prediction]:
        for one in super().predict(run, rows):
            yield dataclasses.replace(one, tokens_read=None, tokens_total=None)


class Shuffled(DocumentClassification):
    """Its mistakes are in any order."""

    def evaluate(
        self, run: Any, examples: Any, split: str, options: Any, folder: Path
    ) -> tuple[ClassificationScores, dict[str, Any]]:
        scores, details = super().evaluate(run, examples, split, options, folder)
        worst = [Mistake("x.csv, row 1", "cat", "dog", score) for score in (0.5, 0.9, 0.7)]
        return scores, {**details, "mistakes": Mistakes("probability", worst, 3)}


class Endless(DocumentClassification):
    """It lists all mistakes."""

    def evaluate(
        self, run: Any, examples: Any, split: str, options: Any, folder: Path
    ) -> tuple[ClassificationScores, dict[str, Any]]:
        scores, details = super().evaluate(run, examples, split, options, folder)
        return scores, {**details, "mistakes": Mistakes("probability", [Mistake("row", "cat", "dog", 0.5)] * 21, 21)}


@dataclass(frozen=True)
class Careless(Text):
    """Any cell is a document to it."""

    def parse(self, cell: Any, folder: Path) -> str:
        return cell if isinstance(cell, str) else "a document"


class Misreading(DocumentClassification):
    """It reads numbers and lists as some document."""

    def columns(self, data: ClassificationData) -> Sequence[Column]:
        return [Careless(one.name, one.setting) if isinstance(one, Text) else one for one in super().columns(data)]


@dataclass(frozen=True)
class Tolerant(Text):
    """A column that may be missing, whose documents are then called so."""

    def absent(self, name: str, present: Any) -> list[str]:
        return []

    def cell(self, cells: Sequence[Any]) -> Any:
        return "missing" if cells[0] is None else cells[0]


class Inventive(DocumentClassification):
    """It makes up documents where there are none."""

    def columns(self, data: ClassificationData) -> Sequence[Column]:
        return [Tolerant(one.name, one.setting) if isinstance(one, Text) else one for one in super().columns(data)]


BROKEN: list[tuple[type[Task], str, str]] = [
    (Undocumented, "declares_itself", "needs a docstring"),
    (OptionWithoutHelp, "declares_itself", "Unexplained.tolerance must be made with `option`, for its help"),
    (OptionWithoutDefault, "declares_itself", "Demanding.limit must have a default"),
    (NoScores, "declares_itself", "NoScores.scores must be a subclass of longspan.results.scores.Scores"),
    (OtherSetting, "declares_itself", "'text' names the setting 'words_column', which ClassificationData lacks"),
    (OnlyTargets, "declares_itself", "must read a column that is not a target"),
    (ForgetsAScore, "trains", "the scores of validation must survive JSON, but .*got none for extra"),
    (ScoresOfAnotherClass, "trains", "the scores of validation must be Short"),
    (Worse, "evaluates_as_in_training", "loss must be .* as in training, got"),
    (Silent, "evaluates_as_in_training", "evaluation_report must say something"),
    (Hidden, "declares_itself", r"Hidden.counts\(\) must be one of its baselines"),
    (Undivided, "evaluates_as_in_training", "must both report the scores of a model's parts, but evaluate does not"),
    (
        Misdivided,
        "evaluates_as_in_training",
        "accuracy of both parts must be that of the model, .* evaluate reports",
    ),
    (Uncounted, "counts_copies", "examples that are in two splits must be counted"),
    (Misreading, "wrong_readings_are_said", "column 'text': 7.5 must be read as it stands, or be an error"),
    (Inventive, "wrong_readings_are_said", "predict on data without the column 'text' must be an error"),
    (Cutting, "says_what_it_leaves_out", "was cut to 4 tokens, and its prediction does not say so"),
    (Backwards, "predicts_each_row_in_order", "predictions must come row by row, in order"),
    (Giving, "predicts_each_row_in_order", "must have a prediction, but has the error 'too hard'"),
    (Skipping, "bad_rows_keep_their_place", "bad rows keep their place"),
    (Reworded, "bad_rows_keep_their_place", "a bad row must have its problem as the error"),
    (Shuffled, "lists_mistakes_or_says_why_not", "the worst must come first"),
    (Endless, "lists_mistakes_or_says_why_not", "at most 20 of 21 must be listed"),
    (
        Comparing,
        "other_rows_change_nothing",
        "row .: a prediction must not depend on other rows, but was .* alone and .* among others",
    ),
]


Trained = Callable[[Sequence[str]], TrainingResult]


@pytest.fixture(scope="module")
def trained(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run of the task without faults, trained once for the same settings."""

    @functools.cache
    def once(settings: tuple[str, ...]) -> TrainingResult:
        folder = tmp_path_factory.mktemp("unbroken")
        return Subject("document_classification", str(animals), folder, settings).trained

    return lambda settings: once(tuple(settings))


def pass_off(result: TrainingResult, task: type[Task], run: Path) -> TrainingResult:
    """Copy a run to the folder `run`, as one of another task."""
    shutil.copytree(result.folder, run)
    recipe = run / "recipe.toml"
    own = f'task = "{task.__module__}.{task.__qualname__}"'
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace('task = "document_classification"', own), encoding="utf-8")
    return dataclasses.replace(result, folder=str(run))


@pytest.mark.slow
@pytest.mark.parametrize(("task", "check", "told"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_promise_is_named(
    task: type[Task],
    check: str,
    told: str,
    animals: Path,
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = ["model.wide=true", "model.wide_buckets=4096"] if task in (Undivided, Misdivided) else []
    settings = [*SMALL, *wide]
    if check not in ("declares_itself", "trains", "counts_copies"):
        # The others train as the task that they are derived from.
        result = trained(settings)
        monkeypatch.setattr(subject, "train", lambda *_, run, **__: pass_off(result, task, run))
    checks = dict(task_checks(task, animals, tmp_path, settings))
    with pytest.raises(AssertionError, match=told) as error:
        checks[check]()
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


def test_the_first_broken_promise_ends_the_checks(animals: Path) -> None:
    with pytest.raises(AssertionError, match="needs a docstring"):
        check_task(Undocumented, animals, SMALL)


#: Tasks that read other data than a table of documents, and what checks them on those.
ELSEWHERE = {
    "audio_classification": "audio_classification/test_audio_task.py",
    "document_pairs": "document_pairs/test_document_pairs_task.py",
    "evidence": "evidence/test_evidence_task.py",
    "frame_labelling": "frame_labelling/test_frame_task.py",
    "graph_classification": "graph_classification/test_graph_task.py",
    "image_classification": "image_classification/test_image_task.py",
    "masked_spans": "masked_spans/test_masked_spans_task.py",
    "masked_words": "masked_words/test_masked_words_task.py",
    "node_classification": "node_classification/test_node_task.py",
    "recommendation": "recommendation/test_recommendation_task.py",
    "token_classification": "token_classification/test_token_task.py",
    "summarisation": "summarisation/test_summarisation_task.py",
    "translation": "translation/test_translation_task.py",
}


@pytest.mark.parametrize(("name", "file"), ELSEWHERE.items())
def test_the_others_are_checked_on_data_of_their_own(name: str, file: str) -> None:
    written = (Path(__file__).parents[1] / "tasks" / file).read_text(encoding="utf-8")
    assert f'check_task("{name}", ' in written


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in tasks.names() if name not in ELSEWHERE])
def test_the_tasks_that_come_with_longspan_keep_all(name: str, animals: Path, tmp_path: Path) -> None:
    header, *rows = animals.read_text(encoding="utf-8").splitlines()
    # A number, two labels of which either may apply, and a question for each, which the first word answers.
    table = [f"{header},words,cat,dog,question,answers"]
    for number, row in enumerate(rows):
        answers = json.dumps([{"text": row.split()[0].split(",")[0], "answer_start": 0}]).replace('"', '""')
        table.append(f'{row},{row.count(" ")},{row[-3:] == "cat":d},{"1" * (number == 2)},Which?,"{answers}"')
    (tmp_path / "animals.csv").write_text("\n".join(table), encoding="utf-8")
    more = {
        "document_regression": ["data.label_column=words"],
        "multi_label_classification": ["data.label_columns=cat,dog"],
        # `tests/verbs/test_starting.py` checks it without a wide part.
        "document_classification": ["model.dropout=0.1", "model.wide=true", "model.wide_buckets=4096"],
        "question_answering": ["data.text_column=text"],
        "language_modelling": ["training.segment_length=16", "model.dropout=0.1", "data.test_fraction=0.1"],
    }
    check_task(name, tmp_path / "animals.csv", [*SMALL, *more.get(name, [])])
