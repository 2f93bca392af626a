"""Train a model from a recipe: `train`, on the Hugging Face `Trainer`."""

import contextlib
import json
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from longspan import imports, recipes
from longspan.environment import environment, peak_memory
from longspan.errors import UserError
from longspan.models.word_vectors import load_word_vectors
from longspan.report import pictures
from longspan.report.card import model_card
from longspan.results import TrainingResult
from longspan.scores import Scores
from longspan.tasks.base import Prepared
from longspan.tasks.recipe import Recipe
from longspan.training import checkpoints, processes
from longspan.training.base import LongspanTrainer
from longspan.training.callbacks import ReturnFreedMemory, StopOnSignal, TokensPerSecond, tokens_per_second
from longspan.training.reporting import check_reporters

CHECKPOINTS = "checkpoints"


class Interrupted(KeyboardInterrupt):
    """Training was interrupted and has saved what it needs to continue."""


def train(
    recipe: Recipe | Path | str,
    overrides: Sequence[str] = (),
    run: Path | str | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    allow_imports: Iterable[str] = (),
    progress: bool = True,
) -> TrainingResult:
    """Train a recipe and fill a run folder with the trained model, its scores, and all that is needed to repeat it.

    The model kept is that of the best epoch on the validation split, or the last with `load_best_model_at_end=false`;
    the test split, where there is one, is scored once, at the end. Under `torchrun` or `accelerate launch` each process
    calls this: they share the work, and the first one alone reads the data from scratch and writes the run folder.

    Args:
        recipe: What to train: a recipe, the name of one that comes with longspan, or the path of a TOML file.
        overrides: Strings such as "training.learning_rate=3e-4"; see `longspan.recipes.load`.
        run: The run folder; by default runs/RECIPE.
        resume: Continue from the last checkpoint in `run`, with the same result as an uninterrupted run.
        overwrite: Replace a `run` that exists.
        allow_imports: Packages or modules that dotted paths in the recipe may import.
        progress: Whether to show progress bars on standard error.

    Raises:
        UserError: when `run` exists and neither `resume` nor `overwrite` is set, when there is nothing to resume,
            or when recipe or data are invalid.
        Interrupted: after ctrl-C or SIGTERM, when a checkpoint was saved.
    """
    with imports.allow(*allow_imports):
        if not isinstance(recipe, Recipe):
            recipe = recipes.load(str(recipe), overrides)
        elif overrides:
            raise UserError(
                "expected overrides only with a recipe's name or path, got a Recipe; change the Recipe instead."
            )
        recipe.require_data()
        return _train(recipe, Path(run or Path("runs", recipe.name)), resume, overwrite, progress)


def _train(recipe: Recipe, run_dir: Path, resume: bool, overwrite: bool, progress: bool) -> TrainingResult:
    began = time.perf_counter()
    task = recipe.task
    processes.connect()
    arguments = _arguments(recipe, run_dir, progress)
    processes.on_first(lambda: _check_run(recipe, run_dir, resume, overwrite))
    prepared = processes.in_turn(lambda: _prepare(recipe))
    set_seed(arguments.seed)
    model, words = processes.in_each(lambda: _build_model(recipe, prepared))
    trainer = _make_trainer(recipe, model, arguments, prepared)
    # Only now: a mistake in the recipe neither costs an older run nor leaves a folder in the way of the next attempt.
    processes.on_first(lambda: _open_run(recipe, run_dir, resume))
    checkpoint = checkpoints.to_resume_from(run_dir / CHECKPOINTS)
    if processes.rank():
        # Different rows need different dropout.
        set_seed(arguments.seed + processes.rank())
    bar = _add_callbacks(trainer, task.scores, progress)
    with StopOnSignal() as stop:
        trainer.add_callback(stop)
        bar.started = time.perf_counter()
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        rate = processes.total([tokens_per_second(trainer, bar.started)])[0]
        stopped = processes.largest(stop.signal)
    if stopped:
        raise Interrupted(f"saved step {trainer.state.global_step}; run the same command with --resume to continue")

    result = TrainingResult(
        task=task.name,
        folder=str(run_dir),
        scores=_final_scores(trainer, prepared),
        history=_history(trainer.state.log_history),
        kept_epoch=_kept_epoch(trainer),
        steps=trainer.state.global_step,
        processes=processes.count(),
        tokens_per_second=rate,
        padding_fraction=trainer.padding_fraction(),
        peak_memory_bytes=peak_memory(),
        parameters=model.num_parameters(),
        seconds=time.perf_counter() - began,
        word_vectors_found=words,
        data=prepared.data,
        details=prepared.details,
    )
    processes.on_first(lambda: _write_run(run_dir, trainer, prepared, recipe, result))
    return result


def _prepare(recipe: Recipe) -> Prepared:
    prepared = recipe.task.prepare(recipe)
    if "validation" not in prepared.splits:
        raise UserError("expected a validation split, got none; set data.validation or data.validation_fraction.")
    return prepared


def _build_model(recipe: Recipe, prepared: Prepared) -> tuple[PreTrainedModel, int | None]:
    """Return a new model, and for how many tokens the recipe has word vectors, if it names any."""
    model = recipe.task.build_model(recipe, prepared)
    path = recipe.options.word_vectors
    words = load_word_vectors(model.get_input_embeddings(), prepared.processor, Path(path)) if path else None
    return model, words


def _make_trainer(
    recipe: Recipe, model: PreTrainedModel, arguments: TrainingArguments, prepared: Prepared
) -> LongspanTrainer:
    try:
        return processes.in_each(lambda: recipe.task.make_trainer(recipe, model, arguments, prepared))
    except Exception:
        # The Trainer makes its folder at once.
        made_at_once = Path(arguments.output_dir)
        for folder in (made_at_once, made_at_once.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _final_scores(trainer: LongspanTrainer, prepared: Prepared) -> dict[str, Scores]:
    """Return the scores of the model that was kept, those of the validation split from when it was evaluated."""
    return {
        name: trainer.validation_scores() if name == "validation" else trainer.score(split)
        for name, split in prepared.splits.items()
        if name != "train"
    }


def _check_run(recipe: Recipe, run_dir: Path, resume: bool, overwrite: bool) -> None:
    """Raise UserError unless `run_dir` may be written."""
    written = run_dir / "recipe.toml"
    if resume:
        if not written.exists():
            raise UserError(f"expected a run to resume in {run_dir}, got none; leave out --resume to start it.")
        if (run_dir / "metrics.json").exists():
            raise UserError(f"the run in {run_dir} is finished; see {run_dir / 'metrics.json'}, or --overwrite it.")
        if written.read_text(encoding="utf-8") != recipe.to_toml():
            raise UserError(
                f"expected the recipe that {run_dir} was started with, got another; give the same recipe and "
                f"overrides, or `longspan train {written} --run {run_dir} --resume`."
            )
    elif run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        if not overwrite:
            raise UserError(
                f"the run folder {run_dir} exists; --resume continues it, --overwrite replaces it, and "
                "--run names another."
            )
        if not written.exists():
            raise UserError(f"{run_dir} is not a run folder, so it is not overwritten; name another with --run.")


def _open_run(recipe: Recipe, run_dir: Path, resume: bool) -> None:
    """Make an empty run folder in place of what is there, unless that is to be resumed."""
    if resume:
        return
    if run_dir.exists():
        shutil.rmtree(run_dir)
    run_dir.mkdir(parents=True)
    (run_dir / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    _write_json(run_dir / "environment.json", environment())


def _arguments(recipe: Recipe, run_dir: Path, progress: bool) -> TrainingArguments:
    chosen = recipe.training
    evaluated = chosen.get("eval_strategy", "epoch")
    defaults = {
        "eval_strategy": "epoch",
        # What is saved is what was scored; without scores there is no best model.
        "save_strategy": "epoch" if evaluated == "no" else evaluated,
        "logging_strategy": "steps",
        "logging_steps": 0.02,
        "load_best_model_at_end": evaluated != "no",
        "metric_for_best_model": recipe.task.scores.headline(),
        "greater_is_better": recipe.task.scores.higher_is_better(),
        # The best and the newest: with 1, the newest is deleted unless it is the best, and the run cannot be resumed.
        "save_total_limit": 2,
        "optim": "adamw_torch_fused",
        "report_to": "none",
        "disable_tqdm": not progress,
        # Otherwise processes without a GPU would not find each other.
        "use_cpu": not torch.accelerator.is_available(),
        # All weights take part in each step.
        "ddp_find_unused_parameters": False,
        "ddp_timeout": int(processes.PATIENCE.total_seconds()),
        "log_level_replica": "error",
        "remove_unused_columns": False,
    }
    try:
        arguments = TrainingArguments(output_dir=str(run_dir / CHECKPOINTS), **{**defaults, **chosen})
    except (ValueError, TypeError) as error:
        raise UserError(f"the recipe's [training] does not fit together: {error}") from error
    check_reporters(arguments.report_to)
    return arguments


def _add_callbacks(trainer: LongspanTrainer, kind: type[Scores], progress: bool) -> TokensPerSecond:
    """Replace the Trainer's own bar and printing with ours; return our bar."""
    if trainer.args.device.type == "cpu":
        trainer.add_callback(ReturnFreedMemory())
    bar = TokensPerSecond(kind.shown())
    bar.trainer = trainer
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    if progress:
        trainer.add_callback(bar)
    return bar


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


def _kept_epoch(trainer: LongspanTrainer) -> float | None:
    """Return the epoch whose model the trainer holds."""
    if not trainer.args.load_best_model_at_end:
        return trainer.state.epoch
    best = trainer.state.best_global_step
    return next((row["epoch"] for row in trainer.state.log_history if row["step"] == best), None)


def _write_run(
    run_dir: Path, trainer: LongspanTrainer, prepared: Prepared, recipe: Recipe, result: TrainingResult
) -> None:
    """Write model, tokenizer, pictures and card; `metrics.json`, which marks a run as finished, comes last."""
    unfinished = run_dir / ".unfinished"
    try:
        trainer.save_model(str(unfinished))
        prepared.processor.save_pretrained(str(unfinished))
        (unfinished / "training_args.bin").unlink(missing_ok=True)
        pictures.learning_curve(result.history, recipe.task.scores, unfinished / "learning_curve.png")
        parts = recipe.task.card_parts(recipe, result)
        mixers = recipe.model.get("mixers", ["additive"])
        table = recipe.task.data_table(result.data, "github")
        card = model_card(recipe.name, recipe.description, mixers, result, table, parts)
        (unfinished / "README.md").write_text(card, encoding="utf-8")
        _write_json(unfinished / "metrics.json", result.to_dict())
        for path in sorted(unfinished.iterdir(), key=lambda path: path.name == "metrics.json"):
            path.replace(run_dir / path.name)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"expected to write the trained model to {run_dir}, got an error ({error}), with the checkpoints kept; "
            "free some space, then run the same command with --resume."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
