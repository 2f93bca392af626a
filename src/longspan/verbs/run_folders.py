"""State of a training run's folder: empty, a run to replace, to resume, or to finish where it was stopped."""

import contextlib
import dataclasses
import json
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import TrainingArguments

from longspan import recipes
from longspan.errors import UserError, check_choice
from longspan.machine import locks
from longspan.machine.environment import environment
from longspan.machine.printing import note, shows_bars
from longspan.recipes.keys import UNWRITTEN_DEFAULTS
from longspan.results.outputs import folder_in, write_json, write_text
from longspan.tasks.base.task import Recipe
from longspan.training import checkpoints, processes, sharding
from longspan.training.arguments import Arguments
from longspan.training.requirements import check_packages, check_used
from longspan.training.stopping import check_early_stopping

CHECKPOINTS = "checkpoints"

#: Beginning of the name of the folder from which files are moved into the run folder when all are written.
UNFINISHED = ".unfinished-"

Start = Literal["new", "overwrite", "resume", "finish"]
"""How a training run starts."""

#: Settings that a resumed run may raise.
MORE = ("training.num_train_epochs", "training.max_steps", "training.max_minutes")

#: Settings that another number of processes, which resumes a run, may have: the same steps are shared in another way.
SHARING = ("training.per_device_train_batch_size", "training.fsdp")

_NAMED = 3


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The folder of a training run, and how the run starts in it.

    Attributes:
        path: The folder.
        start: How the run starts.
    """

    path: Path
    start: Start

    @classmethod
    def of(
        cls,
        run: Path | str | None,
        recipe: Recipe | Path | str,
        name: str,
        *,
        resume: bool = False,
        overwrite: bool = False,
        finish: bool = False,
    ) -> "RunFolder":
        """The folder that a training run is to use.

        Args:
            run: Its path; by default that of the run that is given as the `recipe`, to continue or replace it.
            recipe: The recipe as it is given.
            name: Name of the recipe, for the folder of a new run: runs/NAME.
            resume, overwrite, finish: How the run starts; a new one with none of them.

        Raises:
            UserError: More than one of the three is set.
        """
        ways: dict[Start, bool] = {"resume": resume, "overwrite": overwrite, "finish": finish}
        chosen = [way for way, given in ways.items() if given]
        if len(chosen) > 1:
            raise UserError(f"expected one of resume, overwrite and finish, got {' and '.join(chosen)}; choose one.")
        if run is None and chosen and not isinstance(recipe, Recipe) and Path(recipe).is_dir():
            run = recipe
        folder = cls(Path(run or Path("runs", name)), chosen[0] if chosen else "new")
        # So one command starts a job and, when a scheduler starts it again, continues.
        if folder.start == "resume" and folder.is_vacant():
            note(f"there is no run in {folder.path} to resume yet, so that one is started")
            return cls(folder.path, "new")
        return folder

    @property
    def checkpoints(self) -> Path:
        """The folder with its checkpoints."""
        return self.path / CHECKPOINTS

    @property
    def continues(self) -> bool:
        """Whether the run goes on, or ends, with a checkpoint."""
        return self.start in ("resume", "finish")

    def with_its_sample(self, recipe: Recipe) -> Recipe:
        """The recipe with the share of the rows that the run in the folder reads, where a deadline chose one."""
        written = self.path / "recipe.toml"
        if not self.continues or recipe.data.sample or not written.exists():
            return recipe
        return recipe.sampled(recipes.load(str(written)).data.sample)

    @contextlib.contextmanager
    def claimed(self, recipe: Recipe) -> Iterator[None]:
        """Keep the run folder for this training run during the `with` block; a new folder goes if it stays empty.

        Of several processes, which all call this, the first one keeps it and alone writes to it.

        Raises:
            UserError: Another training run is at work in it, or from `check`.
        """
        with contextlib.ExitStack() as stack:
            with processes.agreed():
                if processes.rank() == 0:
                    stack.enter_context(self._claimed(recipe))
            yield

    @contextlib.contextmanager
    def _claimed(self, recipe: Recipe) -> Iterator[None]:
        self.check(recipe)
        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with locks.lock_folder(self.path, "one training run"):
                # Another one may have ended since.
                self.check(recipe)
                yield
        finally:
            # The Trainer makes its folder at once.
            for folder in (self.checkpoints, *made):
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def check(self, recipe: Recipe) -> None:
        """Raise UserError unless a run of `recipe` may start so in this folder."""
        written = self.path / "recipe.toml"
        if self.continues:
            if not written.exists():
                raise UserError(
                    f"expected a run to {self.start} in {self.path}, got none; leave out --{self.start} to start it."
                )
            self._check_links()
            before = recipes.load(str(written))
            self._check_same(before, recipe)
            result = self._result()
            if result is not None:
                self._check_continuation(before, recipe, result)
        elif self.path.is_symlink() and not self.path.exists():
            raise UserError(
                f"expected a folder at {self.path}, got a link that leads nowhere; name another with --run."
            )
        elif self.path.exists() and (not self.path.is_dir() or self._written()):
            if self.start == "new":
                raise UserError(
                    f"the run folder {self.path} exists; --resume continues it, --finish ends it where it was stopped, "
                    "--overwrite replaces it, and --run names another."
                )
            if not written.exists():
                raise UserError(f"{self.path} is not a run folder, so it is not overwritten; name another with --run.")
            self._check_own_data(recipe)

    def open(self, recipe: Recipe, steps: Callable[[], int], rows: int = 0) -> Path | None:
        """Write down what is trained in the claimed folder, in place of anything that is overwritten.

        All processes call this.

        Args:
            recipe: The recipe as it is trained.
            steps: Called for the number of steps that a resumed run takes in all.
            rows: Rows in a batch of all processes; 0 where their number is not fixed.

        Returns:
            The checkpoint that training continues from, or ends with; None for a new run, and where none is complete.

        Raises:
            UserError: The folder of a new run is no longer empty. There is no checkpoint to finish with, or a resumed
                run has fewer steps than planned before, or no more if it is finished.
        """
        checkpoint = None
        if self.continues:
            checkpoint = checkpoints.to_resume_from(self.checkpoints, any_processes=self.start == "finish", rows=rows)
        with processes.agreed():
            if processes.rank() == 0:
                if self.start == "resume" and checkpoint is not None:
                    self._check_steps(steps(), checkpoints.planned_steps(checkpoint), recipe)
                if self.start == "finish" and checkpoint is None:
                    raise UserError(
                        f"expected a checkpoint to finish in {self.checkpoints}, got none; start again with --resume, "
                        "which keeps the run folder, or --overwrite."
                    )
                self._write(recipe)
        return checkpoint

    def _check_steps(self, total: int, planned: int, recipe: Recipe) -> None:
        """Raise UserError unless a run takes as many steps as planned before, or more if it is finished."""
        result = self._result()
        finished = result is not None and result.get("stopped") != "interrupted"
        if total < planned or (finished and total == planned):
            most = recipe.training.get("max_steps", -1)
            said = (
                f"max_steps={most}, which goes before epochs"
                if most > 0
                else f"num_train_epochs={recipe.training['num_train_epochs']}"
            )
            raise UserError(
                f"expected {'more than' if finished else 'at least'} the {planned:,} steps that were planned for the "
                f"run in {self.path} before, got {total:,} from training.{said}; raise it."
            )

    def _write(self, recipe: Recipe) -> None:
        if not self.continues:
            if self.start == "new":
                self._check_still_empty()
            self._empty()
        if self.start == "resume":
            # First of all: the run is unfinished from here on. Its model stays until the next one.
            (self.path / "metrics.json").unlink(missing_ok=True)
            for path in self.path.glob(f"{UNFINISHED}*"):
                _remove(path)
        if self.start != "finish":
            write_text(self.path / "recipe.toml", recipe.to_toml())
        if not self.continues:
            write_json(self.path / "environment.json", environment())
        folder_in(self.path, CHECKPOINTS)

    def _check_links(self) -> None:
        """Raise UserError if checkpoints would be written through a link."""
        folder = self.checkpoints
        inside = folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ()
        for path in (folder, *inside):
            if path.is_symlink():
                raise UserError(
                    f"expected a folder of this run at {str(path)!r}, got a link, which is not written through; move "
                    "what it leads to there."
                )

    def _check_own_data(self, recipe: Recipe) -> None:
        """Raise UserError if a recipe reads anything in the run folder that it is to replace."""
        training = {**recipe.training, **dataclasses.asdict(recipe.options)}
        # The model first: where it starts from a run, the data have its tokens, and name it as well.
        parts = {
            "model": {"start_from": recipe.start_from, **recipe.model},
            "training": training,
            "data": vars(recipe.data),
        }
        for part, values in parts.items():
            for key, value in values.items():
                for path in value if isinstance(value, list | tuple) else [value]:
                    if isinstance(path, str | Path) and _lies_in(path, self.path):
                        raise UserError(
                            f"expected to read what is outside the run folder {self.path}, which --overwrite empties, "
                            f"got {part}.{key}={str(path)!r} in it; move it, or name another folder with --run."
                        )

    def _check_still_empty(self) -> None:
        """Raise UserError if something came into the folder of a new run while its data were prepared."""
        for path in self._entries():
            # The Trainer has made its folder.
            if path.name != CHECKPOINTS or path.is_symlink() or not path.is_dir() or any(path.iterdir()):
                raise UserError(
                    f"expected the run folder {self.path} as empty as it was when this run began, got {path.name!r} in "
                    "it; nothing was deleted: name another folder with --run."
                )

    def _empty(self) -> None:
        """Delete what is in the folder, but for its lock. Whenever this is cut short, it still is an unfinished run."""
        order = {"metrics.json": 0, "recipe.toml": 2}
        for path in sorted(self._entries(), key=lambda path: order.get(path.name, 1)):
            _remove(path)

    def _check_same(self, before: Recipe, recipe: Recipe) -> None:
        """Raise UserError if settings differ from those of the run before, other than by more steps to take."""
        # A given number of epochs switches off the minimum number of steps.
        allowed = (*MORE, *SHARING, "training.min_steps") if self.start == "resume" else ()
        changes = [change for change in _changes(before, recipe) if change[0] not in allowed]
        if changes:
            told = [f"{key} is {_shown(new)} ({_shown(old)} before)" for key, old, new in changes[:_NAMED]]
            told += [f"{len(changes) - _NAMED} more differ"] if len(changes) > _NAMED else []
            more = f" with --resume only {_listed(MORE)} may be larger;" if self.start == "resume" else ""
            raise UserError(
                f"expected the recipe that {self.path} was started with, but {_listed(told)};{more} give the same "
                f"recipe and overrides, or `longspan train {self.path} --{self.start}`."
            )
        for key, old, new in _changes(before, recipe):
            # Without a number of steps, or with -1, epochs decide, and how many steps they have is known later.
            if key not in SHARING and old is not None and new is not None and min(old, new) > 0 and new < old:
                raise UserError(
                    f"expected {key} to be at least {old}, as when {self.path} was started, got {new}; to end the run "
                    "where it was stopped, use --finish."
                )

    def _check_continuation(self, before: Recipe, recipe: Recipe, result: Mapping[str, Any]) -> None:
        """Raise UserError unless a finished run is given more steps, or is to take those it had been stopped before."""
        interrupted = result.get("stopped") == "interrupted"
        if self.start == "finish" or not (interrupted or list(_changes(before, recipe))):
            longer = f"train it longer with --resume and a larger {_listed(MORE, 'or')}"
            more = "continue it with --resume" if interrupted else longer
            raise UserError(
                f"the run in {self.path} is finished; see {self.path / 'metrics.json'}, {more}, or --overwrite it."
            )
        minutes = recipe.options.max_minutes
        if result.get("stopped") == "deadline" and minutes and minutes == before.options.max_minutes:
            raise UserError(
                f"expected a larger training.max_minutes for the run in {self.path}, which ended at its deadline, got "
                f"{minutes:g}; raise it."
            )
        last = checkpoints.last_checkpoint(self.checkpoints)
        step = result.get("steps")
        if last is None or last.name != f"checkpoint-{step}":
            raise UserError(
                f"expected checkpoint-{step} in {self.checkpoints}, with which the run ended, "
                + (f"but the last one is {last.name}" if last else "but there are none")
                + "; restore it, or train from scratch with --overwrite."
            )

    def is_vacant(self) -> bool:
        """Whether no training run has written anything: one may have been stopped while it read its data."""
        if self.path.is_symlink() or not self.path.is_dir():
            return not self.path.is_symlink() and not self.path.exists()
        return not self._written()

    def _written(self) -> bool:
        """Whether there is more in a folder than an empty one for checkpoints, which training makes first."""
        entries = self._entries()
        return not all(one.name == CHECKPOINTS and one.is_dir() and not any(one.iterdir()) for one in entries)

    def _entries(self) -> list[Path]:
        """Paths in a folder besides the file of a lock."""
        return [path for path in self.path.iterdir() if path.name != locks.FILE]

    def _result(self) -> dict[str, Any] | None:
        """Return the content of metrics.json, which marks a finished run, or None without it."""
        path = self.path / "metrics.json"
        if not path.exists():
            return None
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            result = None
        if not isinstance(result, dict):
            raise UserError(f"expected a JSON object in {path}, got a damaged file; remove it, and --finish the run.")
        return result


def _lies_in(path: str | Path, folder: Path) -> bool:
    """Say whether something exists at `path`, and it is in `folder`, with links followed or not."""
    try:
        found = Path(path).expanduser()
        if not str(path) or not found.exists():
            return False
        places = (found.absolute(), found.resolve())
        return any(place.is_relative_to(own) for place in places for own in (folder.absolute(), folder.resolve()))
    except (OSError, ValueError, RuntimeError):
        # Not every text is a path.
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _changes(before: Recipe, recipe: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted keys whose values differ, with the value before and now; None means missing."""
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


def arguments_of(recipe: Recipe, folder: RunFolder, progress: bool) -> TrainingArguments:
    """Return the arguments of a recipe's training.

    Args:
        recipe: The recipe.
        folder: The run folder, whose name is that of a repository on the Hub.
        progress: Whether progress is shown.

    Raises:
        UserError: Values of `[training]` do not fit together, or need a package that is not installed.
    """
    chosen = recipe.training
    check_packages(chosen)
    sharding.check(chosen)
    modes = {
        "data.streaming": getattr(recipe.data, "streaming", False),
        "training.context_parallel": recipe.options.context_parallel > 1,
        "training.fsdp": chosen.get("fsdp"),
    }
    check_used(chosen, [setting for setting, is_set in modes.items() if is_set])
    evaluated = chosen.get("eval_strategy", UNWRITTEN_DEFAULTS["eval_strategy"])
    every = chosen.get("eval_steps", chosen.get("logging_steps", UNWRITTEN_DEFAULTS["logging_steps"]))
    kind = recipe.task.scores
    metric = chosen.get("metric_for_best_model") or kind.headline()
    check_choice("training.metric_for_best_model", metric, list(kind.shown()))
    defaults = UNWRITTEN_DEFAULTS | {
        # What is saved is what was scored; without scores there is no best model.
        "save_strategy": "epoch" if evaluated == "no" else evaluated,
        **({"save_steps": every} if evaluated == "steps" else {}),
        "load_best_model_at_end": evaluated != "no",
        "metric_for_best_model": metric,
        "greater_is_better": kind.higher_is_better(metric),
        # In a log file each update of a bar would stay.
        "disable_tqdm": not (progress and shows_bars()),
        # Otherwise processes without a GPU would not find each other.
        "use_cpu": not torch.accelerator.is_available(),
        # All weights take part in each step.
        "ddp_find_unused_parameters": False,
        "ddp_timeout": int(processes.PATIENCE.total_seconds()),
        "log_level_replica": "error",
        "remove_unused_columns": False,
        "hub_model_id": folder.path.absolute().name if chosen.get("push_to_hub") else None,
    }
    try:
        arguments = Arguments(output_dir=str(folder.checkpoints), **{**defaults, **chosen})
    except (ValueError, TypeError) as error:
        raise UserError(f"the recipe's [training] does not fit together: {error}") from error
    if arguments.shards and processes.count() == 1 and not folder.continues:
        raise UserError(
            "expected several processes for training.fsdp, got one; start them with `torchrun --nproc-per-node 2 -m -- "
            "longspan train ...`, or leave it out."
        )
    if recipe.options.average_last and arguments.save_total_limit is not None:
        # The best one as well.
        arguments.save_total_limit = max(arguments.save_total_limit, recipe.options.average_last + 1)
    check_early_stopping(recipe.options.early_stopping_patience, arguments)
    return arguments
