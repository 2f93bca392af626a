"""The mean of the last checkpoints: what it is, when it is kept, and that an interrupted run ends with the same."""

from pathlib import Path

import pytest
import torch
from interruptions import interrupted, same_result
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from longspan import evaluate, recipes, train
from longspan.errors import UserError
from longspan.tasks.base.task import Recipe
from longspan.training.checkpoints import complete, load_mean

pytestmark = pytest.mark.usefixtures("as_on_the_command_line")

SETTINGS = [
    "data.tokens=words",
    "data.vocab_size=200",
    "data.validation_fraction=0.25",
    "model.dim=16",
    "model.heads=2",
    "model.depth=1",
    "model.wide=false",
    "training.num_train_epochs=4",
    "training.metric_for_best_model=loss",
    "training.average_last=3",
]
#: With wrong labels among them, weights jump about their mean; without, the last ones are best.
JUMPING = [
    "training.learning_rate=0.02",
    "training.lr_scheduler_type=constant",
    "training.per_device_train_batch_size=8",
]
CREEPING = [
    "training.learning_rate=0.005",
    "training.lr_scheduler_type=constant",
    "training.per_device_train_batch_size=8",
]


def recipe(animals: Path, *more: str) -> Recipe:
    return recipes.load("quickstart", [f"data.path={animals}", *SETTINGS, *more])


@pytest.fixture(scope="module")
def mislabelled(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same documents, every fifth and every seventh of them with the wrong label."""
    header, *rows = animals.read_text(encoding="utf-8").splitlines()
    other = {"cat": "dog", "dog": "cat"}
    for number, row in enumerate(rows):
        text, _, label = row.rpartition(",")
        if not number % 5 or not number % 7:
            rows[number] = f"{text},{other[label]}"
    path = tmp_path_factory.mktemp("mislabelled") / "animals.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def mean_of_last(run: Path, number: int) -> dict[str, Tensor]:
    parts = [load_file(each / "model.safetensors") for each in complete(run / "checkpoints")[:number]]
    return {name: torch.stack([part[name].double() for part in parts]).mean(0).float() for name in parts[0]}


def test_parameters_are_averaged_and_buffers_are_not(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(3)
    saved = []
    for number in (1, 2, 6):
        tensors = {"weight": torch.full((3,), float(number)), "bias": torch.arange(3.0) * number}
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        # As for models of several files.
        for name, tensor in tensors.items():
            save_file({name: tensor}, folder / f"model-{name}.safetensors")
        saved.append(folder)
    before = model.state_dict()["running_var"].clone()
    load_mean(model, saved)
    assert torch.equal(model.weight, torch.full((3,), 3.0))
    assert torch.equal(model.bias, torch.arange(3.0) * 3)
    assert torch.equal(model.state_dict()["running_var"], before)
    (saved[1] / "model-bias.safetensors").unlink()
    with pytest.raises(UserError, match=r"expected all weights of the model in .*checkpoint-2 .* got none named bias;"):
        load_mean(model, saved)


@pytest.mark.slow
@pytest.mark.parametrize(("rates", "kept"), [(JUMPING, True), (CREEPING, False)])
def test_the_mean_is_kept_where_it_is_better(
    rates: list[str], kept: bool, animals: Path, mislabelled: Path, tmp_path: Path
) -> None:
    """The model, its scores and what the result says of it agree either way."""
    run = tmp_path / "run"
    result = train(recipe(mislabelled if kept else animals, *rates), run=run, progress=False)
    found = result.details["averaged"]
    assert found["steps"] == sorted(
        int(each.name.removeprefix("checkpoint-")) for each in complete(run / "checkpoints")[:3]
    )
    assert (found["kept"], found["value"] < found["best"]) == (kept, kept)
    expected = mean_of_last(run, 3 if kept else 1)
    for name, tensor in load_file(run / "model.safetensors").items():
        assert torch.equal(tensor, expected[name]), name
    assert result.scores["validation"].loss == found["value" if kept else "best"]
    # Batches of other sizes round differently.
    assert evaluate(run, split="validation").scores.loss == pytest.approx(result.scores["validation"].loss, abs=1e-5)


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_mean(mislabelled: Path, tmp_path: Path) -> None:
    made = recipe(mislabelled, *JUMPING)
    train(made, run=tmp_path / "whole", progress=False)
    interrupted(made, tmp_path / "stopped", 24)
    train(made, run=tmp_path / "stopped", resume=True, progress=False)
    same_result(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.slow
def test_without_validation_the_mean_is_kept(animals: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = train(recipe(animals, *CREEPING, "training.eval_strategy=no"), run=run, progress=False)
    assert result.details["averaged"] | {"steps": 0} == {
        "steps": 0,
        "metric": "loss",
        "value": None,
        "best": None,
        "kept": True,
    }
    expected = mean_of_last(run, 3)
    for name, tensor in load_file(run / "model.safetensors").items():
        assert torch.equal(tensor, expected[name]), name


def test_too_few_checkpoints_are_said(animals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(recipe(animals, *CREEPING, "training.num_train_epochs=1"), run=tmp_path / "run")
    assert not result.details["averaged"]["kept"]
    assert len(result.details["averaged"]["steps"]) == 1
    assert "average_last found 1 checkpoint, of which there is no mean; kept the model" in capsys.readouterr().err


def test_one_checkpoint_has_no_mean(animals: Path) -> None:
    with pytest.raises(UserError, match=r"expected training.average_last of at least 2 checkpoints, or 0 for no mean"):
        recipe(animals, "training.average_last=1")
