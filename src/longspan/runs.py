"""Trained models with all it takes to use them: `load_run`."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from longspan import recipes, tasks
from longspan.errors import UserError, suggestion
from longspan.models import LongspanConfig


@dataclass(frozen=True)
class Run:
    """A trained model with all it takes to use it.

    Attributes:
        folder: The run folder.
        model: The model, in evaluation mode, on the accelerator if there is one.
        tokenizer: Its tokenizer.
        recipe: The resolved recipe it was trained with.
        labels: Class names, in the order of the model's outputs.
    """

    folder: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    recipe: recipes.Recipe
    labels: list[str]


def load_run(folder: Path | str) -> Run:
    """Load a run folder.

    Raises:
        UserError: It is missing, is no run folder, is unfinished, or its weights do not fit its configuration.
    """
    folder = Path(folder)
    if not folder.is_dir():
        siblings = [path.name for path in folder.parent.iterdir() if path.is_dir()] if folder.parent.is_dir() else []
        raise UserError(f"there is no run folder {str(folder)!r}: {suggestion(folder.name, siblings)}")
    if (folder / "recipe.toml").exists() and not (folder / "model.safetensors").exists():
        raise UserError(f"the run in {str(folder)!r} is unfinished: go on with `longspan train ... --resume`.")
    for name in ("config.json", "recipe.toml", "model.safetensors", "tokenizer_config.json"):
        if not (folder / name).exists():
            raise UserError(f"{str(folder)!r} is not a run folder: expected a file {name} in it.")
    config = _config(folder)
    recipe = dataclasses.replace(recipes.load(str(folder / "recipe.toml")), name=folder.name)
    model = _model(folder, config, tasks.load(recipe.task).MODEL).to(_device()).eval()
    labels = [config.id2label[number] for number in range(config.num_labels)]
    return Run(folder, model, AutoTokenizer.from_pretrained(folder), recipe, labels)


def _config(folder: Path) -> LongspanConfig:
    try:
        model_type = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError):
        raise UserError(f"{str(folder / 'config.json')!r} is damaged: expected a JSON object.") from None
    if model_type != LongspanConfig.model_type:
        raise UserError(f"{str(folder)!r} holds a model of type {model_type!r}: expected one made by longspan.")
    config: LongspanConfig = LongspanConfig.from_pretrained(folder)
    return config


def _model(folder: Path, config: LongspanConfig, model_class: type[PreTrainedModel]) -> PreTrainedModel:
    """Load the weights. By default, those that do not fit would be made anew at random, with a warning at most."""
    try:
        with _quiet():
            model, info = model_class.from_pretrained(
                folder, config=config, output_loading_info=True, ignore_mismatched_sizes=True
            )
    except SafetensorError as error:
        raise UserError(f"{str(folder / 'model.safetensors')!r} is damaged: {error}.") from None
    wrong = [
        (name, f"has shape {tuple(found)} in model.safetensors but {tuple(expected)} by config.json")
        for name, found, expected in info["mismatched_keys"]
    ]
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wrong += [
        (name, f"is missing in model.safetensors, but has shape {shapes.get(name)} by config.json")
        for name in info["missing_keys"]
    ]
    wrong += [
        (name, "is in model.safetensors, but not in the model of config.json") for name in info["unexpected_keys"]
    ]
    if wrong:
        name, problem = min(wrong)
        raise UserError(
            f"the weights in {str(folder)!r} do not fit its config.json ({len(wrong)} do not): {name} {problem}."
        )
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' own loading report and bar away: `_model` says in one sentence what is wrong."""
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def _device() -> torch.device:
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
