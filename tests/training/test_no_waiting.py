"""The host never waits for a GPU in the middle of training: see `unread`, which stands for one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_tasks_in_two_processes import KEYS, SAME, a_graph, rows
from transformers import TrainingArguments
from unread import DEVICE, unread

from longspan import recipes, tasks, train
from longspan.training.base import LongspanTrainer

OWN = {
    "document_classification": ["model.ngrams=[2]", "model.ngram_buckets=50"],
    "language_modelling": ["training.segment_length=8", "training.carry_states=true", "model.ngrams=[2]"],
}
#: What each step waits for, before its first layer or in its layers: shapes that depend on the batch.
WAITING = {
    "masked_words": "rows of packed documents",
    "question_answering": "columns of questions",
    "token_classification": "rows of words",
}
STEPS = [
    "training.max_steps=3",
    "training.logging_strategy=no",
    "training.save_strategy=no",
    "training.optim=adamw_torch",
]


class Trained(Exception):
    """Steps were taken; without values, there is nothing to make of them."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps that training took on a device whose values cannot be read."""
    taken: list[int] = []

    def run_epochs(self: LongspanTrainer[Any], own: Any = LongspanTrainer._run_epoch, **epoch: Any) -> None:
        self.model.to(DEVICE)
        self._tr_loss = torch.zeros((), device=DEVICE)
        self.accelerator.state.device = DEVICE
        with unread(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainingArguments, "device", DEVICE)
            own(self, **epoch)
        taken.append(self.state.global_step)
        raise Trained

    monkeypatch.setattr(LongspanTrainer, "_run_epoch", run_epochs)
    # As on a GPU.
    monkeypatch.setattr(LongspanTrainer, "_sparse", lambda self: False)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(tasks.names()))
def test_steps_wait_for_nothing(task: str, steps: list[int], tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows(task)), encoding="utf-8")
    keys = [*SAME, *KEYS.get(task, []), *OWN.get(task, []), *STEPS, "training.per_device_train_batch_size=2"]
    if task == "node_classification":
        data, edges = a_graph(tmp_path)
        keys.append(f"data.edges={edges}")
    (tmp_path / "recipe.toml").write_text(f'task = "{task}"\n', encoding="utf-8")
    recipe = recipes.load(str(tmp_path / "recipe.toml"), [f"data.path={data}", *keys])
    if task in WAITING:
        with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
            train(recipe, run=tmp_path / "run", progress=False)
        return
    with pytest.raises(Trained):
        train(recipe, run=tmp_path / "run", progress=False)
    assert steps[0] >= 1
