"""Recipes: complete runs as TOML files that hold only what differs from the defaults.

A recipe has the top-level keys `task` and `description` and three tables. `[data]` has fields of the task's
`data_config`, `[model]` fields of `longspan.LongspanConfig`. `[training]` has fields of
`transformers.TrainingArguments` and of the task's `training_options`. Every key and type is checked before anything is
read or trained.
"""

import os
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from longspan import mixers, options, tasks
from longspan.data.columns.values import described
from longspan.data.sources.formats.schema import source_names
from longspan.errors import UserError
from longspan.machine import imports
from longspan.recipes import keys, starting
from longspan.recipes.keys import TABLES, TRAINING_DEFAULTS, table_keys
from longspan.recipes.recipe_files import DEFAULT_TASK, names, read_recipe, read_toml
from longspan.tasks.base.task import Recipe, Task

__all__ = ["DEFAULT_TASK", "TRAINING_DEFAULTS", "load", "names", "of_run"]

_TOP_LEVEL = (*TABLES, "task", "description")


def load(
    name_or_path: Path | str,
    overrides: typing.Sequence[str] = (),
    *,
    settings: Mapping[str, Any] = MappingProxyType({}),
    allow_imports: Iterable[str] = (),
) -> Recipe:
    """Read a recipe and apply `overrides`, then `settings`.

    With `model.start_from`, unset keys of the model's shape and the tokens come from the run named there. If
    `model.start_from` is an override, so do those that the recipe's file sets. A given number of epochs or steps
    switches off the `training.min_steps` of the file.

    Args:
        name_or_path: One of `names()`, the path of a TOML file, or a run folder, for the recipe of that run.
        overrides: Strings such as `training.learning_rate=1e-3` or `model.mixer_options.additive.bias=false`. The
            value is read as TOML, or taken literally where the key holds a string, and lists may be written without
            quotes (`model.mixers=softmax,additive`), which a shell would remove.
        settings: Values of keys by their names, such as `{"learning_rate": 1e-3}`; by whole keys, or dicts by table
            (`{"model": {"dim": 128}}`), where a name is in several tables.
        allow_imports: Packages or modules that dotted paths in the recipe may import.

    Raises:
        UserError: Unknown recipe or key, a file that is not TOML, a value of the wrong type, a model that cannot be
            built, or no run to start from. Data in place of the name or of overrides.
    """
    if not isinstance(name_or_path, Path | str):
        wrong, wanted = name_or_path, "the name or path of a recipe"
    elif not isinstance(overrides, list | tuple) or not all(isinstance(override, str) for override in overrides):
        wrong, wanted = overrides, "overrides as a list of texts such as ['model.dim=128']"
    else:
        with imports.allow(*allow_imports):
            return _load(str(name_or_path), *read_recipe(str(name_or_path)), overrides, settings, starting.complete)
    raise UserError(f"expected {wanted}, got {described(wrong)}; give data by name, as data=frame.")


def of_run(folder: Path, overrides: typing.Sequence[str] = ()) -> Recipe:
    """Read the resolved recipe in a run folder, which bears the folder's name, and apply `overrides`.

    Raises:
        UserError: The file is damaged, or from `load`.
    """
    path = folder / "recipe.toml"
    return _load(str(path), folder.name, read_toml(path), overrides, {}, starting.complete)


def check_one_source(overrides: typing.Sequence[str], settings: Mapping[str, Any]) -> None:
    """Raise UserError if files of data are named next to data that are given by themselves."""
    for name in ("path", "train", "validation", "test"):
        key = f"data.{name}"
        if _is_set(key, [*overrides, *(f"data.{own}={value}" for own, value in settings.items() if own == name)]):
            raise UserError(f"expected data=... or {key}=..., got both; leave one of them out.")


def _load(
    source: str,
    name: str,
    text: str,
    overrides: typing.Sequence[str],
    settings: Mapping[str, Any],
    complete: Callable[[starting.Tables, Task, Any, dict[str, Any]], None],
) -> Recipe:
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"recipe {source!r} is not valid TOML: {error}.") from None
    for key, value in tables.items():
        if key in _TOP_LEVEL:
            options.check_type(f"{key} in recipe {name!r}", value, dict if key in TABLES else str)
    with imports.named_in(source):
        task = tasks.load(tables.get("task", DEFAULT_TASK))
        for key in tables:
            if key not in _TOP_LEVEL:
                hint = keys.hint(key, task, source, also=_TOP_LEVEL)
                raise UserError(f"unknown key {key!r} in recipe {name!r}; {hint}")
        placed = keys.placed(settings, task, source)
        given = [*overrides, *(f"{key}={value}" for key, value in placed.items())]
        shape: dict[str, Any] = {}
        if not tables.get("model", {}).get("start_from") and _is_set("model.start_from", given):
            shape = _checked("model", starting.give_way(tables, task), task, source)
        if _is_set("model.encoder", given):
            starting.drop_new_tokens(tables)
        if any(_is_set(f"training.{key}", given) for key in ("num_train_epochs", "max_steps")):
            # It would raise the number that the user sets.
            tables.get("training", {}).pop("min_steps", None)
        for override in overrides:
            parts, text = _split(override, task, source)
            _set(tables, parts, options.coerce(text, _hint(parts, task, source)))
        for key, value in placed.items():
            _hint(key.split("."), task, source)
            _set(tables, key.split("."), _plain(value))
        for table in TABLES:
            tables[table] = _checked(table, tables.get(table, {}), task, source)
        starting.fill_in_encoder_tokens(tables)
        # Of a run that starts from another one, the recipe says everything; else it could name itself.
        complete(tables, task, lambda folder: _load(folder, *read_recipe(folder), (), {}, lambda *_: None), shape)
        start_from = tables["model"].pop("start_from", "")
        data = task.data_config(**tables["data"])
        # Two columns of one name are a mistake whatever the data are.
        source_names(task.columns(data), data)
        if tables["model"]:
            task.without_values(tables["model"])
    own = {key: value for key, value in tables["training"].items() if key in options.names(task.training_options)}
    return Recipe(
        name=name,
        task=task,
        data=data,
        model=tables["model"],
        training=TRAINING_DEFAULTS | {key: value for key, value in tables["training"].items() if key not in own},
        options=task.training_options(**own),
        description=tables.get("description", ""),
        start_from=start_from,
    )


def _is_set(key: str, overrides: typing.Sequence[str]) -> bool:
    """Say whether one of the overrides sets a key to something that is not empty."""
    parts = (override.partition("=") for override in overrides)
    return any(name.strip() == key and value.strip().strip("\"'") for name, _, value in parts)


def split_override(override: str) -> tuple[list[str], str]:
    """Split `a.b.c=value` into its dotted key and the text of its value.

    Raises:
        UserError: There is no `=`, or an empty key.
    """
    key, equals, value = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise UserError(f"expected an override such as training.seed=1, got {override!r}; correct it.")
    return parts, value.strip()


def _split(override: str, task: Task, recipe: str) -> tuple[list[str], str]:
    """Return the parts of the key in `table.key[.key...]=value`, and the text of the value."""
    if "=" not in override and Path(override).exists():
        raise UserError(
            f"expected an override such as training.seed=1, got the path {override!r}; did you mean "
            f"'data.path={override}'?"
        )
    parts, text = split_override(override)
    if parts[0] in TABLES and len(parts) > 1:
        return parts, text
    place = keys.hint(parts[-1], task, recipe)
    if parts == ["task"]:
        place = "a recipe has its task, and `longspan recipes` lists the recipes of each."
    elif len(parts) > 1 and parts[0] in (*mixers.names(), *mixers.aliases()):
        place = f"did you mean 'model.mixer_options.{'.'.join(parts)}'?"
    raise UserError(f"override {override!r} expected TABLE.KEY=VALUE; {place}")


def _hint(parts: list[str], task: Task, recipe: str) -> Any:
    """Type of the value under `table.key[.key...]`. Raises UserError if there is no such key."""
    hints = table_keys(parts[0], task)
    if parts[1] not in hints:
        raise keys.unknown(parts[1], task, recipe, parts[0])
    return hints[parts[1]] if len(parts) == 2 else Any


def _set(tables: dict[str, Any], parts: list[str], value: Any) -> None:
    """Write a value under `table.key[.key...]` into `tables`."""
    node = tables
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise UserError(
                f"{'.'.join(parts)!r} expected keys below {part!r}, got {node!r}, which has none; shorten it."
            )
    node[parts[-1]] = value


def _plain(value: Any) -> Any:
    """A value from Python as TOML would hold it: a path as text, a tuple as a list, a scalar of NumPy as its own."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(own) for key, own in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def _checked(table: str, values: Mapping[str, Any], task: Task, recipe: str) -> dict[str, Any]:
    for key, value in values.items():
        options.check_type(f"{table}.{key}", value, _hint([table, key], task, recipe))
    return dict(values)
