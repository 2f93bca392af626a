"""A package that is missing, or a key that would be ignored, is named before anything is read."""

import dataclasses
import importlib
import sys
from typing import Any

import pytest
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.training_args import OptimizerNames

from longspan import cli
from longspan.errors import UserError
from longspan.machine import imports
from longspan.training import requirements
from longspan.training.arguments import Arguments
from longspan.training.requirements import check_packages, check_used

#: Optimizers of PyTorch and transformers themselves.
OWN = {"adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"}


@pytest.fixture
def nothing_installed(monkeypatch):
    """Neither the packages of the tables nor what transformers looks for is found."""
    monkeypatch.setattr(imports.importlib.util, "find_spec", lambda name: None)


def test_every_reporter_and_optimizer_has_its_package() -> None:
    assert {*requirements.REPORTERS} == {*INTEGRATION_TO_CALLBACK}
    assert {*requirements.OPTIMIZERS} == {name.value for name in OptimizerNames} - OWN


@pytest.mark.parametrize("name", sorted(requirements.OPTIMIZERS))
def test_optimizers(name, nothing_installed) -> None:
    module, install = requirements.OPTIMIZERS[name]
    told = f"training.optim={name} needs the package '{module}', which is not installed: `pip install {install}`, or "
    with pytest.raises(UserError) as error:
        check_packages({"optim": name})
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("training.report_to=tensorboard", "`pip install tensorboard`"),
        ("training.report_to=wandb", "`pip install wandb`"),
        ('training.report_to=["none", "comet_ml"]', "`pip install comet-ml`"),
        ("training.optim=adamw_8bit", "`pip install bitsandbytes`"),
        ("training.optim=stable_adamw", "`pip install torch-optimi`"),
        ("training.deepspeed=plan.json", "`pip install deepspeed`"),
        ("training.use_liger_kernel=true", "`pip install liger-kernel`"),
        ("training.report_to=tensorbord", "knows no reporter 'tensorbord'; did you mean 'tensorboard'?"),
        ("training.report_to=xyzzy", "knows no reporter 'xyzzy'; the nearest of 16 names are "),
    ],
)
def test_the_command_line_says_what_to_install_before_anything_is_read(override, told, capsys, tmp_path) -> None:
    arguments = ["train", "classify", f"data.path={tmp_path / 'missing.csv'}", "--run", str(tmp_path / "run"), override]
    assert cli.main(arguments) == 2
    captured = capsys.readouterr().err
    assert captured.startswith("longspan: training.")
    assert told in captured
    assert captured.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_what_needs_nothing_passes() -> None:
    passing: list[dict[str, Any]] = [{}, {"optim": "sgd", "report_to": "none"}, {"report_to": []}, {"deepspeed": None}]
    for training in passing:
        check_packages(training)


def test_a_reporter_that_fails_for_another_reason(monkeypatch) -> None:
    class Failing:
        def __init__(self) -> None:
            raise RuntimeError("no server answers. Start one.")

    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "tensorboard", Failing)
    monkeypatch.setattr(requirements, "REPORTERS", {})
    with pytest.raises(UserError, match=r"report_to=tensorboard to work, got an error \(no server answers\); fix it"):
        check_packages({"report_to": "tensorboard"})


def test_a_folder_in_the_current_directory_is_no_package(monkeypatch, tmp_path) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "somereporter").mkdir()
    with pytest.raises(UserError, match="x needs the package 'somereporter'"):
        imports.require("somereporter", "x")
    (tmp_path / "somereporter/__init__.py").touch()
    imports.require("somereporter", "x")
    assert "somereporter" not in sys.modules


def test_a_missing_package_anywhere_is_one_sentence(monkeypatch, capsys) -> None:
    monkeypatch.setattr("longspan.mixers.names", lambda: importlib.import_module("surely_not_installed.part"))
    assert cli.main(["list"]) == 2
    told = "longspan: this needs the package 'surely_not_installed', which is not installed: `pip install "
    assert capsys.readouterr().err.startswith(told)


def test_a_module_of_ours_that_is_missing_is_a_defect(monkeypatch) -> None:
    monkeypatch.setattr("longspan.mixers.names", lambda: importlib.import_module("longspan.surely_not_there"))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["list"])


@pytest.mark.parametrize(
    ("recipe", "override"),
    [
        (["classify", "data.streaming=true"], "training.dataloader_drop_last=true"),
        (["classify", "data.streaming=true"], "training.dataloader_num_workers=2"),
        (["model-text", "data.streaming=true"], "training.train_sampling_strategy=group_by_length"),
        (["classify", "training.context_parallel=2"], "training.average_tokens_across_devices=false"),
        (["model-text", "training.context_parallel=2"], 'training.accelerator_config={"split_batches"=true}'),
        (["classify", "training.fsdp=full_shard"], "training.ddp_find_unused_parameters=true"),
        (["classify", "training.fsdp=full_shard"], "training.auto_find_batch_size=true"),
    ],
)
def test_keys_that_nothing_would_read_are_refused(recipe, override, capsys, tmp_path) -> None:
    arguments = ["train", *recipe, f"data.path={tmp_path / 'missing.csv'}", "--run", str(tmp_path / "run"), override]
    assert cli.main(arguments) == 2
    both = f"{recipe[1].partition('=')[0]} or {override.partition('=')[0]}"
    assert capsys.readouterr().err == f"longspan: expected {both}, got both; leave one of them out.\n"


def test_defaults_of_such_keys_are_no_mistake() -> None:
    usual = {field.name: field.default for field in dataclasses.fields(Arguments)}
    for setting, keys in requirements.UNUSED.items():
        check_used({key: usual[key] for key in keys if key in usual}, [setting])
