"""Loading trained models with everything needed to use them: `load_run`."""

import contextlib
import dataclasses
import inspect
import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.utils import logging

from longspan import recipes
from longspan.data.processor import json_object
from longspan.errors import UserError, nearest, suggestion
from longspan.errors.hints import expectation, matches
from longspan.machine.bars import hidden_bars
from longspan.machine.imports import allow, named_in
from longspan.models import LongspanConfig
from longspan.models.settings import homes
from longspan.tasks.base.task import Run
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


def load_run(folder: Path | str, *, checkpoint: int | str | None = None, allow_imports: Iterable[str] = ()) -> Run:
    """Load a run folder. Nothing in it is executed.

    Args:
        folder: The run folder.
        checkpoint: The model saved after this step, or "last", also of a run that is unfinished; by default, the
            final model.
        allow_imports: Packages or modules that may be imported for classes that the run names, in addition to those
            of `longspan.machine.imports.allow`.

    Raises:
        UserError: The run is missing, not a run folder, unfinished or damaged. Its weights do not fit its
            configuration, or it has no such checkpoint. It names code that has not been imported and may not be.
    """
    folder = Path(folder)
    _check_files(folder, unfinished=checkpoint is not None)
    source = folder if checkpoint is None else checkpoints.find(folder / "checkpoints", checkpoint)
    what = "run folder" if source == folder else "checkpoint"
    _check_model_files(source, what)
    with allow(*allow_imports):
        with named_in(source / "config.json"):
            config = read_config(source)
        recipe = dataclasses.replace(recipes.load(str(folder / "recipe.toml")), name=folder.name)
        for name in recipe.task.processor.files:
            _check_file(source, name, what)
        with named_in(source / "config.json"):
            model = _model(source, config, recipe.task.model_class)
    step = None if checkpoint is None else checkpoints.step(source)
    return Run(folder, model.to(_device()).eval(), recipe.task.processor.from_pretrained(source), recipe, step)


def as_run(run: Any, checkpoint: int | str | None, allow_imports: Iterable[str]) -> Run:
    """Return a run that is loaded, or load it: a `Run`, a `longspan.TrainedRun` or the path of a run folder.

    Raises:
        UserError: It is loaded, and a checkpoint is asked for; or from `load_run`.
    """
    run = getattr(run, "loaded", run)
    if not isinstance(run, Run):
        return load_run(run, checkpoint=checkpoint, allow_imports=allow_imports)
    if checkpoint is not None:
        raise UserError(
            f"expected checkpoint={checkpoint!r} with the path of a run, got a loaded run; give it to load_run."
        )
    return run


def _check_files(folder: Path, *, unfinished: bool) -> None:
    """Raise UserError unless this is the folder of a run; an `unfinished` one may lack a model."""
    if not folder.is_dir():
        siblings = [path.name for path in folder.parent.iterdir() if path.is_dir()] if folder.parent.is_dir() else []
        # With the parent, so that it can be copied.
        near = nearest(folder.name, siblings)
        hint = f"did you mean {str(folder.with_name(near))!r}?" if near else suggestion(folder.name, siblings)
        raise UserError(f"there is no run folder {str(folder)!r}; {hint}")
    _check_kinds(folder)
    if unfinished and not (folder / "recipe.toml").is_file():
        raise UserError(f"expected recipe.toml in the run folder {str(folder)!r}, got none; name a run folder.")
    if not unfinished and (folder / "recipe.toml").is_file() and not (folder / "model.safetensors").is_file():
        raise UserError(
            f"the run in {str(folder)!r} is unfinished; continue it with `longspan train ... --resume`, end it with "
            "--finish, or name one of its checkpoints with --checkpoint."
        )


def _check_kinds(folder: Path) -> None:
    for path in folder.iterdir():
        # Reading a pipe waits for a writer, and a device may be endless.
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"expected files and folders, got neither in {str(path)!r}; remove it from the run folder.")


def _check_model_files(folder: Path, what: str) -> None:
    """Raise UserError unless a "run folder" or "checkpoint" has a model and what goes with it."""
    if what == "run folder" and (folder / "trainer_state.json").is_file():
        run, step = folder.parent.parent, folder.name.removeprefix("checkpoint-")
        raise UserError(
            f"expected a run folder, got a checkpoint in {str(folder)!r}; name its run {str(run)!r} and --checkpoint "
            f"{step}."
        )
    for name in ("config.json", *(() if what == "checkpoint" else ("recipe.toml",)), "model.safetensors"):
        _check_file(folder, name, what)
    if (folder / "adapter_config.json").exists():
        # It may name code to import and weights to download.
        raise UserError(
            f"expected a run folder without adapters, got adapter_config.json of PEFT in {str(folder)!r}; merge the "
            "adapter into the weights (`merge_and_unload`) and save them, or remove it."
        )


def _check_file(folder: Path, name: str, what: str) -> None:
    if not (folder / name).is_file():
        raise UserError(f"expected {name} in the {what} {str(folder)!r}, got none; name another {what}.")


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
            "folder "
            "of a longspan model."
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
            "the "
            "file."
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
    found = _shapes(folder / "model.safetensors")
    _check_sizes(folder, config, model_class, found)
    try:
        with _quiet():
            model, info = model_class.from_pretrained(
                folder,
                config=config,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                local_files_only=True,
                use_safetensors=True,
            )
    # For example, a generation_config.json of another version.
    except (TypeError, AttributeError, KeyError) as error:
        raise UserError(
            f"expected a model in {str(folder)!r}, got an error ({_first_line(error)}); restore its files."
        ) from error
    wrong = [
        (name, f"has shape {tuple(found)} in model.safetensors but {tuple(expected)} according to config.json")
        for name, found, expected in info["mismatched_keys"]
    ]
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wrong += [
        (name, f"is missing in model.safetensors, but has shape {shapes.get(name)} according to config.json")
        for name in info["missing_keys"]
    ]
    wrong += [
        (name, "is in model.safetensors, but not in the model of config.json") for name in info["unexpected_keys"]
    ]
    _refuse_weights(folder, wrong)
    return model


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a file, reading only its header."""
    try:
        with safe_open(path, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{str(path)!r} is damaged ({error}); restore it.") from None


def _check_sizes(
    folder: Path, config: LongspanConfig, model_class: type[PreTrainedModel], found: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse a configuration that is too large for the weights, before building it takes hours and all memory."""
    assert config.mixers is not None
    blocks = min(config.depth, len(config.mixers)) if config.share_layers else config.depth
    # A block without weights of its own is odd, but possible.
    if blocks > len(found) + _BLOCKS_WITHOUT_WEIGHTS:
        raise UserError(
            f"the weights in {str(folder)!r} do not fit its config.json: expected tensors for {blocks} layers, got "
            f"{len(found)} in model.safetensors; restore either file."
        )
    try:
        with torch.device("meta"):
            expected = {name: tuple(tensor.shape) for name, tensor in model_class(config).state_dict().items()}
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"expected a model from {str(folder / 'config.json')!r}, got an error ({_first_line(error)}); restore it."
        ) from error
    wrong = [
        (name, f"has shape {found[name]} in model.safetensors but {shape} according to config.json")
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    missing = {name: shape for name, shape in expected.items() if name not in found}
    # Tied weights are stored once, so they may be missing under their other names.
    if sum(map(math.prod, missing.values())) > sum(map(math.prod, found.values())):
        wrong += [
            (name, f"is missing in model.safetensors, but has shape {shape} according to config.json")
            for name, shape in missing.items()
        ]
    _refuse_weights(folder, wrong)


def _refuse_weights(folder: Path, wrong: Sequence[tuple[str, str]]) -> None:
    if wrong:
        name, problem = min(wrong)
        raise UserError(
            f"the weights in {str(folder)!r} do not fit its config.json ({len(wrong)} do not): {name} {problem}; "
            "restore "
            "either file."
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


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
