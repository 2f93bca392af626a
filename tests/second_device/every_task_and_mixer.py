"""What a GPU would be given, a device of its own kind is given: no tensor stays behind on the CPU.

Only `make test-device` runs these tests, in a process in which PyTorch has that device.
"""

import json
from pathlib import Path

import pytest
import torch
from second_device import NAME
from test_parts_of_every_task import RECIPES, settings

from longspan import mixers, tasks
from longspan.cli import main
from longspan.testing import mixer_checks

#: A recipe of each task.
EVERY = {
    **RECIPES,
    "evidence": "evidence",
    "masked_spans": "masked-spans",
    "masked_words": "masked-words",
    "question_answering": "question-answering",
    "summarisation": "summarisation",
    "translation": "translation",
}
#: Examples without anything to explain.
NOT_EXPLAINED = ("masked_spans", "masked_words", "recommendation")


def test_every_task_is_tried() -> None:
    assert sorted(EVERY) == sorted(tasks.names())


def test_tensors_of_two_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.zeros(2, device=NAME) + torch.zeros(2)


@pytest.mark.parametrize("task", sorted(EVERY))
def test_a_task(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [key for key in settings(task, tmp_path) if "num_train_epochs" not in key]
    small = ["training.max_steps=3", "training.per_device_train_batch_size=2"]
    small += [] if task == "image_classification" else ["model.dim=16", "model.heads=2"]
    run, data = tmp_path / "run", next(key for key in keys if key.startswith("data.path=")).partition("=")[2]
    asked = Path(data)
    if asked.suffix == ".jsonl":
        asked = tmp_path / "asked.jsonl"
        asked.write_text("\n".join(Path(data).read_text(encoding="utf-8").splitlines()[:4]) + "\n", encoding="utf-8")
    commands = [["train", EVERY[task], *keys, *small, "--run", run], ["evaluate", run, "--split", "validation"]]
    commands += [["predict", run, asked], ["report", run]]
    if task not in NOT_EXPLAINED:
        commands.append(["explain", run, asked, "--row", "1", "--out", tmp_path / "explained.html"])
    if task == "language_modelling":
        commands.append(["generate", run, "--prompt", "word1 word2", "--max-new-tokens", "5"])
    if task == "document_classification":
        commands += [
            ["suggest", run, asked, "--output", tmp_path / "suggested.csv"],
            ["export", run, tmp_path / "onnx"],
        ]
    for command in commands:
        assert main([str(word) for word in command]) == 0, (command, capsys.readouterr().err)
    assert json.loads((run / "metrics.json").read_text(encoding="utf-8"))["steps"] == 3


@pytest.mark.parametrize("name", mixers.names())
def test_a_mixer(name: str) -> None:
    for case, check in mixer_checks(name, device=NAME):
        if not case.startswith(("compiles", "exports", "quantised", "offloaded", "many_positions")):
            check()
