"""Score a trained model on labelled documents: `evaluate`; and what predicting shares with it."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors import SafetensorError
from torch import Tensor
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from longspan import recipes, tasks
from longspan.data.batches import LengthBatches, pad, padding_fraction
from longspan.data.sources import load_splits
from longspan.data.tokens import tokenize, truncation_table
from longspan.errors import UserError, suggestion
from longspan.models import LongspanConfig
from longspan.report import pictures


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


def evaluate(run_dir: Path | str, data: str | None = None, split: str = "test") -> dict[str, Any]:
    """Score a run on one split of its own data, or on other data.

    Args:
        run_dir: The run folder.
        data: A file or folder in any form a recipe's `data.path` takes; all of it is scored unless it has splits of
            its own. None is the run's own data.
        split: Which split to score.

    Returns:
        The scores of `longspan.metrics.metrics`, and `split`, `data`, `documents`, `labels`, `truncation` (how
        many documents were cut and by how much), `padding_fraction` (of the computed positions), `skipped` (rows left
        out, by reason) and `folder`, where `metrics.json`, `confusion.png` and `calibration.png` are written.

    Raises:
        UserError: No such run or split, or a label the model was not trained on.
    """
    run = load_run(run_dir)
    documents, skipped, split = _documents(run, data, split)
    unknown = sorted(set(documents.unique("label")) - set(run.labels))
    if unknown:
        known = ", ".join(run.labels[:20]) + (", ..." if len(run.labels) > 20 else "")
        raise UserError(
            f"the {split} data hold the label {unknown[0]!r}, which the model was not trained on (it knows {known}): "
            "remove those rows or train again."
        )
    numbers = {name: number for number, name in enumerate(run.labels)}
    tokens = tokenize(documents, run.tokenizer, run.recipe.data, numbers, f"Tokenising {split}")
    lengths = tokens["length"][:]
    batches = make_batches(run, lengths)
    output = logits(run, tokens.select_columns("input_ids").with_format("numpy"), batches, progress=True)
    scores = tasks.load(run.recipe.task).score(output, torch.tensor(tokens["labels"][:]), run.labels)
    folder = run.folder / "evaluation"
    folder.mkdir(exist_ok=True)
    result = {
        "split": split,
        "data": data or getattr(run.recipe.data, split) or run.recipe.data.path,
        "documents": len(tokens),
        "labels": run.labels,
        **scores,
        "truncation": truncation_table(tokens),
        "padding_fraction": padding_fraction(batches, lengths),
        "skipped": skipped,
        "folder": str(folder),
    }
    (folder / "metrics.json").write_text(json.dumps(result, indent=2, ensure_ascii=False), encoding="utf-8")
    pictures.confusion(scores["confusion"], run.labels, folder / "confusion.png")
    pictures.calibration(scores["reliability"], scores["calibration_error"], folder / "calibration.png")
    return result


def make_batches(run: Run, lengths: Sequence[int]) -> list[list[int]]:
    """Group documents of similar length into batches as large as in the run's evaluations, longest first."""
    training = run.recipe.training
    size, tokens = training["per_device_eval_batch_size"], training["batch_tokens"]
    return list(LengthBatches(lengths, size, max_tokens=tokens, shuffle=False))


@torch.inference_mode()
def logits(
    run: Run, examples: Dataset | Sequence[dict[str, Any]], batches: Sequence[list[int]], *, progress: bool = False
) -> Tensor:
    """Return the model's outputs.

    Args:
        run: The run.
        examples: `n` rows with `input_ids`.
        batches: Row numbers, each of which occurs once.
        progress: Whether to show a bar on standard error.

    Returns:
        `(n, c)` float32 on the CPU, in the order of `examples`, whatever the order of `batches`.
    """
    result = torch.empty(len(examples), len(run.labels))
    for batch in tqdm(batches, desc="Scoring", unit="batch", disable=not progress):
        padded = pad([{"input_ids": examples[row]["input_ids"]} for row in batch], run.tokenizer.pad_token_id)
        output = run.model(**{name: tensor.to(run.model.device) for name, tensor in padded.items()})
        result[batch] = output.logits.float().cpu()
    return result


def _documents(run: Run, data: str | None, split: str) -> tuple[Dataset, Any, str]:
    """The rows to score, those skipped, and the split's name."""
    config = run.recipe.data
    if data is not None:
        config = dataclasses.replace(
            config,
            path=str(data),
            train="",
            validation="",
            test="",
            validation_fraction=0.0,
            test_fraction=0.0,
            classes=0,
            files_per_class=0,
        )
    loaded = load_splits(config, training=False)
    if data is not None and set(loaded.splits) == {"train"}:
        return loaded.splits["train"], loaded.skipped, "all"
    if split not in loaded.splits:
        found = ", ".join(loaded.splits)
        raise UserError(
            f"{data or config.path or 'the data of this run'!r} has no split {split!r} but {found}: name one with "
            "--split, or other data with --data."
        )
    return loaded.splits[split], loaded.skipped, split


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
