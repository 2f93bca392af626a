"""Training runs that are stopped in the middle, and what it means that they ended as if they had not been."""

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from transformers import Trainer

from longspan import cli
from longspan.tasks.base.task import Recipe
from longspan.training.checkpoints import last_checkpoint
from longspan.verbs.train import Interrupted, train


def same_result(run: Path, whole: Path) -> None:
    """The weights to the bit, and every validation score."""
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    one, other = (json.loads((path / "metrics.json").read_text()) for path in (run, whole))
    for result in (one, other):
        result["history"] = [entry for entry in result["history"] if "validation_loss" in entry]
    for key in ("validation", "test", "history", "kept_epoch", "steps"):
        assert one[key] == other[key], key
    for key in ("parts", "test_parts"):
        assert one.get(key) == other.get(key), key


def interrupted(recipe: Recipe, run: Path, step: int, number: int = signal.SIGINT) -> None:
    """Train until a signal reaches the process in the middle of a step; SIGTERM from scheduler and launcher alike."""
    usual = Trainer.training_step

    def training_step(self: Trainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.state.global_step == step:
            for _ in range(1 + (number == signal.SIGTERM)):
                os.kill(os.getpid(), number)
        return usual(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "training_step", training_step)
        with pytest.raises(Interrupted, match=f"saved step {step + 1}"):
            # As a job that is started again says it from the start.
            train(recipe, run=run, resume=True, progress=False)
    assert not (run / "metrics.json").exists()


def killed(arguments: Sequence[str], run: Path) -> Path:
    """Run `longspan train` until it ends itself without notice in the second step after its first checkpoint, and
    return the checkpoint. A process that watches from outside may come too late on a busy machine."""
    usual = Trainer.training_step

    def training_step(self: Trainer, *args: Any, **options: Any) -> torch.Tensor:
        saved = last_checkpoint(Path(self.args.output_dir))
        if saved is not None and saved.name != f"checkpoint-{self.state.global_step}":
            os.kill(os.getpid(), signal.SIGKILL)
        return usual(self, *args, **options)

    def work() -> int:
        Trainer.training_step = training_step
        return cli.main(["train", *arguments, "--run", str(run)])

    told = run.with_name("told by the killed.txt")
    assert forked.ended(forked.fork(work, told)) == -signal.SIGKILL, told.read_text()
    assert not (run / "metrics.json").exists()
    kept = last_checkpoint(run / "checkpoints")
    assert kept is not None
    return kept
