"""Trained models with everything needed to use them, loaded from run folders: `load_run` and `as_run`."""

import contextlib
import dataclasses
import inspect
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.utils import logging

from longspan import recipes
from longspan.data.config import check_override
from longspan.data.processor import json_object
from longspan.errors import UserError, first_line, listing, nearest, suggestion
from longspan.errors.hints import expectation, matches
from longspan.machine.bars import hidden_bars
from longspan.machine.imports import allow, named_in
from longspan.models import LongspanConfig
from longspan.models.settings import homes
from longspan.options import make
from longspan.programs.predicting import is_export
from longspan.tasks.base.task import Recipe, Run, Task
from longspan.training import checkpoints

#: Fields of a config.json besides those that `LongspanConfig` declares itself, with their types.
_INHERITED: dict[str, Any] = {
    "_name_or_path": str,
    "architectures": list[str],
    "bos_token_id": int,
    "chunk_size_feed_forward": int,
    "dtype": str,
    "eos_token_id": int,
    "id2label": dict,
    "is_encoder_decoder": bool,
    "label2id": dict,
    "model_type": str,
    "output_attentions": bool,
    "output_hidden_states": bool,
    "problem_type": str,
    "return_dict": bool,
    "transformers_version": str,
    "use_cache": bool,
}

_DTYPES = ("float32", "float64", "bfloat16", "float16")
_BLOCKS_WITHOUT_WEIGHTS = 1000


def load_run(
    folder: Path | str,
    *,
    checkpoint: int | str | None = None,
    allow_imports: Iterable[str] = (),
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Run:
    """Load a run folder. Nothing in it is executed.

    Args:
        folder: The run folder.
        checkpoint: The model saved after this step, or "last", also of a run that is unfinished; by default, the
            final model.
        allow_imports: Packages or modules that may be imported for classes that the run names, in addition to those
            of `longspan.machine.imports.allow`.
        overrides: How data are read where that differs from training, such as ["data.encoding=auto"].
        options: Prediction options of the run's task, such as {"beams": 4}.

    Raises:
        UserError: The run is missing, not a run folder, unfinished or damaged. Its weights do not fit its
            configuration, or it has no such checkpoint. It names code that has not been imported and may not be.
            Also overrides of tokens, or of anything but data, and options that the task does not have.
    """
    folder = Path(folder)
    _check_folder(folder, unfinished=checkpoint is not None)
    with allow(*allow_imports):
        recipe = _recipe(folder, overrides)
        prediction = _prediction(recipe.task, options)
        source = folder if checkpoint is None else checkpoints.find(folder / "checkpoints", checkpoint)
        with named_in(source / "config.json"):
            _check_files(source, ("config.json", "model.safetensors", *recipe.task.processor.files))
            model = _model(source, read_config(source), recipe.task.model_class)
    processor = recipe.task.processor.from_pretrained(source)
    processor.check_model(model.config, source)
    step = None if checkpoint is None else checkpoints.step(source)
    return Run(folder, model.to(_device()).eval(), processor, recipe, step, prediction)


def as_run(
    run: Any,
    checkpoint: int | str | None = None,
    allow_imports: Iterable[str] = (),
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Run:
    """Load a run unless it is loaded: it may be a `Run`, a `longspan.TrainedRun` or the path of a run folder.

    Raises:
        UserError: It is loaded, and a checkpoint is asked for; or from `load_run`.
    """
    run = getattr(run, "loaded", run)
    if not isinstance(run, Run):
        return load_run(run, checkpoint=checkpoint, allow_imports=allow_imports, overrides=overrides, options=options)
    if checkpoint is not None:
        raise UserError(
            f"expected checkpoint={checkpoint!r} with the path of a run, got a loaded run; give it to load_run."
        )
    if overrides:
        data = _recipe(run.folder, overrides).data
        run = dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, data=data))
    return dataclasses.replace(run, prediction=_prediction(run.task, options)) if options else run


def _prediction(task: Task, options: Mapping[str, Any]) -> Any:
    """Prediction options of a task; None for its defaults."""
    return make(task.prediction_options, options, f"predicting with the task {task.name!r}") if options else None


def _recipe(folder: Path, overrides: Sequence[str]) -> Recipe:
    """Read the recipe of a run, with other settings of its data."""
    recipe = recipes.of_run(folder, overrides)
    for override in overrides:
        check_override(override)
    return recipe


def _check_folder(folder: Path, *, unfinished: bool) -> None:
    """Raise UserError unless this is the folder of a run; an `unfinished` one may lack a model."""
    if is_export(folder):
        raise UserError(
            f"expected a run folder, got an exported program in {str(folder)!r}, which `longspan predict` alone reads; "
            "name the run that it was made from."
        )
    if not folder.is_dir():
        siblings = [path.name for path in folder.parent.iterdir() if path.is_dir()] if folder.parent.is_dir() else []
        # With the parent, so that it can be copied.
        near = nearest(folder.name, siblings)
        hint = f"did you mean {str(folder.with_name(near))!r}?" if near else listing(folder.name, siblings)
        raise UserError(f"there is no run folder {str(folder)!r}; {hint}")
    for path in folder.iterdir():
        # Reading a pipe waits for a writer, and a device may be endless.
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"expected files and folders, got neither in {str(path)!r}; remove it from the run folder.")
    if unfinished and not (folder / "recipe.toml").is_file():
        raise UserError(f"expected recipe.toml in the run folder {str(folder)!r}, got none; name a run folder.")
    if unfinished:
        return
    if (folder / "recipe.toml").is_file() and not (folder / "model.safetensors").is_file():
        raise UserError(
            f"the run in {str(folder)!r} is unfinished; continue it with `longspan train ... --resume`, end it with "
            "--finish, or name one of its checkpoints with --checkpoint."
        )
    if (folder / "trainer_state.json").is_file():
        run, step = folder.parent.parent, folder.name.removeprefix("checkpoint-")
        raise UserError(
            f"expected a run folder, got a checkpoint in {str(folder)!r}; name its run {str(run)!r} and --checkpoint "
            f"{step}."
        )
    _check_files(folder, ("config.json", "recipe.toml"))


def _check_files(source: Path, names: Iterable[str]) -> None:
    """Raise UserError unless a run folder, or a checkpoint, has files of these names, and none of an adapter."""
    what = "checkpoint" if (source / "trainer_state.json").is_file() else "run folder"
    for name in names:
        if not (source / name).is_file():
            raise UserError(f"expected {name} in the {what} {str(source)!r}, got none; name another {what}.")
    if (source / "adapter_config.json").exists():
        # It may name code to import and weights to download.
        raise UserError(
            f"expected a run folder without adapters, got adapter_config.json of PEFT in {str(source)!r}; merge the "
            "adapter into the weights (`merge_and_unload`) and save them, or remove it."
        )


def read_config(folder: Path) -> LongspanConfig:
    """Return the configuration in a folder. Nothing in it is executed.

    Raises:
        UserError: It has other settings than those of a longspan model, or values that do not fit.
    """
    path = folder / "config.json"
    values = json_object(path)
    if values.get("model_type") != LongspanConfig.model_type:
        raise UserError(
            f"expected a longspan model in {str(folder)!r}, got one of type {values.get('model_type')!r}; name the "
            "folder of a longspan model."
        )
    hints = inspect.get_annotations(LongspanConfig, eval_str=True) | _INHERITED
    for key, value in values.items():
        hint = hints.get(key)
        if hint is None and any(homes(key)):
            raise UserError(
                f"expected settings of the model's parts in 'embeddings' and 'head' of {str(path)!r}, got {key!r} "
                "outside them, as older versions of longspan write it; train again with its recipe.toml."
            )
        if hint is None:
            # transformers turns every key into an attribute, and some attributes load code.
            raise UserError(f"{str(path)!r} has an unknown key {key!r}; {suggestion(key, hints)}")
        if value is not None and not matches(value, hint):
            raise UserError(
                f"{key} in {str(path)!r} must be {expectation(hint)}, got {reprlib.repr(value)}; restore the file."
            )
    if values.get("dtype") not in (None, *_DTYPES):
        raise UserError(
            f"dtype in {str(path)!r} must be one of {', '.join(_DTYPES)}, got {values['dtype']!r}; choose one of them."
        )
    labels = values.get("id2label")
    if labels is not None and (
        sorted(labels, key=lambda name: name.zfill(20)) != [str(number) for number in range(len(labels))]
        or not all(isinstance(label, str) for label in labels.values())
    ):
        raise UserError(
            f"id2label in {str(path)!r} must have a name for each of 0, 1, ..., got {reprlib.repr(labels)}; restore "
            "the file."
        )
    if labels is not None and len(labels) < 2 and values.get("problem_type") == "single_label_classification":
        raise UserError(f"expected at least two labels in {str(path)!r}, got {len(labels)}; restore the file.")
    try:
        config: LongspanConfig = LongspanConfig.from_pretrained(folder)
    except (UserError, StrictDataclassError) as error:
        told = " ".join(str(error).split())
        raise UserError(f"{str(path)!r} does not describe a model: {told}") from error
    return config


def _model(folder: Path, config: LongspanConfig, model_class: type[PreTrainedModel]) -> PreTrainedModel:
    """Load the weights. By default, transformers draws those that do not fit at random, with at most a warning."""
    _check_weights(folder, config, model_class)
    try:
        with _quiet():
            model, info = model_class.from_pretrained(
                folder, config=config, output_loading_info=True, local_files_only=True, use_safetensors=True
            )
    # For example, a generation_config.json of another version.
    except (TypeError, AttributeError, KeyError) as error:
        raise UserError(
            f"expected a model in {str(folder)!r}, got an error ({first_line(error)}); restore its files."
        ) from error
    assert not any(info.values()), info
    return model


def _check_weights(folder: Path, config: LongspanConfig, model_class: type[PreTrainedModel]) -> None:
    """Raise UserError unless the weights fit the configuration, before a model that is too large takes all memory."""
    stored = _shapes(folder / "model.safetensors")
    assert config.mixers is not None
    blocks = min(config.depth, len(config.mixers)) if config.share_layers else config.depth
    # A block without weights of its own is odd, but possible.
    if blocks > len(stored) + _BLOCKS_WITHOUT_WEIGHTS:
        raise UserError(
            f"the weights in {str(folder)!r} do not fit its config.json: expected tensors for {blocks} layers, got "
            f"{len(stored)} in model.safetensors; restore either file."
        )
    try:
        with torch.device("meta"):
            expected = model_class(config).state_dict(keep_vars=True)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"expected a model from {str(folder / 'config.json')!r}, got an error ({first_line(error)}); restore it."
        ) from error
    # Tied weights are one tensor, which the file has once, under any of their names.
    there = {id(tensor) for name, tensor in expected.items() if name in stored}
    wrong = {}
    for name, tensor in expected.items():
        shape = tuple(tensor.shape)
        if stored.get(name, shape) != shape:
            wrong[name] = f"has shape {stored[name]} in model.safetensors but {shape} according to config.json"
        elif id(tensor) not in there:
            wrong[name] = f"is missing in model.safetensors, but has shape {shape} according to config.json"
    wrong = wrong or dict.fromkeys(
        stored.keys() - expected.keys(), "is in model.safetensors, but not in the model of config.json"
    )
    if wrong:
        name = min(wrong)
        raise UserError(
            f"the weights in {str(folder)!r} do not fit its config.json ({len(wrong)} do not): {name} {wrong[name]}; "
            "restore either file."
        )


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a file, reading only its header."""
    try:
        with safe_open(path, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{str(path)!r} is damaged ({error}); restore it.") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress transformers' loading report and progress bar: `_model` reports problems in one sentence."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with hidden_bars():
            yield
    finally:
        logging.set_verbosity(verbosity)


def _device() -> torch.device:
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
