"""What a task declares: its docstring, scores, options and columns, and recipes that name it."""

import dataclasses

from longspan import recipes
from longspan.errors import UserError
from longspan.machine import imports
from longspan.results.scores import Scores
from longspan.testing.tasks.subject import Subject, need


def declares_itself(subject: Subject) -> None:
    """The class says what it learns, what it measures, its options with defaults and help, and the columns it reads."""
    task = subject.task()
    need(bool((type(task).__doc__ or "").strip()), f"{subject.name} needs a docstring that says what it is")
    scores = getattr(task, "scores", None)
    need(
        isinstance(scores, type) and issubclass(scores, Scores),
        f"{subject.name}.scores must be a subclass of longspan.results.scores.Scores, but is {scores!r}",
    )
    need(bool(task.scores.shown()), f"{subject.name}.scores must show at least one score")
    for kind in (task.training_options, task.evaluation_options, task.data_config):
        need(dataclasses.is_dataclass(kind), f"{kind.__name__} must be a dataclass")
        for field in dataclasses.fields(kind):
            given = (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
            need(given, f"{kind.__name__}.{field.name} must have a default, for recipes that do not say")
        kind()
    for kind in (task.training_options, task.evaluation_options):
        for field in dataclasses.fields(kind):
            need("help" in field.metadata, f"{kind.__name__}.{field.name} must be made with `option`, for its help")
    counts = task.counts()
    need(
        counts is None or counts in task.baselines().values(),
        f"{subject.name}.counts() must be one of its baselines, so that `compare` can fit it alone, but is {counts!r}",
    )
    found = list(task.columns(task.data_config()))
    need(any(not column.target for column in found), f"{subject.name} must read a column that is not a target")
    settings = {field.name for field in dataclasses.fields(task.data_config)}
    for column in found:
        need(
            column.setting in settings,
            f"column {column.name!r} names the setting {column.setting!r}, which {task.data_config.__name__} lacks",
        )


def refuses_unknown_options(subject: Subject) -> None:
    """An unknown key in any table of a recipe is an error."""
    for table in ("data", "model", "training"):
        try:
            subject.recipe([f"{table}.nonsense=1"])
        except UserError:
            continue
        raise AssertionError(f"{table}.nonsense must be refused as an unknown key")


def recipe_survives_its_file(subject: Subject) -> None:
    """A recipe reads back from its file as it was."""
    recipe = subject.recipe()
    again = subject.folder / "again.toml"
    again.write_text(recipe.to_toml(), encoding="utf-8")
    with imports.allow(*subject.consent):
        loaded = recipes.load(str(again))
    need(loaded.to_toml() == recipe.to_toml(), "a recipe must read back from its file as it was")
