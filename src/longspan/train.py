"""Train a model from a recipe: `train`, on the Hugging Face `Trainer`."""

import importlib
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from safetensors import SafetensorError
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import EvalPrediction

from longspan import report
from longspan.data.batches import LengthBatches, pad
from longspan.environment import environment
from longspan.errors import UserError
from longspan.models.word_vectors import load_word_vectors
from longspan.recipes import OWN_TRAINING_KEYS, Recipe

CHECKPOINTS = "checkpoints"


class Interrupted(KeyboardInterrupt):
    """Training was interrupted and has saved what it needs to go on."""


class LengthTrainer(Trainer):
    """A `Trainer` that batches by length, counts tokens, and keeps the last good checkpoint when a save fails.

    Args:
        batch_tokens: most padded tokens in one batch (a longer document goes alone); 0 for no limit.
    """

    def __init__(self, *args: Any, batch_tokens: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batch_tokens = batch_tokens
        self.real_tokens = 0
        self.padded_tokens = 0
        self.seconds_not_training = 0.0

    def get_train_dataloader(self) -> DataLoader:
        return self._by_length(self.train_dataset, self._train_batch_size, shuffle=True)

    def get_eval_dataloader(self, eval_dataset: Dataset | None = None) -> DataLoader:
        return self._by_length(
            self.eval_dataset if eval_dataset is None else eval_dataset, self.args.eval_batch_size, shuffle=False
        )

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        return self.get_eval_dataloader(test_dataset)

    def _by_length(self, dataset: Dataset, batch_size: int, *, shuffle: bool) -> DataLoader:
        batches = LengthBatches(
            dataset["length"],
            batch_size,
            max_tokens=self.batch_tokens,
            shuffle=shuffle,
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
            drop_last=self.args.dataloader_drop_last and shuffle,
        )
        loader = DataLoader(
            dataset.select_columns(["input_ids", "labels"]).with_format("numpy"),
            batch_sampler=batches,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type == "cuda",
        )
        prepared: DataLoader = self.accelerator.prepare(loader)
        return prepared

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        mask = inputs["attention_mask"]
        self.real_tokens += int(mask.sum())
        self.padded_tokens += mask.numel()
        loss: torch.Tensor = super().training_step(model, inputs, *args, **kwargs)
        return loss

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        start = time.perf_counter()
        scores: dict[str, float] = super().evaluate(*args, **kwargs)
        self.seconds_not_training += time.perf_counter() - start
        return scores

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        start = time.perf_counter()
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:
            # torch and safetensors report a full disk as errors of their own.
            folder = Path(self.args.output_dir)
            shutil.rmtree(folder / f"checkpoint-{self.state.global_step}", ignore_errors=True)
            kept = last_checkpoint(folder)
            raise UserError(
                f"expected to save a checkpoint at step {self.state.global_step}, but writing failed ({error}); "
                + (f"{kept.name} is kept: " if kept else "no earlier checkpoint exists: ")
                + "free some space, then run the same command with --resume."
            ) from error
        self.seconds_not_training += time.perf_counter() - start


class TokensPerSecond(ProgressCallback):
    """The `Trainer`'s progress bar with real tokens per second (padding not counted) and the last loss."""

    def __init__(self) -> None:
        super().__init__()
        self.trainer: LengthTrainer | None = None
        self.started = 0.0
        self.loss = ""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None:
            self.training_bar.set_description("Training")

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        super().on_step_end(args, state, control, **kwargs)
        if self.training_bar is not None and self.trainer is not None:
            rate = tokens_per_second(self.trainer, self.started)
            self.training_bar.set_postfix_str(f"{rate:,.0f} tokens/s{self.loss}", refresh=False)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.loss = f", loss {logs['loss']:.3f}"
        if logs and "eval_accuracy" in logs and self.training_bar is not None:
            scores = f"validation loss {logs['eval_loss']:.3f}, accuracy {logs['eval_accuracy']:.4f}"
            self.training_bar.write(f"epoch {state.epoch:.2f}: {scores}", file=sys.stderr)


class StopOnSignal(TrainerCallback):
    """On ctrl-C or SIGTERM, finish the step, save a checkpoint and stop; a second ctrl-C stops at once."""

    def __init__(self) -> None:
        self.signal = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.signal:
            control.should_save = True
            control.should_training_stop = True


def train(
    recipe: Recipe, run_dir: Path, *, resume: bool = False, overwrite: bool = False, progress: bool = True
) -> dict[str, Any]:
    """Train `recipe` and fill `run_dir` with the best model, its scores, and all that is needed to repeat it.

    The best epoch is chosen on the validation split; the test split, where there is one, is scored once, at the end.
    Returns what `metrics.json` holds: scores per split, `history`, `tokens_per_second` (real tokens, evaluation and
    saving not counted), `peak_memory_bytes`, `parameters`, `seconds`, `padding_fraction` and the `data` table.

    Args:
        recipe: what to train.
        run_dir: folder to write.
        resume: go on from the last checkpoint in `run_dir`, with the same result as an uninterrupted run.
        overwrite: replace a `run_dir` that exists.
        progress: whether to show progress bars on standard error.

    Raises:
        UserError: when `run_dir` exists and neither `resume` nor `overwrite` is set, when there is nothing to resume,
            or when recipe or data are faulty.
        Interrupted: after ctrl-C or SIGTERM, when a checkpoint was saved.
    """
    began = time.perf_counter()
    checkpoint = _open_run(recipe, run_dir, resume, overwrite)
    task = importlib.import_module(f"longspan.tasks.{recipe.task}")
    prepared = task.prepare(recipe.data)
    if "validation" not in prepared.splits:
        raise UserError("training needs a validation split, got none; set data.validation or data.validation_fraction.")
    arguments = _arguments(recipe, run_dir, progress)
    set_seed(arguments.seed)
    model = task.build_model(recipe.model, prepared)
    words = None
    if recipe.training.get("word_vectors"):
        words = load_word_vectors(
            model.get_input_embeddings(), prepared.tokenizer, Path(recipe.training["word_vectors"])
        )
    trainer, bar = _trainer(model, arguments, recipe, prepared, task, progress)
    with StopOnSignal() as stop:
        trainer.add_callback(stop)
        bar.started = time.perf_counter()
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        rate = tokens_per_second(trainer, bar.started)
    if stop.signal:
        raise Interrupted(f"saved step {trainer.state.global_step}; run the same command with --resume to go on")

    scores = {
        name: task.score(*_predict(trainer, split), prepared.labels)
        for name, split in prepared.splits.items()
        if name != "train"
    }
    result = {
        **scores,
        "history": _history(trainer.state.log_history),
        "best_epoch": _best_epoch(trainer),
        "tokens_per_second": rate,
        "padding_fraction": 1 - trainer.real_tokens / max(1, trainer.padded_tokens),
        "peak_memory_bytes": peak_memory(),
        "parameters": model.num_parameters(),
        "seconds": time.perf_counter() - began,
        "steps": trainer.state.global_step,
        "word_vectors_found": words,
        "labels": prepared.labels,
        "data": prepared.report,
    }
    _write_run(run_dir, trainer, prepared.tokenizer, recipe, result)
    return result


def _open_run(recipe: Recipe, run_dir: Path, resume: bool, overwrite: bool) -> Path | None:
    """Make `run_dir` ready and return the checkpoint to go on from, if any."""
    written = run_dir / "recipe.toml"
    if resume:
        if not written.exists():
            raise UserError(f"expected a run to resume in {run_dir}, found none; leave out --resume to start it.")
        if (run_dir / "metrics.json").exists():
            raise UserError(f"the run in {run_dir} is finished; see {run_dir / 'metrics.json'}, or --overwrite it.")
        if written.read_text(encoding="utf-8") != recipe.to_toml():
            raise UserError(
                f"expected the recipe that {run_dir} was started with, got another; give the same recipe and "
                f"overrides, or `longspan train {written} --run {run_dir} --resume`."
            )
        return last_checkpoint(run_dir / CHECKPOINTS)
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        if not overwrite:
            raise UserError(
                f"the run folder {run_dir} exists; --resume goes on with it, --overwrite replaces it, --run names another."
            )
        if not written.exists():
            raise UserError(f"{run_dir} is no run folder, so it is not overwritten; name another with --run.")
        shutil.rmtree(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    written.write_text(recipe.to_toml(), encoding="utf-8")
    _write_json(run_dir / "environment.json", environment())
    return None


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint in `folder`; what a killed save left behind does not count."""
    complete = []
    for path in folder.glob("checkpoint-*"):
        try:
            # The Trainer writes this file last.
            complete.append((json.loads((path / "trainer_state.json").read_text())["global_step"], path))
        except (OSError, ValueError, KeyError):
            shutil.rmtree(path, ignore_errors=True)
    return max(complete)[1] if complete else None


def _arguments(recipe: Recipe, run_dir: Path, progress: bool) -> TrainingArguments:
    chosen = {key: value for key, value in recipe.training.items() if key not in OWN_TRAINING_KEYS}
    defaults = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "steps",
        "logging_steps": 0.02,
        "load_best_model_at_end": True,
        "metric_for_best_model": "accuracy",
        "save_total_limit": 1,
        "optim": "adamw_torch_fused",
        "report_to": "none",
        "disable_tqdm": not progress,
        "remove_unused_columns": False,
    }
    try:
        return TrainingArguments(output_dir=str(run_dir / CHECKPOINTS), **{**defaults, **chosen})
    except (ValueError, TypeError) as error:
        raise UserError(f"the recipe's [training] does not fit together: {error}") from error


def _trainer(
    model: PreTrainedModel, arguments: TrainingArguments, recipe: Recipe, prepared: Any, task: Any, progress: bool
) -> tuple[LengthTrainer, TokensPerSecond]:
    def scores(prediction: EvalPrediction) -> dict[str, float]:
        every = task.score(prediction.predictions, prediction.label_ids, prepared.labels)
        return {name: value for name, value in every.items() if isinstance(value, float)}

    trainer = LengthTrainer(
        model,
        arguments,
        train_dataset=prepared.splits["train"],
        eval_dataset=prepared.splits["validation"],
        data_collator=Collator(prepared.tokenizer.pad_token_id),
        compute_metrics=scores,
        batch_tokens=recipe.training.get("batch_tokens", 0),
    )
    bar = TokensPerSecond()
    bar.trainer = trainer
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    if progress:
        trainer.add_callback(bar)
    return trainer, bar


class Collator:
    """Pads a batch of examples on the right."""

    def __init__(self, pad_id: int) -> None:
        self.pad_id = pad_id

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return pad(examples, self.pad_id)


def tokens_per_second(trainer: LengthTrainer, started: float) -> float:
    """Return real tokens trained per second since `started`, evaluations and saves not counted."""
    return trainer.real_tokens / max(1e-9, time.perf_counter() - started - trainer.seconds_not_training)


def _predict(trainer: LengthTrainer, split: Dataset) -> tuple[np.ndarray, np.ndarray]:
    output = trainer.predict(split)
    return output.predictions, output.label_ids


def _history(log: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the Trainer's log with our names: training loss by step, validation scores by epoch."""
    entries = []
    for row in log:
        entry = {"epoch": row["epoch"], "step": row["step"]}
        if "loss" in row:
            entry["train_loss"] = row["loss"]
        entry |= {
            key.replace("eval_", "validation_", 1): value
            for key, value in row.items()
            if key.startswith("eval_") and not key.endswith(("runtime", "per_second"))
        }
        if len(entry) > 2:
            entries.append(entry)
    return entries


def _best_epoch(trainer: LengthTrainer) -> float | None:
    best = trainer.state.best_global_step
    return next((row["epoch"] for row in trainer.state.log_history if row["step"] == best), None)


def peak_memory() -> int:
    """Return the most memory used so far in bytes: of the GPU where there is one, otherwise of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _write_run(run_dir: Path, trainer: LengthTrainer, tokenizer: Any, recipe: Recipe, result: dict[str, Any]) -> None:
    """Write model, tokenizer, pictures and card; `metrics.json`, which marks a run as finished, comes last."""
    unfinished = run_dir / ".unfinished"
    try:
        trainer.save_model(str(unfinished))
        tokenizer.save_pretrained(str(unfinished))
        (unfinished / "training_args.bin").unlink(missing_ok=True)
        report.learning_curve(result["history"], unfinished / "learning_curve.png")
        (unfinished / "README.md").write_text(report.model_card(recipe, result), encoding="utf-8")
        _write_json(unfinished / "metrics.json", result)
        for path in sorted(unfinished.iterdir(), key=lambda path: path.name == "metrics.json"):
            os.replace(path, run_dir / path.name)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"expected to write the trained model to {run_dir}, but writing failed ({error}); the checkpoints are "
            "kept: free some space, then run the same command with --resume."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
