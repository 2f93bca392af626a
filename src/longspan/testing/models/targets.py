"""From what a user names to what is checked: a class of models with a tiny configuration."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from longspan import models
from longspan.errors import UserError, first_line, suggestion
from longspan.machine.imports import named_in
from longspan.models import LongspanConfig
from longspan.results.outputs import json_object
from longspan.testing.models.sizes import tiny
from longspan.testing.models.subject import Subject, Task
from longspan.verbs.runs import read_config

#: Classes with a logit per token, by model type; where a type has several, the first of these tables counts.
_TABLES: dict[Task, Mapping[str, Any]] = {
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
}
_EXPECTED = "a model type such as 'mamba', a class such as 'BertLMHeadModel' or a folder with config.json"


def resolve(model: str | Path | PreTrainedConfig | type[PreTrainedModel]) -> tuple[str, Subject]:
    """Return a name for reports, and what is checked.

    Args:
        model: A model type or a class of transformers by name, a folder, a configuration or a class. A configuration
            is used as it is. Settings of a folder are reduced to small sizes.

    Raises:
        UserError: There is no such model type, class or folder. It has no logits for each token. transformers cannot
            build a tiny configuration.
    """
    if isinstance(model, PreTrainedConfig):
        kind, task = _class_of(model.model_type, model.architectures, model.model_type)
        return model.model_type, _tried(Subject(kind, model, task), model.model_type)
    if isinstance(model, type):
        return model.__name__, _of_class(model)
    if not isinstance(model, str | Path):
        own = type(model).__name__
        instead = f"give {own} or its config" if isinstance(model, PreTrainedModel) else f"give {_EXPECTED}"
        raise UserError(f"expected a class, a configuration or a name of a model, got an object of {own}; {instead}.")
    name = str(model)
    if Path(name).is_dir():
        return name, _of_folder(Path(name))
    if name in CONFIG_MAPPING:
        kind, task = _class_of(name, None, name)
        return name, _small(kind, _configuration(name, {}, name), task, name)
    found = getattr(models, name, None) or getattr(transformers, name, None)
    if isinstance(found, type) and issubclass(found, PreTrainedModel):
        return name, _of_class(found)
    known = {*CONFIG_MAPPING.keys(), *_classes()}
    hint = f"there is no folder, model type or class {name!r}" if "/" not in name else f"there is no folder {name!r}"
    raise UserError(f"{hint}; {suggestion(name, known) if '/' not in name else f'name {_EXPECTED}.'}")


def _of_class(kind: type[PreTrainedModel]) -> Subject:
    task = _task(kind)
    if task is None or kind.config_class is None:
        raise UserError(
            f"expected a class with logits for each token, got {kind.__name__}; name one such as GPT2LMHeadModel."
        )
    return _small(kind, _configuration(kind.config_class.model_type, {}, kind.__name__, kind), task, kind.__name__)


def _of_folder(folder: Path) -> Subject:
    """Read config.json of a folder. Neither code nor weights of the folder are read."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"expected config.json in {str(folder)!r}, got none; name {_EXPECTED}.")
    values = json_object(path)
    name = str(values.get("model_type"))
    if name == LongspanConfig.model_type:
        with named_in(path):
            config: PreTrainedConfig = read_config(folder)
            kind, task = _class_of(name, config.architectures, str(folder))
            return _small(kind, config, task, str(folder))
    if name not in CONFIG_MAPPING:
        code = ", and its own code is not executed" if "auto_map" in values else ""
        raise UserError(
            f"transformers knows no model type {name!r} of {str(path)!r}{code}; "
            f"{suggestion(name, CONFIG_MAPPING.keys())}"
        )
    kind, task = _class_of(name, values.get("architectures"), str(folder))
    return _small(kind, _configuration(name, values, str(folder)), task, str(folder))


def _configuration(
    name: str, values: Mapping[str, Any], told: str, kind: type[PreTrainedModel] | None = None
) -> PreTrainedConfig:
    """Return the configuration of a type with those of the values that are settings of it."""
    config_class = LongspanConfig if name == LongspanConfig.model_type else CONFIG_MAPPING[name]
    if kind is not None and kind.config_class is not None:
        config_class = kind.config_class
    with _building(told):
        default = config_class()
        # Other attributes of a configuration may load code or weights.
        known = {key for key in default.to_dict() if not key.startswith("_")} - _NOT_SETTINGS
        return config_class(**{key: value for key, value in values.items() if key in known})


_NOT_SETTINGS = {"architectures", "attn_implementation", "auto_map", "dtype", "model_type", "name_or_path"}
_NOT_SETTINGS |= {"quantization_config", "torch_dtype", "transformers_version"}


def _small(kind: type[PreTrainedModel], config: PreTrainedConfig, task: Task, told: str) -> Subject:
    with _building(told):
        small = tiny(config, causal=task == "causal")
    return _tried(Subject(kind, small, task), told)


def _tried(subject: Subject, told: str) -> Subject:
    """Return a subject that can be built and reads tokens."""
    with _building(told), torch.no_grad():
        subject.read(subject.draw(1))
    return subject


@contextlib.contextmanager
def _building(told: str) -> Iterator[None]:
    """Raise UserError in place of any other error."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"expected a tiny model of {told!r} that reads tokens, got an error ({type(error).__name__}: "
            f"{first_line(error)}); give longspan.testing.check_model a configuration of your own."
        ) from error


def _class_of(name: str, architectures: Any, told: str) -> tuple[type[PreTrainedModel], Task]:
    """Return the class that a configuration names, or else the first that its type has."""
    for named in architectures if isinstance(architectures, list) else []:
        kind = getattr(models, str(named), None) or getattr(transformers, str(named), None)
        if isinstance(kind, type) and issubclass(kind, PreTrainedModel) and (task := _task(kind)):
            return kind, task
    if name == LongspanConfig.model_type and not architectures:
        return models.LongspanForCausalLM, "causal"
    for task, table in _TABLES.items():
        if name in table:
            named = table[name]
            kind = getattr(transformers, named if isinstance(named, str) else named[0])
            return kind, task
    raise UserError(f"expected a model with logits for each token, got {told!r}, which has none; name another.")


def _task(kind: type[PreTrainedModel]) -> Task | None:
    """Task of a class, by its name and those of its bases; None for a class without logits for tokens."""
    endings: dict[str, Task] = {
        "Seq2SeqLM": "seq2seq",
        "ForConditionalGeneration": "seq2seq",
        "ForMaskedLM": "masked",
        "ForCausalLM": "causal",
        "LMHeadModel": "causal",
    }
    for base in kind.__mro__:
        for task, table in _TABLES.items():
            if base.__name__ in _names(table):
                return task
        for ending, task in endings.items():
            if base.__name__.endswith(ending):
                return task
    return None


def _names(table: Mapping[str, Any]) -> set[str]:
    return {name for names in table.values() for name in ([names] if isinstance(names, str) else names)}


def _classes() -> set[str]:
    return {name for table in _TABLES.values() for name in _names(table)} | {
        name for name in dir(models) if name.endswith(("ForCausalLM", "ForMaskedLM", "ForSeq2SeqLM"))
    }
