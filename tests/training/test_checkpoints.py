"""Which checkpoint a run resumes from: the newest that is as it was written."""

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from interruptions import interrupted, same_result

from longspan import recipes, train
from longspan.errors import UserError
from longspan.training import processes
from longspan.training.checkpoints import complete, last_checkpoint, seal, to_resume_from

FILES = [
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "model.safetensors",
    "trainer_state.json",
    "states-0.safetensors",
]


def save(folder: Path, step: int, best: int | None = None) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    for name in FILES:
        (checkpoint / name).write_bytes(f"{name} of {step}".encode())
    # As it stood where the run was trained, perhaps elsewhere.
    state = {"global_step": step, "best_model_checkpoint": best and f"elsewhere/checkpoint-{best}"}
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    seal(checkpoint)
    return checkpoint


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_newest_by_number_is_resumed_from(tmp_path: Path) -> None:
    assert to_resume_from(tmp_path) is None
    assert to_resume_from(tmp_path / "nowhere") is None
    saved = [save(tmp_path, step) for step in (9, 100, 20)]
    assert complete(tmp_path) == [saved[1], saved[2], saved[0]]
    assert to_resume_from(tmp_path) == last_checkpoint(tmp_path) == saved[1]


def test_what_a_killed_save_left_is_removed_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, cut = save(tmp_path, 3), save(tmp_path, 6)
    (cut / "seal.json").rename(cut / "seal.json.unfinished")
    assert to_resume_from(tmp_path) == kept
    assert not cut.exists()
    assert capsys.readouterr().err == ""


def test_where_no_checkpoint_is_complete_starting_from_scratch_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One without a seal was cut short, or saved before there were seals; which of the two cannot be known."""
    for step in (9, 100):
        (save(tmp_path, step) / "seal.json").unlink()
    assert to_resume_from(tmp_path) is None
    said = capsys.readouterr().err
    assert said.startswith("longspan: checkpoint-9 and checkpoint-100 in ")
    assert "no seal.json" in said
    assert said.endswith("starting from scratch.\n")
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
    assert to_resume_from(tmp_path) is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
@pytest.mark.parametrize("name", [*FILES, "seal.json"])
def test_a_damaged_checkpoint_is_stepped_over_and_named(
    name: str, damage: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, broken = save(tmp_path, 3), save(tmp_path, 6)
    damage(broken / name)
    assert to_resume_from(tmp_path) == kept
    # It would be counted as one of the newest when older ones are removed.
    assert not broken.exists()
    said = capsys.readouterr().err
    if name == "seal.json":
        assert (damage is Path.unlink) == (said == "")
    else:
        assert f"longspan: checkpoint-6 is damaged ({name} " in said
        assert said.endswith("resuming from checkpoint-3.\n")
        assert said.count("\n") == 1


def test_without_a_sound_checkpoint_nothing_is_removed(tmp_path: Path) -> None:
    for step, name in ((3, "model.safetensors"), (6, "optimizer.pt")):
        truncate(save(tmp_path, step) / name)
    with pytest.raises(UserError, match=r"6 is damaged \(opt.*3 is damaged \(model.*; start again with --overwrite"):
        to_resume_from(tmp_path)
    assert len(complete(tmp_path)) == 2


@pytest.mark.parametrize("lost", [False, True])
def test_the_best_model_so_far_is_needed_at_the_end(lost: bool, tmp_path: Path) -> None:
    best, newest = save(tmp_path, 3), save(tmp_path, 6, best=3)
    assert to_resume_from(tmp_path) == newest
    if lost:
        shutil.rmtree(best)
    else:
        truncate(best / "model.safetensors")
    with pytest.raises(UserError, match=r"the best model so far in .*checkpoint-3, got a damaged"):
        to_resume_from(tmp_path)


@pytest.mark.parametrize(("saved", "rows"), [(0, 0), (0, 6), (6, 0)])
def test_as_many_processes_as_saved_it(saved: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rows in a batch of all processes, as earlier versions saved it, or with none that are fixed."""
    with monkeypatch.context() as patch:
        patch.setattr(processes, "count", lambda: 2)
        seal(save(tmp_path, 3), saved)
        assert to_resume_from(tmp_path, rows=rows) is not None
    with pytest.raises(UserError, match=r"expected 2 processes, as many as saved .*, got 1; resume with as many"):
        to_resume_from(tmp_path, rows=rows)


def test_another_number_of_processes_with_as_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(processes, "count", lambda: 2)
        checkpoint = save(tmp_path, 3)
        seal(checkpoint, 6)
    assert to_resume_from(tmp_path, rows=6) == checkpoint
    with pytest.raises(UserError, match=r"expected 6 rows .*, got 3 in 1; set .*per_device_train_batch_size=6\.$"):
        to_resume_from(tmp_path, rows=3)
    monkeypatch.setattr(processes, "count", lambda: 4)
    monkeypatch.setattr(processes, "on_first", lambda work: work())
    with pytest.raises(UserError, match=r"got 8 in 4; start a number of processes that divides 6\.$"):
        to_resume_from(tmp_path, rows=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optimizer.pt", "model.safetensors", "trainer_state.json"])
def test_a_run_goes_on_before_the_damage_to_the_same_result(
    name: str, animals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"data.path={animals}", "data.tokens=words", "data.vocab_size=200", "model.dim=16", "model.depth=1"]
    settings += ["training.num_train_epochs=2", "model.dropout=0.2"]
    recipe = recipes.load("quickstart", settings)
    steps = train(recipe, run=tmp_path / "whole", progress=False).steps
    interrupted(recipe, tmp_path / "run", steps // 2 + 1)
    newest = last_checkpoint(tmp_path / "run/checkpoints")
    assert newest is not None
    assert newest.name == f"checkpoint-{steps // 2 + 2}"
    truncate(newest / name)
    train(recipe, run=tmp_path / "run", resume=True, progress=False)
    same_result(tmp_path / "run", tmp_path / "whole")
    assert capsys.readouterr().err.count(f"{newest.name} is damaged ({name} ") == 1


def test_transformers_does_not_remark_on_checkpoints_of_one_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.Logger, "warning_once", logging.Logger.warning)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("transformers.trainer_utils").addHandler(handler)
    try:
        documents: dict[str, Any] = {
            "text": [f"{'cat' if n % 2 else 'dog'} {n}" for n in range(40)],
            "label": ["a", "b"] * 20,
        }
        small: dict[str, Any] = {
            "dim": 8,
            "heads": 2,
            "depth": 1,
            "num_train_epochs": 4,
            "min_steps": 0,
            "max_minutes": 0,
            "wide": False,
        }
        train("classify", run=tmp_path / "run", data=documents, progress=False, **small)
    finally:
        logging.getLogger("transformers.trainer_utils").removeHandler(handler)
    assert not said
