"""Keys that a recipe's tables may hold: types, defaults and meanings, all from the dataclasses that declare them.

`[data]` has the options of the task's `data_config`, and `[training]` those of the task's `training_options` and of
`transformers.TrainingArguments`. `[model]` has those of `ModelOptions`, of `LongspanConfig` (the backbone) and of the
task's embeddings and head. See `longspan.options`.
"""

import dataclasses
import functools
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from longspan import options, tasks
from longspan.errors import UserError, listing, nearest
from longspan.errors.hints import expectation
from longspan.models.settings import PartSettings
from longspan.tasks.base.options import ModelOptions
from longspan.tasks.base.task import Task

TABLES = ("data", "model", "training")

_LABELS = ("num_labels", "id2label", "label2id")
"""Settings of all models of transformers that the data decide."""

SET_ELSEWHERE = {
    "output_dir": "name the run folder with --run",
    "resume_from_checkpoint": "continue a run with --resume",
    "hub_strategy": "leave it out, as a run is pushed once, when it is finished",
    "hub_token": "log in with `hf auth login`, so that the token is not written into the run folder",
}
"""Keys of `TrainingArguments` that recipes may not set, and what to do instead."""

#: Defaults of a run where its recipe says nothing, whatever its task; these differ from the defaults of
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
        type: Type of its values, in words.
        default: Value where a recipe says nothing.
        meaning: Its meaning.
    """

    table: str
    part: str
    name: str
    type: str
    default: Any
    meaning: str


def declared(table: str, task: Task) -> dict[str, tuple[str, type]]:
    """Keys that a table may hold, each with the part of the model that has it and the dataclass that declares it."""
    from longspan import LongspanConfig
    from longspan.training.arguments import Arguments

    kinds: dict[str, type] = {"": task.data_config}
    if table == "training":
        kinds = {"": task.training_options, "transformers": Arguments}
    elif table == "model":
        kinds = {"model": ModelOptions, "backbone": LongspanConfig}
        kinds |= {f"{kind.part} {kind.kind()}": kind for kind in _kinds(task)}
    found: dict[str, tuple[str, type]] = {}
    for part, kind in kinds.items():
        for name in options.names(kind, from_data=False):
            if name in _hints(kind) and not (table == "model" and name in task.unused) and name not in SET_ELSEWHERE:
                found.setdefault(name, (part if table == "model" else "", kind))
    return found


def table_keys(table: str, task: Task) -> dict[str, Any]:
    """Keys that a table may hold, each with its type."""
    return {name: _hints(kind)[name] for name, (_, kind) in declared(table, task).items()}


@functools.cache
def _hints(kind: Any) -> Mapping[str, Any]:
    from longspan import LongspanConfig

    # Of the backbone only what it declares itself: the fields of its base class are not for recipes.
    return inspect.get_annotations(kind, eval_str=True) if kind is LongspanConfig else options.hints(kind)


def _kinds(task: Task) -> list[type[PartSettings]]:
    """Settings of the parts around the backbone of a task's models."""
    head = getattr(task.model_class, "head_settings", None)
    return [*task.embeddings, *([head] if head else [])]


def explained(task: Task) -> list[Key]:
    """Keys of a task's recipes, of `TrainingArguments` only the `USUAL` ones."""
    shown = {table: [*declared(table, task)] for table in ("data", "model")}
    shown["training"] = [*options.names(task.training_options), *USUAL]
    return [_key(table, name, task) for table, names in shown.items() for name in names]


def further_keys(task: Task) -> list[str]:
    """Further keys of `[training]`, which `explained` leaves to transformers."""
    return sorted(declared("training", task).keys() - {*USUAL, *options.names(task.training_options)})


def _key(table: str, name: str, task: Task) -> Key:
    part, kind = declared(table, task)[name]
    default = options.default(next(field for field in dataclasses.fields(kind) if field.name == name))
    if table == "training":
        default = (TRAINING_DEFAULTS | UNWRITTEN_DEFAULTS).get(name, default)
    elif part not in ("", "model") and default is not None:
        # A task may have others. None is described: it means that other keys decide.
        found = task.configure({}, {}).setting(name)
        default = default if found is None or default is options.REQUIRED else found
    default = None if default is options.REQUIRED else default
    return Key(table, part, name, expectation(_hints(kind)[name]), default, options.meanings(kind)[name])


# Keys of all tasks


def _every() -> list[Task]:
    return [tasks.load(name) for name in tasks.names()]


def everywhere(key: str) -> list[tuple[Key, list[str]]]:
    """Meanings of a key, such as "data.path", in recipes, each with the names of the tasks where it has it.

    Raises:
        UserError: No task that comes with longspan has it.
    """
    table, _, name = key.partition(".")
    found: dict[str, tuple[Key, list[str]]] = {}
    for task in _every():
        if name in declared(table, task):
            entry = _key(table, name, task)
            found.setdefault(repr(entry), (entry, []))[1].append(task.name)
    if not found:
        names = {f"{table}.{other}" for task in _every() for other in declared(table, task)}
        near = next(filter(None, (resembling_key(name, task, table) for task in _every())), None)
        told = f"did you mean {near!r}?" if near else listing(key, names, "`longspan show RECIPE`")
        raise UserError(f"no recipe has the key {key!r}; {told}")
    return list(found.values())


def homes(name: str) -> list[str]:
    """Keys with this name in any table of any task that comes with longspan."""
    return [f"{table}.{name}" for table in TABLES if any(name in declared(table, task) for task in _every())]


# Keys that there are not


def resembling_key(key: str, task: Task, table: str = "", also: Iterable[str] = ()) -> str | None:
    """Key that `key` means or resembles, as "table.name", or None.

    Args:
        key: Key that was given, without a table.
        task: Of the recipe.
        table: Where it was looked for; where a name is in several tables, this one counts.
        also: Other names that may have been meant.
    """
    places = sorted(TABLES, key=lambda other: other == table)
    names = {name: f"{other}.{name}" for other in places for name in declared(other, task)}
    near = nearest(key, [*names, *also], _MEANT)
    return None if near is None else names.get(near, near)


def hint(key: str, task: Task, recipe: str, table: str = "", also: Iterable[str] = ()) -> str:
    """Hint for an unknown key, where `recipe` is what to show to see all keys; see `resembling_key`."""
    if table and (homes := [other for other in TABLES if key in declared(other, task)]):
        return f"it belongs in [{homes[0]}]."
    if found := resembling_key(key, task, table, also):
        return f"did you mean {found!r}?"
    every = [f"{other}.{name}" for other in TABLES for name in declared(other, task)]
    return listing(key, every, f"`longspan show {recipe}`")


def unknown(key: str, task: Task, recipe: str, table: str = "") -> UserError:
    """Error for a key that recipes of a task do not have, in a table or, without one, in none."""
    if table in ("", "model") and (key in _LABELS or key in _from_data(task)):
        return UserError(f"model.{key} is set from the data; leave it out.")
    if table in ("", "training") and key in SET_ELSEWHERE:
        return UserError(f"training.{key} cannot be set in a recipe; {SET_ELSEWHERE[key]}.")
    whole = f"{table}.{key}" if table else key
    if having := [other for other in _every() if key in declared(table or "model", other)]:
        part = declared(table or "model", having[0])[key][0]
        return UserError(
            f"{whole} is not for the task {task.name!r} but for {', '.join(repr(other.name) for other in having)}"
            f"{f', as a setting of the {part.split()[0]}' if part else ''}; leave it out."
        )
    return UserError(f"unknown key {whole!r}; {hint(key, task, recipe, table)}")


def _from_data(task: Task) -> set[str]:
    from longspan import LongspanConfig

    return {name for kind in (LongspanConfig, *_kinds(task)) for name in options.names(kind, from_data=True)}


def placed(settings: Mapping[str, Any], task: Task, recipe: str) -> dict[str, Any]:
    """Settings by their whole keys, such as "model.dim" for "dim".

    Args:
        settings: Values by the names of keys, whole or without their table, or dicts of these by table.
        task: Of the recipe.
        recipe: Its name, for messages.

    Raises:
        UserError: There is no such key, or it is one of two tables.
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        having = [table for table in TABLES if name in declared(table, task)]
        if name in TABLES:
            if not isinstance(value, Mapping):
                raise UserError(f"expected {name} to be a dict of its keys, got {value!r}; write {name}={{...}}.")
            found |= {f"{name}.{key}": own for key, own in value.items()}
        elif "." in name:
            found[name] = value
        elif not having:
            raise unknown(name, task, recipe)
        elif len(having) > 1:
            both = " and ".join(f"{table}.{name}" for table in having)
            raise UserError(
                f"expected the name of one key, got {name!r}, which is {both}; write {having[0]}={{{name!r}: ...}}."
            )
        else:
            found[f"{having[0]}.{name}"] = value
    return found
