"""Recipes: complete runs as TOML files that hold only what differs from the defaults.

A recipe has the tables `[data]` (fields of `longspan.data.config.DataConfig`), `[model]` (fields of
`longspan.LongspanConfig`) and `[training]` (fields of `transformers.TrainingArguments`, and the few of our own in
`OWN_TRAINING_KEYS`), besides the top-level keys `task` and `description`. Every key and type is checked before anything
is read or trained. What a task needs besides is in its module: `TRAINING`, keys of its own with their defaults,
`configure`, which makes a configuration of `[model]`, and `DATA`, what to say when no data are named.
"""

import dataclasses
import functools
import inspect
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

from longspan import tasks
from longspan.data.config import DataConfig
from longspan.errors import UserError, suggestion
from longspan.imports import named_in
from longspan.recipes.values import Raw, coerce, dumps, expectation, matches, split_override

#: What a run does where its recipe says nothing, whatever its task; these differ from the defaults of
#: `TrainingArguments`.
TRAINING_DEFAULTS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "num_train_epochs": 3,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 32,
    "seed": 0,
    "word_vectors": "",
}

#: Keys of `[training]` that `TrainingArguments` does not know: a file of word vectors in GloVe's text format; for
#: classification, padded tokens in one batch at most (0: no limit); for language modelling, tokens that a row reads in
#: one step, and whether it goes on from the states of the step before.
OWN_TRAINING_KEYS: dict[str, type] = {
    "word_vectors": str,
    "batch_tokens": int,
    "segment_length": int,
    "carry_states": bool,
}

_TABLES = ("data", "model", "training")
_FROM_DATA = ("vocab_size", "pad_token_id", "num_labels", "id2label", "label2id")
_SET_ELSEWHERE = {
    "output_dir": "name the run folder with --run",
    "resume_from_checkpoint": "continue a run with --resume",
    "hub_token": "log in with `hf auth login`, so that the token is not written into the run folder",
}


@dataclass(frozen=True)
class Recipe:
    """One complete run.

    Attributes:
        name: Name of the recipe, for the run folder and messages.
        data: Where examples come from and how they become tokens.
        model: Arguments of `LongspanConfig`, without those that the data decide.
        training: Arguments of `transformers.TrainingArguments` and our own keys, defaults filled in.
        task: What is learned; one of `longspan.tasks.names()`.
        description: One or two sentences for people.
    """

    name: str
    data: DataConfig = field(default_factory=DataConfig)
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=lambda: dict(TRAINING_DEFAULTS))
    task: str = "classification"
    description: str = ""

    def to_toml(self) -> str:
        """Return the resolved recipe as TOML: every field of `[data]` and `[training]` is spelled out, so that a
        later change of defaults does not change what this run was. `load` reads it back to an equal recipe, but for
        the name, which is the file's."""
        top = {"task": self.task, "description": self.description}
        return dumps(top, {"data": dataclasses.asdict(self.data), "model": self.model, "training": self.training})

    def require_data(self) -> None:
        """Raise `UserError` if the recipe does not say where its examples come from."""
        if not self.data.path and not self.data.train:
            raise UserError(f"recipe {self.name!r} needs {tasks.load(self.task).DATA}, but neither is set.")


def names() -> list[str]:
    """Return the names of the recipes that come with the package, sorted."""
    files = resources.files("longspan.recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load(name_or_path: str, overrides: typing.Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply `overrides`.

    Args:
        name_or_path: One of `names()`, or the path of a TOML file.
        overrides: Strings such as `training.learning_rate=1e-3` or `model.mixer_options.additive.bias=false`. The
            value is read as TOML, or else taken as it is where the key holds a string, and lists may be written
            without quotes (`model.mixers=softmax,additive`), which a shell would eat.

    Raises:
        UserError: No such recipe, a file that is not TOML, an unknown key, a value of the wrong type, a model that
            cannot be built, or one with code that may not be imported (see `longspan.imports`).
    """
    name, text = _read(name_or_path)
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"recipe {name_or_path!r} is not valid TOML: {error}.") from None
    for key, value in tables.items():
        if key not in (*_TABLES, "task", "description"):
            raise UserError(
                f"unknown key {key!r} in recipe {name!r}: {suggestion(key, (*_TABLES, 'task', 'description'))}"
            )
        wanted = dict if key in _TABLES else str
        if not isinstance(value, wanted):
            raise UserError(f"{key} in recipe {name!r} expects {expectation(wanted)}, not {value!r}.")
    for override in overrides:
        _override(tables, override)
    task = tables.get("task", "classification")
    module = tasks.load(task)
    for table in _TABLES:
        tables[table] = _checked(table, tables.get(table, {}))
    for key in tables["training"]:
        if key in OWN_TRAINING_KEYS and key not in TRAINING_DEFAULTS | module.TRAINING:
            raise UserError(f"training.{key} is not for task {task!r}: take it out of recipe {name!r}.")
    if tables["model"]:
        with named_in(name_or_path):
            _check_model(module, tables["model"])
    return Recipe(
        name=name,
        data=DataConfig(**tables["data"]),
        model=tables["model"],
        training={**TRAINING_DEFAULTS, **module.TRAINING, **tables["training"]},
        task=task,
        description=tables.get("description", ""),
    )


def _read(name_or_path: str) -> tuple[str, str]:
    if name_or_path in names():
        file = resources.files("longspan.recipes") / f"{name_or_path}.toml"
        return name_or_path, file.read_text(encoding="utf-8")
    path = Path(name_or_path)
    if not path.is_file():
        if path.suffix == ".toml":
            raise UserError(f"there is no recipe file {name_or_path!r}: {suggestion(path.stem, names())}")
        hint = suggestion(name_or_path, names())
        raise UserError(f"there is no recipe {name_or_path!r} (the path of a TOML file works too): {hint}")
    try:
        return path.stem, path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"recipe {name_or_path!r} is not UTF-8 text: expected a TOML file.") from None


def _override(tables: dict[str, Any], override: str) -> None:
    """Write one `table.key[.key...]=value` into `tables`."""
    parts, raw = split_override(override)
    if parts[0] not in _TABLES or len(parts) < 2:
        homes = [f"{table}.{parts[-1]}" for table in _TABLES if parts[-1] in _known(table)]
        help_with = f"did you mean {homes[0]!r}?" if homes else "TABLE is data, model or training."
        raise UserError(f"override {override!r} expected TABLE.KEY=VALUE: {help_with}")
    _check_key(parts[0], parts[1])
    hint = _known(parts[0])[parts[1]] if len(parts) == 2 else Any
    node = tables
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise UserError(f"override {override!r} goes below {part!r}, which holds {node!r} and has no keys.")
    node[parts[-1]] = coerce(Raw(raw), hint)


def _checked(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in values.items():
        _check_key(table, key)
        hint = _known(table)[key]
        if not matches(value, hint):
            raise UserError(f"{table}.{key} expects {expectation(hint, value)}, not {value!r}.")
    return dict(values)


def _check_key(table: str, key: str) -> None:
    if key in _known(table):
        return
    if table == "model" and key in _FROM_DATA:
        raise UserError(f"model.{key} is set from the data: take it out of the recipe.")
    if table == "training" and key in _SET_ELSEWHERE:
        raise UserError(f"training.{key} cannot be set in a recipe: {_SET_ELSEWHERE[key]}.")
    homes = [other for other in _TABLES if other != table and key in _known(other)]
    hint = f"it belongs in [{homes[0]}]." if homes else suggestion(key, _known(table))
    raise UserError(f"unknown key '{table}.{key}': {hint}")


@functools.cache
def _known(table: str) -> dict[str, Any]:
    """The keys a table may hold, each with its type. Imports transformers only for the tables that need it."""
    if table == "data":
        return typing.get_type_hints(DataConfig)
    if table == "model":
        return _model_keys()
    from transformers import TrainingArguments

    hints = typing.get_type_hints(TrainingArguments)
    fields = {entry.name: hints[entry.name] for entry in dataclasses.fields(TrainingArguments) if entry.init}
    return {key: hint for key, hint in fields.items() if key not in _SET_ELSEWHERE} | OWN_TRAINING_KEYS


def _model_keys() -> dict[str, Any]:
    from longspan import LongspanConfig

    # Only the fields it declares itself: those of its Hugging Face base class are not for recipes.
    own = inspect.get_annotations(LongspanConfig, eval_str=True)
    return {
        name: hint
        for name, hint in own.items()
        if name not in _FROM_DATA and typing.get_origin(hint) is not typing.ClassVar
    }


def _check_model(task: ModuleType, values: dict[str, Any]) -> None:
    """Build the model without memory or values, so that every mistake in `[model]` shows before any data are read."""
    import torch

    with torch.device("meta"):
        task.MODEL(task.configure(values))
