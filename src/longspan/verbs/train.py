"""Train a model from a recipe: `train`, on the Hugging Face `Trainer`."""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from transformers import TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from longspan import recipes
from longspan.errors import UserError
from longspan.machine import imports
from longspan.machine.bars import hidden_bars
from longspan.machine.memory import peak_memory
from longspan.report import pictures
from longspan.report.card import model_card
from longspan.report.run_report import NAME as REPORT
from longspan.results import TrainingResult
from longspan.results.outputs import write_json, write_text
from longspan.results.scores import Scores
from longspan.tasks.base.task import Prepared, Recipe, Run
from longspan.training import processes
from longspan.training.base import LongspanTrainer
from longspan.training.callbacks import ReturnFreedMemory, SaveByAge, StopOnSignal, TokensPerSecond
from longspan.training.deadline import Deadline, check_limits
from longspan.training.stopping import EarlyStopping
from longspan.verbs import report_contents, unlabelled
from longspan.verbs.preparing import PreparedRun, prepare_run, prepare_whole_run
from longspan.verbs.run_folders import UNFINISHED, RunFolder, arguments_of
from longspan.verbs.trained import TrainedRun, trained


class Interrupted(KeyboardInterrupt):
    """Training was interrupted and has saved what it needs to continue."""


def train(
    recipe: Recipe | Path | str,
    overrides: Sequence[str] = (),
    run: Path | str | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    finish: bool = False,
    data: Any = None,
    allow_imports: Iterable[str] = (),
    progress: bool = True,
    **settings: Any,
) -> TrainedRun:
    """Train a recipe and fill a run folder with the trained model, its scores, and all that is needed to repeat it.

    The model kept is that of the best epoch on the validation split, or the last with `load_best_model_at_end=false`;
    the test split, where there is one, is scored once, at the end. Under `torchrun` or `accelerate launch` each process
    calls this: they share the work, and the first one alone reads the data from scratch and writes the run folder.

    Args:
        recipe: A recipe: a `Recipe`, a name that `longspan recipes` lists, or the path of a TOML file. A run folder
            means the recipe of that run.
        overrides: Strings such as "training.learning_rate=3e-4"; see `longspan.recipes.load`.
        run: The run folder; by default runs/RECIPE, or `recipe` if that is the folder of a run to continue.
        resume: Continue from the last checkpoint in `run`, with the same result as an uninterrupted run, or start
            where there is none yet. The recipe may have more epochs or steps than before, even if the run is finished.
            The learning rate then follows the schedule over the new number of steps, and the patience of early stopping
            is reset.
        overwrite: Replace a `run` that exists.
        finish: Make a complete run of the last checkpoint in `run`, without further training steps. With
            `load_best_model_at_end` the model where training was stopped is scored, too, and the best so far is kept.
        data: Training data instead of the recipe's: a path, a DataFrame of pandas or polars, or a `datasets.Dataset`.
            Also a dict of columns, a pair of inputs and targets, or a list of dicts. A dict of splits may have any of
            these.
        allow_imports: Packages or modules that dotted paths in the recipe may import.
        progress: Whether to show progress bars on standard error.
        settings: Keys of the recipe by their names, such as `dim=128, num_train_epochs=3`: see `longspan.recipes.load`.

    Raises:
        UserError: when `run` exists and not exactly one of `resume`, `overwrite` and `finish` is set. Also when there
            is nothing to finish, or when recipe or data are invalid.
        Interrupted: after ctrl-C or SIGTERM, when a checkpoint was saved.
    """
    with imports.allow(*allow_imports), hidden_bars(all_of_them=not progress):
        loaded = recipe if isinstance(recipe, Recipe) else recipes.load(recipe, overrides, settings=settings)
        if (overrides or settings) and isinstance(recipe, Recipe):
            raise UserError(
                "expected overrides only with a recipe's name or path, got a Recipe; change the Recipe instead."
            )
        if data is not None:
            recipes.check_one_source(overrides, settings)
            loaded = loaded.reading(data)
        loaded.require_data()
        folder = RunFolder.of(run, recipe, loaded.name, resume=resume, overwrite=overwrite, finish=finish)
        return trained(_train(loaded, folder, progress))


def _train(recipe: Recipe, folder: RunFolder, progress: bool) -> TrainingResult:
    began, start = time.perf_counter(), Deadline.clock()
    check_limits(recipe.options.max_minutes, recipe.training.get("max_steps", -1))
    recipe.task.check_packages()
    pictures.can_draw()
    processes.connect()
    arguments, recipe = arguments_of(recipe, folder, progress), folder.with_its_sample(recipe)
    with folder.claimed(recipe):
        own, texts = unlabelled.pretrained(recipe, lambda first, folder: _train_first(first, folder, progress))
        if own.start_from != recipe.start_from:
            # Masked words had a budget of their own.
            start = Deadline.clock()
        if folder.continues:
            # With the data that were read before.
            ready = prepare_whole_run(own, arguments.seed)
        else:
            ready = prepare_run(own, arguments.seed, Deadline.clock, start)
        if texts:
            ready.prepared.details["unlabelled"] = asdict(texts)
        # As it was given, but for a sample: what was learned first is in a cache.
        recipe = recipe.sampled(ready.recipe.data.sample)
        trainer = _make_trainer(ready, arguments, began)
        trainer.finishing = folder.start == "finish"
        # Only now: a mistake in the recipe neither costs an older run nor leaves a folder in the way of the next one.
        fixed = not vars(recipe.options).get("batch_tokens")
        checkpoint = folder.open(recipe, partial(_total_steps, trainer), trainer.batch_rows() if fixed else 0)
        minutes, test = ready.recipe.options.max_minutes, ready.prepared.splits.get("test")
        deadline = Deadline(trainer, minutes, test, start) if minutes and not trainer.finishing else None
        early = _learn(trainer, recipe, deadline, checkpoint, progress)
        result = _result(trainer, ready, folder, early, deadline)
        with processes.agreed():
            if processes.rank() == 0:
                _write_run(folder.path, trainer, ready.prepared, recipe, result)
                if arguments.push_to_hub:
                    trainer.push_to_hub()
        return result


def _train_first(recipe: Recipe, folder: RunFolder, progress: bool) -> None:
    """Learn from texts without labels."""
    try:
        _train(recipe, folder, progress)
    except Interrupted:
        raise Interrupted(
            "saved what was learned from texts without labels; run the same command again to continue"
        ) from None


def _make_trainer(ready: PreparedRun, arguments: TrainingArguments, began: float) -> LongspanTrainer:
    recipe, prepared = ready.recipe, ready.prepared
    trainer = processes.in_each(lambda: recipe.task.make_trainer(recipe, ready.model, arguments, prepared))
    if recipe.options.context_parallel > 1:
        trainer.cut_rows(recipe.options.context_parallel)
    trainer.raise_epochs_to(recipe.options.min_steps)
    trainer.layer_decay, trainer.average_last = recipe.options.layer_decay, recipe.options.average_last
    trainer.sessions.began, trainer.sessions.peak_memory = began, peak_memory
    trainer.processor = prepared.processor
    return trainer


def _learn(
    trainer: LongspanTrainer, recipe: Recipe, deadline: Deadline | None, checkpoint: Path | None, progress: bool
) -> EarlyStopping | None:
    """Train, and return what may have stopped it early."""
    if processes.rank():
        # Different rows need different dropout.
        set_seed(trainer.args.seed + processes.rank())
    bar = _add_callbacks(trainer, recipe.task.scores, progress)
    patience = recipe.options.early_stopping_patience
    early = EarlyStopping(patience) if patience else None
    hours = recipe.options.save_hours
    for callback in (early, deadline, SaveByAge(hours) if hours else None):
        if callback:
            trainer.add_callback(callback)
    with StopOnSignal() as stop:
        trainer.add_callback(stop)
        bar.started = time.perf_counter()
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        interrupted = processes.largest(stop.signal)
    if interrupted:
        raise Interrupted(
            f"saved step {trainer.state.global_step}; run the same command with --resume to continue, or with --finish "
            "to end here with a complete run"
        )
    if trainer.average_last:
        trainer.average()
        if trainer.averaged is not None and processes.rank() == 0 and progress:
            print(f"longspan: {trainer.averaged.announcement()}", file=sys.stderr)
    return early


def _result(
    trainer: LongspanTrainer,
    ready: PreparedRun,
    folder: RunFolder,
    early: EarlyStopping | None,
    deadline: Deadline | None,
) -> TrainingResult:
    scores, begun = _final_scores(trainer, ready.prepared), ready.begun
    trainer.count_sessions()
    return TrainingResult(
        task=ready.recipe.task.name,
        folder=str(folder.path),
        scores=scores,
        history=_history(trainer.state.log_history),
        kept_epoch=_kept_epoch(trainer),
        steps=trainer.state.global_step,
        epochs=trainer.state.epoch,
        planned_steps=trainer.state.max_steps,
        stopped="deadline" if deadline is not None and deadline.reached else _stopped(trainer, early),
        processes=processes.count(),
        tokens_per_second=trainer.sessions.tokens_per_second(),
        padding_fraction=trainer.padding_fraction(),
        peak_memory_bytes=trainer.sessions.peak_memory_bytes,
        parameters=ready.model.num_parameters(),
        seconds=trainer.sessions.seconds,
        word_vectors_found=ready.words,
        data=ready.prepared.data,
        details={
            **ready.prepared.details,
            **trainer.details(),
            **_selection(trainer, ready.recipe.task.scores),
            **({"averaged": asdict(trainer.averaged)} if trainer.averaged else {}),
            **({"start_from": asdict(begun)} if begun else {}),
        },
    )


def _total_steps(trainer: LongspanTrainer) -> int:
    *_, total = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    return int(total)


def _stopped(trainer: LongspanTrainer, early: EarlyStopping | None) -> Literal["early", "interrupted"] | None:
    """Return why training ended before its last planned step; None if it did not."""
    if trainer.state.global_step >= trainer.state.max_steps:
        return None
    return "early" if early is not None and early.has_stopped else "interrupted"


def _final_scores(trainer: LongspanTrainer, prepared: Prepared) -> dict[str, Scores]:
    """Return the scores of the model that was kept, those of the validation split from when it was evaluated."""
    return {
        name: trainer.validation_scores() if name == "validation" else trainer.score(split)
        for name, split in prepared.splits.items()
        if name != "train"
    }


def _add_callbacks(trainer: LongspanTrainer, kind: type[Scores], progress: bool) -> TokensPerSecond:
    """Replace the Trainer's own bar and printing with ours; return our bar."""
    if trainer.args.device.type == "cpu":
        trainer.add_callback(ReturnFreedMemory())
    best, higher = trainer.args.metric_for_best_model, trainer.args.greater_is_better
    bar = TokensPerSecond(kind.shown(), best, bool(higher))
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
    step = trainer.kept_step()
    if step == trainer.state.global_step:
        return trainer.state.epoch
    return next((row["epoch"] for row in trainer.state.log_history if row["step"] == step), None)


#: Validation rows below which the choice of the epoch comes with its uncertainty.
FEW_ROWS = 500


def _selection(trainer: LongspanTrainer, kind: type[Scores]) -> dict[str, Any]:
    """Uncertainty of the choice among epochs as `selection`; nothing for many rows, or a score that is no share.

    The variance of a mean of n shares p is at most p (1 - p) / n; one right and one wrong row more keep it above 0.
    """
    metric, rows = str(trainer.args.metric_for_best_model).removeprefix("eval_"), len(trainer.eval_dataset)
    score = metric if kind.is_share(metric) else kind.headline()
    values = [row[f"eval_{score}"] for row in trainer.state.log_history if f"eval_{score}" in row]
    if not trainer.args.load_best_model_at_end or not kind.is_share(score) or rows >= FEW_ROWS or len(values) < 2:
        return {}
    best = (max if kind.higher_is_better(score) else min)(values)
    share = (rows * best + 1) / (rows + 2)
    error = (share * (1 - share) / rows) ** 0.5
    close = sum(abs(value - best) <= error for value in values)
    return {"selection": {"score": score, "rows": rows, "standard_error": error, "epochs": len(values), "close": close}}


def _write_run(
    run_dir: Path, trainer: LongspanTrainer, prepared: Prepared, recipe: Recipe, result: TrainingResult
) -> None:
    """Write model, processor, figures and card; `metrics.json`, which marks a run as finished, comes last."""
    if not (run_dir / "recipe.toml").is_file():
        raise UserError(
            f"expected recipe.toml in {run_dir}, as this training run wrote it, got none; leave the folder alone while "
            "a model is trained in it, and train again."
        )
    # Under a name that nobody else has chosen, so that it is no link.
    unfinished = Path(tempfile.mkdtemp(dir=run_dir, prefix=UNFINISHED))
    try:
        # Pushed to the Hub when all of it is written.
        trainer.save_model(str(unfinished), _internal_call=True)
        prepared.processor.save_pretrained(str(unfinished))
        (unfinished / "training_args.bin").unlink(missing_ok=True)
        curve = unfinished / "learning_curve.png"
        pictures.learning_curve(result.history, recipe.task.scores, curve)
        mixers, table = recipe.model.get("mixers", ["additive"]), recipe.task.data_table(result.data, "github")
        write_text(unfinished / "README.md", model_card(recipe, result, mixers, table, curve=curve.exists()))
        run = Run(run_dir, trainer.model, prepared.processor, recipe)
        report = report_contents.after_training(run, result, unfinished, prepared.splits["validation"])
        report.save(unfinished / REPORT)
        write_json(unfinished / "metrics.json", result.to_dict())
        for path in sorted(unfinished.iterdir(), key=lambda path: path.name == "metrics.json"):
            if path.is_dir() and (run_dir / path.name).is_dir():
                # Unlike a file, a folder takes the place of none that has files.
                shutil.rmtree(run_dir / path.name)
            path.replace(run_dir / path.name)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"expected to write the trained model to {run_dir}, but writing failed ({error}); the checkpoints are "
            f"kept: free some space, then run the same command with {'--finish' if trainer.finishing else '--resume'}."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
