"""Check that a task does what the verbs rely on: `check_task`."""

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from longspan import imports, recipes, tasks
from longspan.data.columns import Column
from longspan.data.rows import Row
from longspan.errors import UserError
from longspan.results import TrainingResult
from longspan.runs import load_run
from longspan.scores import Scores
from longspan.tasks.base import Run, Task
from longspan.verbs.evaluate import evaluate
from longspan.verbs.predict import predict
from longspan.verbs.train import train


def check_task(task: str | type[Task[Any]], data: Path | str, overrides: Sequence[str] = ()) -> None:
    """Train, resume, evaluate and predict with a task, and check everything that the verbs rely on.

        from longspan.testing import check_task

        def test_my_task(tmp_path):
            check_task("mypackage.mytask.MyTask", write_some_examples(tmp_path / "data.csv"), ["model.dim=16"])

    Args:
        task: Its name, or the class.
        data: A few hundred examples in any form that `data.path` takes; a few seconds of training are enough.
        overrides: Further settings of the recipe, such as a small size of the model.

    Raises:
        AssertionError: The first broken promise, in one sentence.
    """
    with tempfile.TemporaryDirectory() as folder:
        for _, check in task_checks(task, data, Path(folder), overrides):
            check()


def task_checks(
    task: str | type[Task[Any]], data: Path | str, folder: Path, overrides: Sequence[str] = ()
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield each check's name and the function that runs it, in order; later ones use what earlier ones left."""
    name = task if isinstance(task, str) else f"{task.__module__}.{task.__qualname__}"
    checks = _Checks(name, str(data), folder, overrides)
    for check in (
        checks.declares_itself,
        checks.refuses_unknown_options,
        checks.recipe_survives_its_file,
        checks.trains,
        checks.resumes_to_the_same_weights,
        checks.evaluates_as_in_training,
        checks.predicts_each_row_in_order,
        checks.bad_rows_keep_their_place,
        checks.other_rows_change_nothing,
    ):
        yield check.__name__, check


class _Checks:
    def __init__(self, name: str, data: str, folder: Path, overrides: Sequence[str]) -> None:
        # Checking a task is consent to running its code.
        self.consent = (name.rpartition(".")[0],) if "." in name else ()
        self.name, self.folder, self.data = name, folder, data
        self.overrides = [
            f"data.path={data}",
            "training.num_train_epochs=2",
            "training.seed=0",
            *overrides,
        ]
        self.file = folder / "recipe.toml"
        self.file.write_text(f"task = {json.dumps(name)}\n", encoding="utf-8")
        self._result: TrainingResult | None = None

    def declares_itself(self) -> None:
        task = self._task()
        _need(bool((type(task).__doc__ or "").strip()), f"{self.name} needs a docstring that says what it is")
        scores = getattr(task, "scores", None)
        _need(
            isinstance(scores, type) and issubclass(scores, Scores),
            f"{self.name}.scores must be a subclass of longspan.scores.Scores, but is {scores!r}",
        )
        _need(bool(task.scores.shown()), f"{self.name}.scores must show at least one score")
        for kind in (task.training_options, task.evaluation_options, task.data_config):
            _need(dataclasses.is_dataclass(kind), f"{kind.__name__} must be a dataclass")
            for field in dataclasses.fields(kind):
                given = (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
                _need(given, f"{kind.__name__}.{field.name} must have a default, for recipes that do not say")
            kind()
        for kind in (task.training_options, task.evaluation_options):
            for field in dataclasses.fields(kind):
                _need(
                    "help" in field.metadata, f"{kind.__name__}.{field.name} must be made with `option`, for its help"
                )
        found = list(task.columns(task.data_config()))
        _need(any(not column.target for column in found), f"{self.name} must read a column that is not a target")
        settings = {field.name for field in dataclasses.fields(task.data_config)}
        for column in found:
            _need(
                column.setting in settings,
                f"column {column.name!r} names the setting {column.setting!r}, which {task.data_config.__name__} lacks",
            )

    def refuses_unknown_options(self) -> None:
        for table in ("data", "model", "training"):
            try:
                self._recipe([f"{table}.nonsense=1"])
            except UserError:
                continue
            raise AssertionError(f"{table}.nonsense must be refused as an unknown key")

    def recipe_survives_its_file(self) -> None:
        recipe = self._recipe()
        again = self.folder / "again.toml"
        again.write_text(recipe.to_toml(), encoding="utf-8")
        with imports.allow(*self.consent):
            loaded = recipes.load(str(again))
        _need(loaded.to_toml() == recipe.to_toml(), "a recipe must read back from its file as it was")

    def trains(self) -> None:
        result = self._trained()
        kind = self._task().scores
        _need("validation" in result.scores, "training must score the validation split")
        for split, scores in result.scores.items():
            _need(isinstance(scores, kind), f"the scores of {split} must be {kind.__name__}, but are {scores!r}")
            stored = json.loads(json.dumps(scores.to_dict()))
            try:
                survives = kind.from_dict(stored) == scores
            except UserError as error:
                raise AssertionError(f"the scores of {split} must survive JSON, but {error}") from error
            _need(survives, f"the scores of {split} must survive JSON, but {stored} gives others than {scores!r}")
        written = json.loads((Path(result.folder) / "metrics.json").read_text(encoding="utf-8"))
        _need(written == json.loads(json.dumps(result.to_dict())), "metrics.json must hold what training returned")
        card = (Path(result.folder) / "README.md").read_text(encoding="utf-8")
        _need(card.startswith("---\n"), "the model card must begin as the Hugging Face Hub reads it")
        _need(bool(self._task().data_table(result.data).strip()), "data_table must show the splits")

    def resumes_to_the_same_weights(self) -> None:
        whole = self._trained()
        stopped = self.folder / "stopped"
        shutil.copytree(whole.folder, stopped)
        # As if killed after the first epoch.
        (stopped / "metrics.json").unlink()
        found = sorted((stopped / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
        _need(len(found) > 1, "training must save a checkpoint per epoch")
        shutil.rmtree(found[-1])
        train(self._recipe(), run=stopped, resume=True, progress=False, allow_imports=self.consent)
        first, second = (load_file(Path(run, "model.safetensors")) for run in (whole.folder, stopped))
        for name, weight in first.items():
            _need(
                torch.equal(weight, second[name]), f"a resumed run must end with the same weights, but {name} differs"
            )

    def evaluates_as_in_training(self) -> None:
        result = self._trained()
        evaluation = evaluate(self._run(), split="validation")
        for name, value in result.scores["validation"].numbers().items():
            again = evaluation.scores.numbers()[name]
            # Different batches: sums in another order.
            _need(
                abs(again - value) <= 1e-4 * max(1, abs(value)), f"{name} must be {value} as in training, got {again}"
            )
        json.dumps(evaluation.to_dict())
        _need(bool(self._task().evaluation_report(evaluation).strip()), "evaluation_report must say something")

    def predicts_each_row_in_order(self) -> None:
        rows = self._rows()
        found = list(predict(self._run(), rows))
        _need([one.where for one in found] == [row.where for row in rows], "predictions must come row by row, in order")
        for one in found:
            _need(one.error is None, f"{one.where} must have a prediction, but has the error {one.error!r}")
            json.dumps(one.to_dict())
        _need(not list(predict(self._run(), [])), "no rows must give no predictions")

    def bad_rows_keep_their_place(self) -> None:
        good = self._rows()[:2]
        bad = Row({}, "the bad row", "broken UTF-8")
        found = list(predict(self._run(), [good[0], bad, good[1]]))
        _need(
            [one.where for one in found] == [good[0].where, "the bad row", good[1].where], "bad rows keep their place"
        )
        _need(found[1].error == "broken UTF-8", "a bad row must have its problem as the error")
        _need(found[0].error is None and found[2].error is None, "a bad row must not spoil others")

    def other_rows_change_nothing(self) -> None:
        rows, run = self._rows(), self._run()
        for row, together in zip(rows, predict(run, rows), strict=True):
            (alone,) = predict(run, [row])
            _same(alone.to_dict(), together.to_dict(), row.where)

    def _task(self) -> Task[Any]:
        return tasks.load(self.name, self.consent)

    def _recipe(self, more: Sequence[str] = ()) -> Any:
        return recipes.load(str(self.file), [*self.overrides, *more], allow_imports=self.consent)

    def _columns(self) -> Sequence[Column]:
        return self._task().columns(self._recipe().data)

    def _trained(self) -> TrainingResult:
        if self._result is None:
            run = self.folder / "run"
            self._result = train(self._recipe(), run=run, progress=False, allow_imports=self.consent)
        return self._result

    def _run(self) -> Run:
        return load_run(self._trained().folder, allow_imports=self.consent)

    def _rows(self) -> list[Row]:
        """Return some rows as predictions read them."""
        run = self._run()
        return list(islice(run.task.inputs_of(run, [self.data], run.recipe.data, None), 6))


def _need(holds: bool, promise: str) -> None:
    if not holds:
        raise AssertionError(f"{promise}.")


def _same(one: Any, other: Any, where: str) -> None:
    """Compare predictions; numbers may differ by rounding, as sums are in another order."""
    if isinstance(one, dict):
        _need(one.keys() == other.keys(), f"{where}: a prediction must have the same fields alone and among others")
        for key, value in one.items():
            _same(value, other[key], where)
    elif isinstance(one, list | tuple):
        _need(len(one) == len(other), f"{where}: a prediction must be as long alone as among others")
        for value, its in zip(one, other, strict=True):
            _same(value, its, where)
    elif isinstance(one, float):
        _need(
            abs(one - other) <= 1e-4 * max(1, abs(other)),
            f"{where}: a prediction must not depend on other rows, but was {one} alone and {other} among others",
        )
    else:
        _need(one == other, f"{where}: a prediction must not depend on other rows, but was {one!r} and {other!r}")
