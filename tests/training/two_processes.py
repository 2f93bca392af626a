"""What two processes do together, run by `torchrun`; see `test_two_processes.py`."""

import dataclasses
import gc
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import Trainer

from longspan import cli, recipes, train
from longspan.errors import UserError
from longspan.tasks.base.task import Recipe
from longspan.training import processes
from longspan.training.deadline import Deadline
from longspan.verbs.train import Interrupted


def main(recipe_file: str, folder: Path, as_one: Sequence[str]) -> None:
    assert cli.main(["train", recipe_file, *as_one, "--run", str(folder / "two")]) == 0
    # What is imported stays; accelerate collects three times in every training run.
    gc.collect()
    gc.freeze()
    recipe = recipes.load(recipe_file, EVERY_THREE)
    fails_before_training_in_one(recipe, folder)
    ends_at_the_deadline_of_the_first(recipes.load(recipe_file, [*EVERY_THREE, *BUDGET]), folder)
    goes_on_after_a_signal_to_one(recipe, folder)
    goes_on_before_a_damaged_checkpoint(recipe, folder)
    finishes_where_it_was_stopped(recipe, folder)
    print(f"process {processes.rank()} came to the last part", flush=True)
    is_killed_while_training_in_one(recipe, folder)


BUDGET = ["training.max_minutes=0.5", "training.max_steps=-1", "training.num_train_epochs=99"]
EVERY_THREE = [f"training.{when}_{key}" for when in ("eval", "save") for key in ("strategy=steps", "steps=3")]


def fails_before_training_in_one(recipe: Recipe, folder: Path) -> None:
    usual = recipe.task.make_trainer

    def make_trainer(*arguments: Any) -> Any:
        if processes.rank() == 1:
            raise UserError("process 1 has a problem.")
        return usual(*arguments)

    with patch.object(recipe.task, "make_trainer", make_trainer):
        error = outcome(recipe, folder / "never")
    assert isinstance(error, UserError)
    assert ("process 1 has a problem" if processes.rank() else "another process") in str(error)
    # The first process removes what it made.
    processes.wait()
    assert not (folder / "never").exists()


def ends_at_the_deadline_of_the_first(recipe: Recipe, folder: Path) -> None:
    """The clock of one process is faster; that of the first counts for both, for learning rates too."""
    seconds, places = itertools.count(step=1 + processes.rank()), []
    usual = Deadline.on_step_end

    def on_step_end(self: Deadline, *arguments: Any, **options: Any) -> None:
        places.append(self.place / self.length)
        usual(self, *arguments, **options)

    with (
        patch.object(Deadline, "clock", staticmethod(lambda: float(next(seconds)))),
        patch.object(Deadline, "on_step_end", on_step_end),
    ):
        result = train(recipe, run=folder / "budget", progress=False)
    assert result.stopped == "deadline"
    assert 5 < len(places) == result.steps < 30
    assert processes.total(places) == [2 * place for place in places]


def goes_on_after_a_signal_to_one(recipe: Recipe, folder: Path) -> None:
    train(recipe, run=folder / "whole", progress=False)
    interrupt(recipe, folder / "interrupted")
    saved = {path.name for path in (folder / "interrupted/checkpoints/checkpoint-5").iterdir()}
    assert saved >= {"rng_state_0.pth", "rng_state_1.pth", "trainer_state.json", "seal.json"}
    assert saved >= {"states-0.safetensors", "states-1.safetensors"}
    train(recipe, run=folder / "interrupted", resume=True, progress=False)


def goes_on_before_a_damaged_checkpoint(recipe: Recipe, folder: Path) -> None:
    interrupt(recipe, folder / "damaged")
    file = folder / "damaged/checkpoints/checkpoint-5/rng_state_1.pth"
    processes.on_first(lambda: os.truncate(file, 100))
    train(recipe, run=folder / "damaged", resume=True, progress=False)


def finishes_where_it_was_stopped(recipe: Recipe, folder: Path) -> None:
    run = folder / "finished"
    interrupt(recipe, run)
    # As a single process will do it.
    if processes.rank() == 0:
        shutil.copytree(run, folder / "finished by one")
    processes.wait()
    result = train(recipe, run=run, finish=True, progress=False)
    assert (result.steps, result.stopped) == (5, "interrupted")
    # And it is trained longer after all.
    more = dataclasses.replace(recipe, training={**recipe.training, "max_steps": 16})
    result = train(more, run=run, resume=True, progress=False)
    assert (result.steps, result.stopped) == (16, None)


def is_killed_while_training_in_one(recipe: Recipe, folder: Path) -> None:
    def die() -> None:
        # torchrun would end the other process, which is to notice by itself.
        os.kill(os.getppid(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        with at_step(2, die):
            train(recipe, run=folder / "broken", progress=False)
    except UserError as error:
        print(f"the last part ended with: {error}", flush=True)
        raise
    finally:
        os.kill(os.getppid(), signal.SIGCONT)


def interrupt(recipe: Recipe, run: Path) -> None:
    with at_step(4, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        error = outcome(recipe, run)
    assert isinstance(error, Interrupted)
    assert "saved step 5" in str(error)


def at_step(step: int, happens: Callable[[], None]) -> Any:
    """Let something happen to process 1 in the middle of a step."""
    usual = Trainer.training_step

    def training_step(self: Trainer, *arguments: Any, **options: Any) -> torch.Tensor:
        if self.state.global_step == step and processes.rank() == 1:
            happens()
        return usual(self, *arguments, **options)

    return patch.object(Trainer, "training_step", training_step)


def outcome(recipe: Recipe, run: Path) -> BaseException | None:
    try:
        train(recipe, run=run, progress=False)
    except (UserError, Interrupted) as error:
        return error
    return None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
