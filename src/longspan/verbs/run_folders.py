"""What a training run finds in its folder: nothing, a run to replace, to resume, or to finish where it was stopped."""

import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from longspan import recipes
from longspan.environment import environment
from longspan.errors import UserError
from longspan.tasks.recipe import Recipe
from longspan.training import checkpoints
from longspan.training.budget import Plan

CHECKPOINTS = "checkpoints"

Start = Literal["new", "overwrite", "resume", "finish"]
"""How a training run starts."""

#: What a run that is resumed may be given more of.
MORE = ("training.num_train_epochs", "training.max_steps", "training.max_minutes")

_NAMED = 3


def how(*, resume: bool, overwrite: bool, finish: bool) -> Start:
    """Return how a run starts. Raises UserError if more than one way is asked for."""
    ways: dict[Start, bool] = {"resume": resume, "overwrite": overwrite, "finish": finish}
    chosen = [name for name, given in ways.items() if given]
    if len(chosen) > 1:
        raise UserError(f"expected one of resume, overwrite and finish, got {' and '.join(chosen)}; choose one.")
    return chosen[0] if chosen else "new"


def named(recipe: Recipe | Path | str, start: Start) -> Path | None:
    """Return the run folder that is given as the recipe to continue or replace it; None if it is no folder."""
    if start != "new" and not isinstance(recipe, Recipe) and Path(recipe).is_dir():
        return Path(recipe)
    return None


def check(recipe: Recipe, run_dir: Path, start: Start) -> None:
    """Raise UserError unless a run of `recipe` may `start` in `run_dir`."""
    written = run_dir / "recipe.toml"
    if start in ("resume", "finish"):
        if not written.exists():
            raise UserError(f"expected a run to {start} in {run_dir}, got none; leave out --{start} to start it.")
        before = recipes.load(str(written))
        _check_same(before, recipe, run_dir, start)
        result = _result(run_dir)
        if result is not None:
            _check_goes_on(before, recipe, run_dir, start, result)
    elif run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        if start == "new":
            raise UserError(
                f"the run folder {run_dir} exists; --resume continues it, --finish ends it where it was stopped, "
                "--overwrite replaces it, and --run names another."
            )
        if not written.exists():
            raise UserError(f"{run_dir} is not a run folder, so it is not overwritten; name another with --run.")


def check_steps(total: int, asked: Recipe, checkpoint: Path, run_dir: Path) -> None:
    """Raise UserError unless a run is to take as many steps as planned before, or more if it is finished.

    Args:
        total: The steps that it is to take in all.
        asked: The recipe that this comes from.
        checkpoint: The checkpoint it is resumed from.
        run_dir: The run folder.
    """
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    planned, result = int(state["max_steps"]), _result(run_dir)
    finished = result is not None and result.get("stopped") != "interrupted"
    if total < planned or (finished and total == planned):
        steps, minutes = asked.training.get("max_steps", -1), asked.options.max_minutes
        said = f"max_steps={steps}" if steps > 0 else f"num_train_epochs={asked.training['num_train_epochs']}"
        said = f"max_minutes={minutes:g}" if minutes else said
        raise UserError(
            f"expected {'more than' if finished else 'at least'} the {planned:,} steps that were planned for the run "
            f"in {run_dir} before, got {total:,} from training.{said}; raise it."
        )


def open_folder(recipe: Recipe, plan: Plan | None, run_dir: Path, start: Start) -> None:
    """Make an empty run folder in place of what is there, or, to resume it, note what it was given more of.

    Args:
        recipe: The recipe as it is trained.
        plan: What its time budget came to, if it was planned now.
        run_dir: The run folder.
        start: How the run starts.
    """
    written = run_dir / "recipe.toml"
    if start in ("new", "overwrite"):
        if run_dir.exists():
            shutil.rmtree(run_dir)
        run_dir.mkdir(parents=True)
        if plan is not None:
            plan.write(run_dir)
        written.write_text(recipe.to_toml(), encoding="utf-8")
        text = json.dumps(environment(), indent=2, ensure_ascii=False)
        (run_dir / "environment.json").write_text(f"{text}\n", encoding="utf-8")
    elif start == "resume":
        # In this order: the run is unfinished from here on, whatever happens next. Its model stays until the next one.
        (run_dir / "metrics.json").unlink(missing_ok=True)
        if plan is not None:
            plan.write(run_dir)
        unfinished = run_dir / ".recipe.toml"
        unfinished.write_text(recipe.to_toml(), encoding="utf-8")
        unfinished.replace(written)


def _check_same(before: Recipe, recipe: Recipe, run_dir: Path, start: Start) -> None:
    """Raise UserError if settings differ from those of the run before, other than by more steps to take."""
    allowed = MORE if start == "resume" else ()
    changes = [change for change in _changes(before, recipe) if change[0] not in allowed]
    if changes:
        told = [f"{key} is {_shown(new)} ({_shown(old)} before)" for key, old, new in changes[:_NAMED]]
        told += [f"{len(changes) - _NAMED} more differ"] if len(changes) > _NAMED else []
        more = f" with --resume only {_listed(MORE)} may be larger;" if start == "resume" else ""
        raise UserError(
            f"expected the recipe that {run_dir} was started with, but {_listed(told)};{more} give the same "
            f"recipe and overrides, or `longspan train {run_dir} --{start}`."
        )
    for key, old, new in _changes(before, recipe):
        # Without a number of steps, or with -1, epochs decide, and how many steps they have is known later.
        if old is not None and new is not None and min(old, new) > 0 and new < old:
            raise UserError(
                f"expected {key} to be at least {old}, as when {run_dir} was started, got {new}; to end the run where "
                "it was stopped, use --finish."
            )


def _check_goes_on(before: Recipe, recipe: Recipe, run_dir: Path, start: Start, result: Mapping[str, Any]) -> None:
    """Raise UserError unless a finished run is given more steps, or is to take those it had been stopped before."""
    interrupted = result.get("stopped") == "interrupted"
    if start == "finish" or not (interrupted or list(_changes(before, recipe))):
        longer = f"train it longer with --resume and a larger {_listed(MORE, 'or')}"
        more = "continue it with --resume" if interrupted else longer
        raise UserError(f"the run in {run_dir} is finished; see {run_dir / 'metrics.json'}, {more}, or --overwrite it.")
    last = checkpoints.last_checkpoint(run_dir / CHECKPOINTS)
    step = result.get("steps")
    if last is None or last.name != f"checkpoint-{step}":
        raise UserError(
            f"expected checkpoint-{step} in {run_dir / CHECKPOINTS}, with which the run ended, "
            + (f"but the last one is {last.name}" if last else "but there are none")
            + "; restore it, or train from scratch with --overwrite."
        )


def _changes(before: Recipe, recipe: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted keys whose values differ, with the value before and now; None is none."""
    # As they are written, where numbers and tables compare as what they are.
    old, new = (dict(_flat(tomllib.loads(one.to_toml()))) for one in (before, recipe))
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield key, old.get(key), new.get(key)


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _listed(items: Sequence[str], word: str = "and") -> str:
    return f" {word} ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _result(run_dir: Path) -> dict[str, Any] | None:
    """Return what metrics.json says, which marks a finished run; None if there is none."""
    path = run_dir / "metrics.json"
    if not path.exists():
        return None
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise UserError(f"expected a JSON object in {path}, got a damaged file; remove it, and --finish the run.")
    return result
