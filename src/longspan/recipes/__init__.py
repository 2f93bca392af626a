"""Recipes: complete runs as TOML files that hold only what differs from the defaults.

A recipe has the tables `[data]` (fields of the task's `data_config`), `[model]` (fields of `longspan.LongspanConfig`)
and `[training]` (fields of `transformers.TrainingArguments`, and those of the task's `training_options`), besides the
top-level keys `task` and `description`. Every key and type is checked before anything is read or trained.
"""

import dataclasses
import functools
import inspect
import tomllib
import typing
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from longspan import imports, tasks
from longspan.data.columns import source_names
from longspan.errors import UserError, suggestion
from longspan.recipes.values import Raw, coerce, expectation, matches, split_override
from longspan.tasks import options
from longspan.tasks.base import Task
from longspan.tasks.recipe import Recipe

#: What a run does where its recipe says nothing, whatever its task; these differ from the defaults of
#: `TrainingArguments`.
TRAINING_DEFAULTS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "num_train_epochs": 3,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 32,
    "seed": 0,
}

DEFAULT_TASK = "document_classification"

_TABLES = ("data", "model", "training")
_FROM_DATA = ("vocab_size", "pad_token_id", "num_labels", "id2label", "label2id")
_SET_ELSEWHERE = {
    "output_dir": "name the run folder with --run",
    "resume_from_checkpoint": "continue a run with --resume",
    "hub_token": "log in with `hf auth login`, so that the token is not written into the run folder",
}


def names() -> list[str]:
    """Return the names of the recipes that come with the package, sorted."""
    files = resources.files("longspan.recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load(name_or_path: str, overrides: typing.Sequence[str] = (), *, allow_imports: Iterable[str] = ()) -> Recipe:
    """Read a recipe and apply `overrides`.

    Args:
        name_or_path: One of `names()`, the path of a TOML file, or a run folder, for the recipe of that run.
        overrides: Strings such as `training.learning_rate=1e-3` or `model.mixer_options.additive.bias=false`. The
            value is read as TOML, or taken literally where the key holds a string, and lists may be written without
            quotes (`model.mixers=softmax,additive`), which a shell would remove.
        allow_imports: Packages or modules that dotted paths in the recipe may import.

    Raises:
        UserError: No such recipe, a file that is not TOML, an unknown key, a value of the wrong type, or a model that
            cannot be built.
    """
    name, text = _read(name_or_path)
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"recipe {name_or_path!r} is not valid TOML: {error}.") from None
    for key, value in tables.items():
        if key not in (*_TABLES, "task", "description"):
            raise UserError(
                f"unknown key {key!r} in recipe {name!r}; {suggestion(key, (*_TABLES, 'task', 'description'))}"
            )
        wanted = dict if key in _TABLES else str
        if not isinstance(value, wanted):
            raise UserError(f"{key} in recipe {name!r} expected {expectation(wanted)}, got {value!r}; correct it.")
    with imports.allow(*allow_imports), imports.named_in(name_or_path):
        task = tasks.load(tables.get("task", DEFAULT_TASK))
        for override in overrides:
            _override(tables, override, task)
        for table in _TABLES:
            tables[table] = _checked(table, tables.get(table, {}), task)
        data = task.data_config(**tables["data"])
        # Two columns of one name are a mistake whatever the data are.
        source_names(task.columns(data), data)
        if tables["model"]:
            task.check(tables["model"])
    own = {key: value for key, value in tables["training"].items() if key in options.names(task.training_options)}
    return Recipe(
        name=name,
        task=task,
        data=data,
        model=tables["model"],
        training=TRAINING_DEFAULTS | {key: value for key, value in tables["training"].items() if key not in own},
        options=task.training_options(**own),
        description=tables.get("description", ""),
    )


def _read(name_or_path: str) -> tuple[str, str]:
    if name_or_path in names():
        file = resources.files("longspan.recipes") / f"{name_or_path}.toml"
        return name_or_path, file.read_text(encoding="utf-8")
    path = Path(name_or_path)
    if (path / "recipe.toml").is_file():
        return path.resolve().name, _text(path / "recipe.toml")
    if not path.is_file():
        if path.suffix == ".toml":
            raise UserError(f"there is no recipe file {name_or_path!r}; {suggestion(path.stem, names())}")
        hint = suggestion(name_or_path, names())
        raise UserError(f"there is no recipe {name_or_path!r} (the path of a TOML file works too); {hint}")
    return path.stem, _text(path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"recipe {str(path)!r} expected UTF-8, got another encoding; save it as UTF-8.") from None


def _override(tables: dict[str, Any], override: str, task: Task) -> None:
    """Write one `table.key[.key...]=value` into `tables`."""
    parts, raw = split_override(override)
    if parts[0] not in _TABLES or len(parts) < 2:
        homes = [f"{table}.{parts[-1]}" for table in _TABLES if parts[-1] in _known(table, task)]
        help_with = f"did you mean {homes[0]!r}?" if homes else "TABLE is data, model or training."
        raise UserError(f"override {override!r} expected TABLE.KEY=VALUE; {help_with}")
    _check_key(parts[0], parts[1], task)
    hint = _known(parts[0], task)[parts[1]] if len(parts) == 2 else Any
    node = tables
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise UserError(
                f"override {override!r} expected keys below {part!r}, got {node!r}, which has none; shorten it."
            )
    node[parts[-1]] = coerce(Raw(raw), hint)


def _checked(table: str, values: Mapping[str, Any], task: Task) -> dict[str, Any]:
    for key, value in values.items():
        _check_key(table, key, task)
        hint = _known(table, task)[key]
        if not matches(value, hint):
            raise UserError(f"{table}.{key} expected {expectation(hint, value)}, got {value!r}; correct it.")
    return dict(values)


def _check_key(table: str, key: str, task: Task) -> None:
    if key in _known(table, task):
        return
    if table == "model" and key in _FROM_DATA:
        raise UserError(f"model.{key} is set from the data; remove it from the recipe.")
    if table == "training" and key in _SET_ELSEWHERE:
        raise UserError(f"training.{key} cannot be set in a recipe; {_SET_ELSEWHERE[key]}.")
    others = [name for name in tasks.names() if name != task.name and key in _known(table, tasks.load(name))]
    if others:
        raise UserError(
            f"{table}.{key} is not for the task {task.name!r} but for {others[0]!r}; remove it from the recipe."
        )
    homes = [other for other in _TABLES if other != table and key in _known(other, task)]
    hint = f"it belongs in [{homes[0]}]." if homes else suggestion(key, _known(table, task))
    raise UserError(f"unknown key '{table}.{key}'; {hint}")


def _known(table: str, task: Task) -> dict[str, Any]:
    """Return the keys a table may hold, each with its type."""
    if table == "data":
        return typing.get_type_hints(task.data_config)
    if table == "model":
        return _model_keys()
    return _training_keys() | typing.get_type_hints(task.training_options)


@functools.cache
def _training_keys() -> dict[str, Any]:
    from transformers import TrainingArguments

    hints = typing.get_type_hints(TrainingArguments)
    fields = {entry.name: hints[entry.name] for entry in dataclasses.fields(TrainingArguments) if entry.init}
    return {key: hint for key, hint in fields.items() if key not in _SET_ELSEWHERE}


@functools.cache
def _model_keys() -> dict[str, Any]:
    from longspan import LongspanConfig

    # Only the fields it declares itself: those of its Hugging Face base class are not for recipes.
    own = inspect.get_annotations(LongspanConfig, eval_str=True)
    return {
        name: hint
        for name, hint in own.items()
        if name not in _FROM_DATA and typing.get_origin(hint) is not typing.ClassVar
    }
