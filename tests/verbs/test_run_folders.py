"""Training deletes only a run that it was told to replace, and writes through no link."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from longspan import cli, recipes
from longspan.errors import UserError
from longspan.results import TrainingResult
from longspan.tasks.base.task import Recipe
from longspan.verbs.export import export
from longspan.verbs.train import train

SMALL = [
    "model.wide=false",
    "training.min_steps=0",
    "training.max_minutes=0",
    "data.tokens=words",
    "data.vocab_size=60",
    "model.dim=8",
    "model.heads=2",
    "model.depth=1",
]


def recipe(data: Path, *more: str) -> Recipe:
    return recipes.load("classify", [f"data.path={data}", *SMALL, "training.num_train_epochs=1", *more])


@pytest.fixture(scope="module")
def small_run(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingResult]:
    run = tmp_path_factory.mktemp("small") / "run"
    return run, train(recipe(animals), run=run, progress=False)


def test_a_mistake_leaves_no_folder(animals: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "deep" / "run"
    with pytest.raises(UserError, match="expected a validation split"):
        train(recipe(animals, "data.validation_fraction=0.0"), run=run)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("resume", [True, False])
def test_a_run_that_was_killed_while_it_read_its_data_is_started_again(
    resume: bool, animals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    # Training makes it before the run has a recipe.
    (run / "checkpoints").mkdir(parents=True)
    train(recipe(animals, "training.max_steps=1"), run=run, resume=resume, progress=False)
    assert (run / "metrics.json").exists()
    assert ("to resume yet, so that one is started" in capsys.readouterr().err) == resume


@pytest.mark.parametrize("key", ["data.path", "training.word_vectors"])
def test_overwrite_keeps_what_the_recipe_reads(
    key: str, animals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text("")
    data = run / "animals.csv"
    data.write_bytes(animals.read_bytes())
    (tmp_path / "linked.csv").symlink_to(data)
    for path in (data, tmp_path / "linked.csv", os.path.relpath(data)):
        given = {"data.path": str(animals), key: str(path)}
        overrides = [f"{name}={value}" for name, value in given.items()]
        assert cli.main(["train", "classify", *overrides, "--run", str(run), "--overwrite"]) == 2
        told = capsys.readouterr().err
        assert f"got {key}=" in told
        assert told.count("\n") == 1
        assert data.read_bytes() == animals.read_bytes()


@pytest.mark.slow
def test_a_linked_run_folder_is_emptied_and_stays_linked(animals: Path, tmp_path: Path, small_run: Any) -> None:
    disk, run = tmp_path / "disk", tmp_path / "run"
    disk.mkdir()
    (disk / "recipe.toml").write_text("")
    (disk / "elsewhere").symlink_to(animals)
    run.symlink_to(disk)
    train(recipe(animals), run=run, overwrite=True, progress=False)
    assert run.is_symlink()
    assert animals.exists()
    assert not (disk / "elsewhere").exists()
    assert (run / "model.safetensors").read_bytes() == (small_run[0] / "model.safetensors").read_bytes()


def test_a_link_that_leads_nowhere_is_no_run_folder(animals: Path, tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to("nowhere")
    with pytest.raises(UserError, match="got a link that leads nowhere"):
        train(recipe(animals), run=tmp_path / "run")


def test_checkpoints_are_not_written_through_links(animals: Path, tmp_path: Path, small_run: Any) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    elsewhere.mkdir()
    (run / "recipe.toml").write_bytes((small_run[0] / "recipe.toml").read_bytes())
    (run / "checkpoints").symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"checkpoints', got a link, which is not written through"):
        train(recipe(animals), run=run, resume=True)
    (run / "checkpoints").unlink()
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "checkpoint-22").symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"checkpoint-22', got a link, which is not written through"):
        train(recipe(animals), run=run, resume=True)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("evaluated", ["no", "steps"])
def test_a_folder_that_is_deleted_in_training_is_an_error(
    evaluated: str, animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With checkpoints, the Trainer makes the folder anew, without what a run needs."""
    usual, run = Trainer.training_step, tmp_path / "run"

    def training_step(self: Trainer, *args: Any, **options: Any) -> torch.Tensor:
        if self.state.global_step == 1:
            shutil.rmtree(run, ignore_errors=True)
        return usual(self, *args, **options)

    monkeypatch.setattr(Trainer, "training_step", training_step)
    settings = [*SMALL, "training.max_steps=4", f"training.eval_strategy={evaluated}", "training.eval_steps=4"]
    assert cli.main(["train", "classify", f"data.path={animals}", *settings, "--run", str(run)]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"longspan: expected recipe.toml in {run}, as this training run wrote it, got none;")
    assert not (run / "metrics.json").exists()


@pytest.mark.slow
def test_an_export_keeps_what_came_meanwhile(small_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from longspan.verbs import export as module

    out, usual = tmp_path / "out", module._write_rest

    def write_rest(*arguments: Any) -> None:
        out.mkdir()
        (out / "thesis.txt").write_text("my only copy")
        usual(*arguments)

    monkeypatch.setattr(module, "_write_rest", write_rest)
    with pytest.raises(UserError, match="exists; choose another folder"):
        export(small_run[0], out)
    assert (out / "thesis.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
