"""Subject of the checks: a task, some data, and one run trained for all checks."""

import functools
import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from longspan import recipes, tasks
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.results import TrainingResult
from longspan.tasks.base.task import Recipe, Run, Task
from longspan.verbs.runs import load_run
from longspan.verbs.train import train


class Subject:
    """A task with data to check it on.

    Args:
        name: Its name, or the dotted path of its class.
        data: Some hundred examples in any form that `data.path` takes.
        folder: Where recipes and runs go.
        overrides: Further settings of the recipe.

    Attributes:
        consent: Code that may be imported: checking a task is consent to running its code.
    """

    def __init__(self, name: str, data: str, folder: Path, overrides: Sequence[str]) -> None:
        self.consent = (name.rpartition(".")[0],) if "." in name else ()
        self.name, self.folder, self.data = name, folder, data
        self.overrides = [f"data.path={data}", "training.num_train_epochs=2", "training.seed=0", *overrides]
        self.file = folder / "recipe.toml"
        self.file.write_text(f"task = {json.dumps(name)}\n", encoding="utf-8")

    def task(self) -> Task:
        """Return the task."""
        return tasks.load(self.name, self.consent)

    def recipe(self, more: Sequence[str] = ()) -> Recipe:
        """Return its recipe for these data, with more overrides."""
        return recipes.load(str(self.file), [*self.overrides, *more], allow_imports=self.consent)

    @functools.cached_property
    def trained(self) -> TrainingResult:
        """The result of the run that all checks share, and which none may change."""
        return train(self.recipe(), run=self.folder / "run", progress=False, allow_imports=self.consent)

    def run(self) -> Run:
        """Return that run, loaded again."""
        return load_run(self.trained.folder, allow_imports=self.consent)

    def rows(self) -> list[Row]:
        """Return some rows as predictions read them."""
        run = self._reader
        return list(islice(run.task.inputs_of(run, [self.data], run.recipe.data, None), 6))

    @functools.cached_property
    def _reader(self) -> Run:
        """That run, loaded once for all rows that are read."""
        return self.run()


def need(holds: bool, promise: str) -> None:
    """Raise AssertionError with a promise, a sentence without its full stop, unless it holds."""
    if not holds:
        raise AssertionError(f"{promise}.")


def refused(promise: str, call: Callable[[], Any]) -> None:
    """Raise AssertionError with a promise unless a call raises UserError."""
    try:
        call()
    except UserError:
        return
    raise AssertionError(f"{promise}.")


def same(one: Any, other: Any, where: str) -> None:
    """Compare predictions; numbers may differ by rounding, as sums are in another order."""
    if isinstance(one, dict):
        need(one.keys() == other.keys(), f"{where}: a prediction must have the same fields alone and among others")
        for key, value in one.items():
            same(value, other[key], where)
    elif isinstance(one, list | tuple):
        need(len(one) == len(other), f"{where}: a prediction must be as long alone as among others")
        for value, its in zip(one, other, strict=True):
            same(value, its, where)
    elif isinstance(one, float):
        need(
            abs(one - other) <= 1e-4 * max(1, abs(other)),
            f"{where}: a prediction must not depend on other rows, but was {one} alone and {other} among others",
        )
    else:
        need(one == other, f"{where}: a prediction must not depend on other rows, but was {one!r} and {other!r}")
