"""The keys that a recipe's tables may hold: their types, defaults and meanings, all from where they are declared.

`[data]` is what the task's `data_config` declares, and `[training]` what the task's `training_options` and
`transformers.TrainingArguments` do. `[model]` has the fields of `ModelOptions`, `LongspanConfig` (the backbone) and the
settings of the task's embeddings and head. Meanings come from the "Attributes:" or "Args:" of their docstrings, or from
the field's own `help`.
"""

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from longspan import tasks
from longspan.errors import UserError, listing, nearest
from longspan.errors.hints import expectation
from longspan.models.settings import PartSettings
from longspan.tasks.base.options import ModelOptions
from longspan.tasks.base.task import Task

TABLES = ("data", "model", "training")

_BACKBONE_FROM_DATA = ("vocab_size", "pad_token_id", "num_labels", "id2label", "label2id")
"""Keys of `LongspanConfig` that the data decide."""

SET_ELSEWHERE = {
    "output_dir": "name the run folder with --run",
    "resume_from_checkpoint": "continue a run with --resume",
    "hub_strategy": "leave it out, as a run is pushed once, when it is finished",
    "hub_token": "log in with `hf auth login`, so that the token is not written into the run folder",
}
"""Keys of `TrainingArguments` that recipes may not set, and what to do instead."""

#: What a run does where its recipe says nothing, whatever its task; these differ from the defaults of
#: `TrainingArguments`.
TRAINING_DEFAULTS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "num_train_epochs": 3,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 32,
    "seed": 0,
}

#: The same, for keys that are left out of the resolved recipe.
UNWRITTEN_DEFAULTS: dict[str, Any] = {
    "eval_strategy": "epoch",
    "load_best_model_at_end": True,
    "logging_strategy": "steps",
    "logging_steps": 0.02,
    # The best and the newest: with 1, the newest is deleted unless it is the best, and the run cannot be resumed.
    "save_total_limit": 2,
    "optim": "adamw_torch_fused",
    "report_to": "none",
}

#: Usual words of other libraries by the key that means the same. Suggestions only: never accepted as keys.
WORDS: dict[str, str] = {
    "depth": "layer layers n_layer n_layers num_layers num_hidden_layers",
    "dim": "d_model hidden hidden_dim hidden_size n_embd width",
    "early_stopping_patience": "early_stopping patience",
    "encoder": "backbone base_model model_name_or_path",
    "feed_forward_dim": "d_ff dim_feedforward ffn_dim intermediate_size",
    "gradient_accumulation_steps": "accumulation_steps grad_accum",
    "heads": "attention_heads num_attention_heads",
    "label_column": "label labels target",
    "learning_rate": "lr",
    "lr_scheduler_type": "schedule scheduler",
    "max_grad_norm": "clip grad_clip gradient_clipping",
    "max_length": "max_seq_len max_tokens seq_len seq_length sequence_length truncate",
    "max_minutes": "budget minutes time time_budget",
    "max_steps": "iterations max_iters n_steps num_steps steps",
    "mixers": "mechanism mixer model",
    "num_train_epochs": "epoch epochs max_epochs",
    "optim": "optimizer",
    "path": "data dataset file files folder",
    "per_device_train_batch_size": "batch batch_size bs train_batch_size",
    "seed": "random_seed random_state",
    "segment_length": "block_size bptt context_length",
    "test_fraction": "test_size test_split",
    "text_column": "text title title_column",
    "tokens": "tokeniser tokenizer",
    "validation": "dev val valid",
    "validation_fraction": "val_size validation_split",
    "vocab_size": "vocab vocabulary",
    "warmup_steps": "warmup",
    "weight_decay": "wd",
}
_MEANT = {word: key for key, words in WORDS.items() for word in words.split()}

#: The fields of `TrainingArguments` that people set most; `explained` leaves the others to transformers.
USUAL = (
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "max_grad_norm",
    "label_smoothing_factor",
    "optim",
    "eval_strategy",
    "load_best_model_at_end",
    "bf16",
    "seed",
    "report_to",
)


@dataclass(frozen=True)
class Key:
    """One key of a recipe.

    Attributes:
        table: "data", "model" or "training".
        part: In "model", which part of it has the key, such as "backbone" or "head classification"; else "".
        name: Its name in that table.
        type: What it holds, in words.
        default: What holds where a recipe says nothing.
        meaning: What it means.
    """

    table: str
    part: str
    name: str
    type: str
    default: Any
    meaning: str


def known(table: str, task: Task) -> dict[str, Any]:
    """Return the keys a table may hold, each with its type."""
    if table == "data":
        # A class may fix a key of its base, which is then none.
        hints = typing.get_type_hints(task.data_config)
        return {field.name: hints[field.name] for field in dataclasses.fields(task.data_config)}
    if table == "model":
        return {name: hint for part in parts(task).values() for name, hint in part.items()}
    return typing.get_type_hints(task.training_options) | _training_keys()


def parts(task: Task) -> dict[str, dict[str, Any]]:
    """Return the keys of `[model]` with their types, by the part of the model that has them."""
    found = {"model": typing.get_type_hints(ModelOptions), "backbone": _backbone()}
    found |= {_title(kind): kind.fields(from_data=False) for kind in _kinds(task)}
    return {part: {name: hint for name, hint in own.items() if name not in task.unused} for part, own in found.items()}


def set_by_data(key: str, task: Task) -> bool:
    """Say whether a key of `[model]` is one that the data, or what is read besides, decide."""
    return key in _BACKBONE_FROM_DATA or any(key in kind.fields(from_data=True) for kind in _kinds(task))


def elsewhere(table: str, key: str, task: Task) -> tuple[str, list[str]] | None:
    """Return the part that has a key which a task lacks, "" outside of "model", and the tasks where it is one."""
    others = [tasks.load(name) for name in tasks.names() if name != task.name]
    having = [other for other in others if key in known(table, other)]
    if not having:
        return None
    part = next((part for part, names in parts(having[0]).items() if key in names), "") if table == "model" else ""
    return part, [other.name for other in having]


def explained(task: Task) -> list[Key]:
    """Return the keys of a task's recipes, of `TrainingArguments` only the `USUAL` ones."""
    return [
        *(_key("data", name, task) for name in known("data", task)),
        *(_key("model", name, task) for name in known("model", task)),
        *(_key("training", name, task) for name in (*typing.get_type_hints(task.training_options), *USUAL)),
    ]


def everywhere(key: str) -> list[tuple[Key, list[str]]]:
    """Return what a key, such as "data.path", is in recipes, each time with the names of the tasks where it is that.

    Raises:
        UserError: No task that comes with longspan has it.
    """
    table, _, name = key.partition(".")
    found: list[tuple[Key, list[str]]] = []
    every = {task: tasks.load(task) for task in tasks.names()}
    for task, loaded in every.items():
        if name not in known(table, loaded):
            continue
        entry = _key(table, name, loaded)
        if alike := [names for other, names in found if other == entry]:
            alike[0].append(task)
        else:
            found.append((entry, [task]))
    if not found:
        names = {f"{table}.{other}" for loaded in every.values() for other in known(table, loaded)}
        hints = (meant(name, loaded, table) for loaded in every.values())
        near = next((hint for hint in hints if hint), None)
        told = f"did you mean {near!r}?" if near else listing(key, names, "`longspan show RECIPE`")
        raise UserError(f"no recipe has the key {key!r}; {told}")
    return found


def homes(name: str) -> list[str]:
    """Return the keys with this name in any table of any task that comes with longspan."""
    every = [tasks.load(task) for task in tasks.names()]
    return [f"{table}.{name}" for table in TABLES if any(name in known(table, task) for task in every)]


def others(task: Task) -> list[str]:
    """Return the further keys of `[training]`, which `explained` leaves to transformers."""
    return sorted(_training_keys().keys() - {*USUAL, *typing.get_type_hints(task.training_options)})


def meant(key: str, task: Task, table: str = "", also: Iterable[str] = ()) -> str | None:
    """Return the key that `key` means or resembles, as "table.name", or None.

    Args:
        key: What was given, without a table.
        task: Of the recipe.
        table: Where it was looked for; where a name is in several tables, this one counts.
        also: What else may have been meant.
    """
    tables = sorted(TABLES, key=lambda other: other == table)
    names = {name: f"{other}.{name}" for other in tables for name in known(other, task)}
    near = nearest(key, [*names, *also], _MEANT)
    return None if near is None else names.get(near, near)


def hint(key: str, task: Task, recipe: str, table: str = "", also: Iterable[str] = ()) -> str:
    """Return what to do about a key that there is not, where `recipe` is what to show to see all keys; see `meant`."""
    if homes := [other for other in TABLES if table and key in known(other, task)]:
        return f"it belongs in [{homes[0]}]."
    if found := meant(key, task, table, also):
        return f"did you mean {found!r}?"
    every = [f"{other}.{name}" for other in TABLES for name in known(other, task)]
    return listing(key, every, f"`longspan show {recipe}`")


def placed(settings: Mapping[str, Any], task: Task, recipe: str) -> dict[str, Any]:
    """Return settings by their whole keys, such as "model.dim" for "dim".

    Args:
        settings: Values by the names of keys, whole or without their table, or dicts of these by table.
        task: Of the recipe.
        recipe: Its name, for messages.

    Raises:
        UserError: There is no such key, or it is one of two tables.
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name in TABLES:
            if not isinstance(value, Mapping):
                raise UserError(f"expected {name} to be a dict of its keys, got {value!r}; write {name}={{...}}.")
            found |= {f"{name}.{key}": own for key, own in value.items()}
            continue
        if "." in name:
            found[name] = value
            continue
        having = [table for table in TABLES if name in known(table, task)]
        if len(having) > 1:
            both = " and ".join(f"{table}.{name}" for table in having)
            raise UserError(
                f"expected the name of one key, got {name!r}, which is {both}; write {having[0]}={{{name!r}: ...}}."
            )
        if not having and set_by_data(name, task):
            raise UserError(f"model.{name} is set from the data; leave it out.")
        if not having and (other := elsewhere("model", name, task)):
            raise UserError(
                f"{name} is not for the task {task.name!r} but for {', '.join(map(repr, other[1]))}; leave it out."
            )
        if not having:
            raise UserError(f"there is no setting {name!r}; {hint(name, task, recipe)}")
        found[f"{having[0]}.{name}"] = value
    return found


def _key(table: str, name: str, task: Task) -> Key:
    kind, part = _declared_by(table, name, task)
    field = next(field for field in dataclasses.fields(kind) if field.name == name)
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if table == "training":
        default = (TRAINING_DEFAULTS | UNWRITTEN_DEFAULTS).get(name, default)
    elif table == "model" and kind is not ModelOptions and default is not None:
        # A task may have others. None is described: it means that other keys decide.
        found = task.configure({}, {}).setting(name)
        default = default if found is None or default is dataclasses.MISSING else found
    default = None if default is dataclasses.MISSING else default
    return Key(table, part, name, expectation(known(table, task)[name]), default, meanings(kind)[name])


def _declared_by(table: str, name: str, task: Task) -> tuple[type, str]:
    """Return the class whose field a key is, and the part of the model that it belongs to."""
    from longspan import LongspanConfig
    from longspan.training.arguments import Arguments

    if table == "data":
        return task.data_config, ""
    if table == "training":
        return task.training_options if name in typing.get_type_hints(task.training_options) else Arguments, ""
    part = next(part for part, names in parts(task).items() if name in names)
    kinds = {"model": ModelOptions, "backbone": LongspanConfig, **{_title(kind): kind for kind in _kinds(task)}}
    return kinds[part], part


def _kinds(task: Task) -> list[type[PartSettings]]:
    """Return the settings of the parts around the backbone of a task's models."""
    head = getattr(task.model_class, "head_settings", None)
    return [*task.embeddings, *([head] if head else [])]


def _title(kind: type[PartSettings]) -> str:
    return f"{kind.part} {kind.kind()}"


@functools.cache
def meanings(kind: type) -> Mapping[str, str]:
    """Return what each field of a class means; "" for those that say nothing."""
    assert dataclasses.is_dataclass(kind)
    # Help is written for argparse, where a percent sign is doubled.
    helps = {field.name: str(field.metadata.get("help") or "").replace("%%", "%") for field in dataclasses.fields(kind)}
    described: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        described |= _entries(inspect.cleandoc(base.__doc__ or ""))
    return {name: text or described.get(name, "") for name, text in helps.items()}


def _entries(docstring: str) -> dict[str, str]:
    """Return the entries of a docstring's "Args:" or "Attributes:"."""
    section = re.search(r"^(?:Args|Attributes):\n((?: .*\n?|\n)*)", docstring, re.MULTILINE)
    found: dict[str, str] = {}
    name = ""
    for line in (section[1] if section else "").splitlines():
        if start := re.match(r"    (\w+): (.*)", line):
            name = start[1]
            found[name] = start[2]
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found


@functools.cache
def _training_keys() -> dict[str, Any]:
    from longspan.training.arguments import Arguments

    hints = typing.get_type_hints(Arguments)
    fields = {entry.name: hints[entry.name] for entry in dataclasses.fields(Arguments) if entry.init}
    return {key: hint for key, hint in fields.items() if key not in SET_ELSEWHERE}


@functools.cache
def _backbone() -> dict[str, Any]:
    from longspan import LongspanConfig

    # Only the fields it declares itself: those of its Hugging Face base class are not for recipes.
    own = inspect.get_annotations(LongspanConfig, eval_str=True)
    apart = (*_BACKBONE_FROM_DATA, "embeddings", "head")
    return {
        name: hint for name, hint in own.items() if name not in apart and typing.get_origin(hint) is not typing.ClassVar
    }
