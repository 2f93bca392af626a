"""What two processes do together, run by `torchrun`; see `test_two_processes.py`."""

import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from longspan import recipes, tasks
from longspan.errors import UserError
from longspan.train import Interrupted, train
from longspan.training import processes
from longspan.training.segments import SegmentTrainer


def main(recipe_file: str, folder: Path) -> None:
    recipe = recipes.load(recipe_file)
    fails_before_training_in_one(recipe, folder)
    goes_on_after_a_signal_to_one(recipe, folder)
    print(f"process {processes.rank()} came to the last part", flush=True)
    fails_while_training_in_one(recipe, folder)


def fails_before_training_in_one(recipe: recipes.Recipe, folder: Path) -> None:
    task: Any = tasks.load(recipe.task)
    usual = task.make_trainer

    def make_trainer(*arguments: Any) -> Any:
        if processes.rank() == 1:
            raise UserError("process 1 has a problem.")
        return usual(*arguments)

    with patch.object(task, "make_trainer", make_trainer):
        error = outcome(recipe, folder / "never")
    assert isinstance(error, UserError)
    assert ("process 1 has a problem" if processes.rank() else "another process") in str(error)
    assert not (folder / "never").exists()


def goes_on_after_a_signal_to_one(recipe: recipes.Recipe, folder: Path) -> None:
    train(recipe, folder / "whole", progress=False)
    usual = SegmentTrainer.training_step

    def training_step(self: SegmentTrainer, *arguments: Any, **options: Any) -> torch.Tensor:
        if self.state.global_step == 4 and processes.rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return usual(self, *arguments, **options)

    with patch.object(SegmentTrainer, "training_step", training_step):
        error = outcome(recipe, folder / "interrupted")
    assert isinstance(error, Interrupted)
    assert "saved step 5" in str(error)
    saved = {path.name for path in (folder / "interrupted/checkpoints/checkpoint-5").iterdir()}
    assert saved >= {"states-0.safetensors", "states-1.safetensors", "trainer_state.json"}
    train(recipe, folder / "interrupted", resume=True, progress=False)


def fails_while_training_in_one(recipe: recipes.Recipe, folder: Path) -> None:
    usual = SegmentTrainer.training_step

    def training_step(self: SegmentTrainer, *arguments: Any, **options: Any) -> torch.Tensor:
        if self.state.global_step == 2 and processes.rank() == 1:
            raise RuntimeError("process 1 breaks down")
        return usual(self, *arguments, **options)

    with patch.object(SegmentTrainer, "training_step", training_step):
        train(recipe, folder / "broken", progress=False)


def outcome(recipe: recipes.Recipe, run: Path) -> BaseException | None:
    try:
        train(recipe, run, progress=False)
    except (UserError, Interrupted) as error:
        return error
    return None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
