"""Settings that a recipe takes from the run that it starts from: `give_way` and `complete`.

`model.start_from` names a run folder. What the recipe leaves open of the model's shape and of the tokens is then that
of the run. As an override, it also replaces what the recipe's file says of either, except for parts that the run's
model lacks altogether.
"""

import itertools
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from longspan import options
from longspan.data.config import DataConfig
from longspan.data.text import encoders
from longspan.errors import UserError, suggestion
from longspan.models import config as backbone
from longspan.models.backbone import WANTED, known_to
from longspan.models.config import LongspanConfig
from longspan.models.decoder import CROSS_ATTENTION
from longspan.models.embeddings.tokens import TokenSettings
from longspan.tasks.base.task import Recipe, Task

TOKENS = ("tokens", "vocab_size", "lowercase")
"""The keys of `[data]` that say what the tokens are."""

OF_TARGETS = ("shared_vocabulary", "target_vocab_size")
"""Those that some tasks with a target have, too."""

_OF_COLUMNS = ("feature_neighbours",)
"""Settings of embeddings that hold for a column of the data."""

_PARTS = (("ngrams", "ngram_buckets"), ("word_characters", "word_buckets"))
"""The keys of parts that a model may have or not, and what else is said of them. New ones add nothing at first."""

Tables = MutableMapping[str, Any]


def shape_of(task: Task) -> tuple[str, ...]:
    """Return the keys of `[model]` that say what embeddings and layers are; not so those of what others have read."""
    own = (name for kind in task.embeddings if not kind.required() for name in options.names(kind, from_data=False))
    every = (*backbone.SHAPE, *(name for name in own if name not in _OF_COLUMNS), *_head_shape(task))
    return tuple(name for name in every if name not in task.unused)


def give_way(tables: Tables, task: Task) -> dict[str, Any]:
    """Take out of a recipe's tables what would be the shape and the tokens of a new model; return the former."""
    shape = {key: value for key, value in tables.get("model", {}).items() if key in shape_of(task)}
    for table, keys in (("model", shape_of(task)), ("data", (*TOKENS, "tokenizer_from"))):
        tables[table] = {key: value for key, value in tables.get(table, {}).items() if key not in keys}
    return shape


def complete(tables: Tables, task: Task, load: Callable[[str], Recipe], own: Mapping[str, Any]) -> None:
    """Fill in what the tables of a recipe leave open of the shape and the tokens of the run that it starts from.

    The resolved recipe of a run says everything, so that it can be read where that other run is not.

    Args:
        tables: Those of the recipe, whose keys are known and have the right types.
        task: Task of the recipe.
        load: Reads the recipe of a run folder.
        own: What gave way of the recipe's shape; its parts count where the run has none of the kind.

    Raises:
        UserError: There is no such run folder, or two are named.
    """
    model, data = tables["model"], tables["data"]
    start, source = model.get("start_from", ""), data.get("tokenizer_from", "")
    if start and source and start != source:
        raise UserError(
            f"expected the tokenizer of the run in model.start_from, {start!r}, got data.tokenizer_from={source!r}; "
            "leave it out."
        )
    if start and issubclass(task.data_config, DataConfig):
        data["tokenizer_from"] = source = start
    keys = (*TOKENS, *(key for key in OF_TARGETS if key in options.names(task.data_config)))
    if source and any(key not in data for key in keys):
        tokens = _recipe(source, load).data
        if not isinstance(tokens, DataConfig):
            raise UserError(
                f"expected a run that reads texts to start from, got {source!r}, which does not; name another."
            )
        tables["data"] = {key: getattr(tokens, key) for key in keys if key in options.names(type(tokens))} | data
    if start and any(key not in model for key in _written(task)):
        run = _recipe(start, load)
        shape = _shape(run, task, model)
        if _head_shape(run.task) != _head_shape(task):
            shape |= {key: own[key] for key in _head_shape(task) if key in own}
        for keys in _PARTS:
            if not shape.get(keys[0]):
                shape |= {key: own[key] for key in keys if key in own}
        tables["model"] = shape | model


def _written(task: Task) -> set[str]:
    """Return the keys that a resolved recipe has: TOML cannot say None, and mixers do not know all of the others."""
    new = LongspanConfig(embeddings=task.embeddings[0]())
    return {key for key in shape_of(task) if new.setting(key) is not None and key not in WANTED} - {"causal"}


def _head_shape(task: Task) -> tuple[str, ...]:
    settings = getattr(task.model_class, "head_settings", None)
    return () if settings is None else tuple(settings.shape)


def _shape(run: Recipe, task: Task, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `[model]` keys of a run that a model of `task` starts with, if `model` does not give other mixers."""
    config = run.task.configure(run.model, {})
    shape = {key: config.setting(key) for key in shape_of(task)}
    used = model.get("mixers") or shape["mixers"]
    shape["mixer_options"] = {name: kept for name, kept in shape["mixer_options"].items() if name in used}
    if not shape.get("causal"):
        # A task that needs a causal model says so itself.
        shape.pop("causal", None)
    if shape.get("decoder_forget") is not None:
        _keep_known(shape, {**shape, **model}, used)
    return {key: value for key, value in known_to(used, shape).items() if value is not None}


def _keep_known(shape: dict[str, Any], wanted: Mapping[str, Any], encoders: Sequence[str]) -> None:
    """Take out of `shape` what is said of a decoder's mixers that are none of the `wanted` ones."""
    own = wanted["decoder_mixers"] or encoders
    if not known_to(own, {"forget": shape["decoder_forget"]}):
        del shape["decoder_forget"]
    if shape["decoder_mixer_options"] is not None:
        names = [*own, *(wanted["cross_attention"] or CROSS_ATTENTION)]
        options = shape["decoder_mixer_options"].items()
        shape["decoder_mixer_options"] = {name: kept for name, kept in options if name in names}


def _recipe(folder: str, load: Callable[[str], Recipe]) -> Recipe:
    path = Path(folder).expanduser()
    if not (path / "recipe.toml").is_file():
        parent = path.parent
        runs = [one.parent.name for one in itertools.islice(parent.glob("*/recipe.toml"), 1000)]
        hint = "name the folder of a run." if path.is_dir() or not runs else suggestion(path.name, runs)
        raise UserError(f"expected the folder of a run to start from, got {folder!r}, which is none; {hint}")
    # Not the folder: a recipe of the package may have its name.
    return load(str(path / "recipe.toml"))


_VECTORS = (*options.names(TokenSettings), "scale_embeddings", "embedding_dim")


def drop_new_tokens(tables: Tables) -> None:
    """Take out of a recipe's tables what would be the tokens and word vectors of a new model."""
    for table, keys in (("model", _VECTORS), ("data", (*TOKENS, "tokenizer_from"))):
        tables[table] = {key: value for key, value in tables.get(table, {}).items() if key not in keys}


def fill_in_encoder_tokens(tables: Tables) -> None:
    """Fill in the tokens of the encoder that a recipe names, if it names one.

    Raises:
        UserError: The recipe has other tokens.
    """
    model, data = tables["model"], tables["data"]
    encoder = model.get("encoder")
    if not encoder:
        return
    for where, run in {
        "model.start_from": model.get("start_from"),
        "data.tokenizer_from": data.get("tokenizer_from"),
    }.items():
        if run:
            raise UserError(
                f"expected the tokens of the encoder {encoder!r}, got those of the run {run!r} ({where}); leave one of "
                "them out."
            )
    data.setdefault("tokens", encoder)
    encoders.check_tokens(encoder, data["tokens"])
