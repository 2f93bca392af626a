"""Training that stops once validation scores no longer improve, also when it is resumed in between."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from interruptions import interrupted, same_result

from longspan import cli, recipes, report, train
from longspan.errors import UserError
from longspan.results.scores import Scores
from longspan.tasks.base.task import Recipe
from longspan.training.base import LongspanTrainer
from longspan.training.stopping import improves

SETTINGS = [
    "data.tokens=words",
    "data.vocab_size=60",
    "model.dim=8",
    "model.heads=2",
    "model.depth=1",
    "training.per_device_train_batch_size=64",
    "training.early_stopping_patience=2",
    "training.num_train_epochs=9",
    "model.wide=false",
]
#: The best epoch is the second one, so that patience ends with the fourth.
ACCURACIES = [0.5, 0.8, 0.7, 0.75, 0.9, 0.6, 0.6, 0.6, 0.6]


def recipe(animals: Path, *more: str) -> Recipe:
    return recipes.load("quickstart", [f"data.path={animals}", *SETTINGS, *more])


@pytest.fixture(autouse=True)
def accuracies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations find the accuracies above."""
    usual = LongspanTrainer.evaluate

    def evaluate(self: LongspanTrainer, *args: Any, **kwargs: Any) -> dict[str, float]:
        score = self.score

        def found(dataset: Any) -> Scores:
            made: Any = score(dataset)
            object.__setattr__(made, "accuracy", ACCURACIES[round(self.state.epoch) - 1])
            return made

        with monkeypatch.context() as patch:
            patch.setattr(self, "score", found)
            logs = usual(self, *args, **kwargs)
        # The scores of the model that is kept are measured as usual.
        self.scored.clear()
        return logs

    monkeypatch.setattr(LongspanTrainer, "evaluate", evaluate)


def epochs(result: dict[str, Any]) -> list[float]:
    return [row["epoch"] for row in result["history"] if "validation_accuracy" in row]


def test_training_stops_early_and_says_so(animals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "quickstart", f"data.path={animals}", *SETTINGS, "--run", str(tmp_path / "run")]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    result = json.loads((tmp_path / "run/metrics.json").read_text())
    steps, planned = result["steps"], result["planned_steps"]
    assert planned == 9 * steps / 4
    assert (
        f"training stopped early after epoch 4 (step {steps} of {planned}), as validation scores no longer improved; "
        "the model kept is that after epoch 2\n" in shown
    )
    assert (result["stopped"], result["epochs"], result["kept_epoch"]) == ("early", 4, 2)
    assert epochs(result) == [1, 2, 3, 4]
    card = " ".join((tmp_path / "run/README.md").read_text().split())
    assert "It stopped early after epoch 4 " in card


def test_of_equal_scores_the_lower_loss_is_better() -> None:
    best = {"eval_accuracy": 0.9, "eval_loss": 0.5}
    for accuracy, loss, better in [
        (0.9, 0.4, True),
        (0.9, 0.5, False),
        (0.9, 0.6, False),
        (0.91, 9, True),
        (0.8, 0, False),
    ]:
        assert improves({"eval_accuracy": accuracy, "eval_loss": loss}, best, "accuracy", True) is better
    nan = float("nan")
    assert not improves({"eval_accuracy": 0.9, "eval_loss": nan}, best, "accuracy", True)
    assert not improves({"eval_accuracy": nan, "eval_loss": 0.1}, None, "accuracy", True)
    assert improves(best, None, "eval_accuracy", True)
    assert improves({"eval_error": 0.1, "eval_loss": 1}, {"eval_error": 0.2, "eval_loss": 0}, "error", False)
    # The loss itself: the first of equal epochs.
    assert not improves({"eval_loss": 0.5}, {"eval_loss": 0.5}, "loss", False)


def test_of_equal_mixtures_the_network_with_the_lower_loss_is_better() -> None:
    """Counts alone have all rows right from the first epoch on, so that the mixture says nothing of the network."""
    first = {"eval_accuracy": 1.0, "eval_loss": 0.01, "eval_loss_as_trained": 2.0}
    later = {"eval_accuracy": 1.0, "eval_loss": 0.02, "eval_loss_as_trained": 0.1}
    assert improves(later, first, "accuracy", True)
    assert not improves(first, later, "accuracy", True)
    assert not improves({**later, "eval_accuracy": 0.9}, first, "accuracy", True)
    # A run that an earlier version began did not log the network's loss.
    assert improves(later, {"eval_accuracy": 1.0, "eval_loss": 0.01}, "accuracy", True)


def test_of_equal_scores_without_a_loss_the_later_is_better() -> None:
    assert improves({"eval_f1": 1.0}, {"eval_f1": 1.0}, "f1", True)
    assert not improves({"eval_f1": 0.9}, {"eval_f1": 1.0}, "f1", True)


def test_many_validation_rows_need_no_remark(animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longspan.verbs.train.FEW_ROWS", 2)
    found = train(recipe(animals, "training.num_train_epochs=2"), run=tmp_path / "run", progress=False)
    assert "selection" not in found.details
    assert report.selection(found) == ""


@pytest.mark.parametrize("wide", [False, True])
def test_a_saturated_score_selects_the_epoch_with_the_lowest_loss(
    wide: bool, animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss falls in each epoch, so that each has a star and the last is kept, resumed or not.

    Where there are counts, it is that of the network alone.
    """
    monkeypatch.setattr(f"{__name__}.ACCURACIES", [1.0] * 9)
    settings = ["training.num_train_epochs=4", "training.learning_rate=1e-3", f"model.wide={str(wide).lower()}"]
    mine = recipe(animals, *settings)
    whole = train(mine, run=tmp_path / "whole")
    name = "validation_loss_as_trained" if wide else "validation_loss"
    losses = [row[name] for row in whole.history if name in row]
    assert losses == sorted(losses, reverse=True)
    assert (whole.kept_epoch, whole.stopped) == (4, None)
    rows = [line for line in capsys.readouterr().err.splitlines() if "1.0000" in line]
    assert [row[0] for row in rows] == ["*"] * 4
    found = whole.details["selection"]
    n = found["rows"]
    assert n == whole.data["validation"]["documents"]
    share = (n + 1) / (n + 2)
    assert found["standard_error"] == pytest.approx((share * (1 - share) / n) ** 0.5)
    assert (found["score"], found["epochs"], found["close"]) == ("accuracy", 4, 4)
    sentence = f"The model was chosen on {n} validation rows: accuracy has a standard error of"
    assert sentence in report.selection(whole)
    shown = report.training_summary(whole, "")
    assert "and 4 of 4 validations are within it of the best." in shown
    assert ("Of equal ones, the network with the lowest loss alone was kept." in shown) is wide
    assert sentence in (tmp_path / "whole/report.html").read_text()
    interrupted(mine, tmp_path / "run", 7)
    train(mine, run=tmp_path / "run", resume=True, progress=False)
    same_result(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_patience_survives_being_resumed(animals: Path, tmp_path: Path) -> None:
    """It is interrupted in the fourth epoch of three steps, after one evaluation without improvement."""
    mine = recipe(animals)
    assert train(mine, run=tmp_path / "whole", progress=False).steps == 12
    interrupted(mine, tmp_path / "run", 10)
    # A second evaluation without improvement, but not one of the training.
    result = train(mine, run=tmp_path / "run", finish=True, progress=False)
    assert (result.stopped, result.steps) == ("interrupted", 11)
    assert len(epochs(result.to_dict())) == 4
    train(mine, run=tmp_path / "run", resume=True, progress=False)
    same_result(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_what_has_stopped_early_stays_stopped_unless_it_is_given_more(animals: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    mine = recipe(animals)
    train(mine, run=run, progress=False)
    again = shutil.copytree(run, tmp_path / "again")
    # As if it had been killed before it was written.
    (again / "metrics.json").unlink()
    result = train(mine, run=again, resume=True, progress=False)
    assert (result.stopped, result.steps) == ("early", 12)
    same_result(again, run)
    (again / "metrics.json").unlink()
    assert train(mine, run=again, finish=True, progress=False).stopped == "early"
    with pytest.raises(UserError, match="is finished"):
        train(mine, run=run, resume=True)
    # With more epochs it has its patience again: the fifth is better, the next two are not.
    result = train(recipe(animals, "training.num_train_epochs=10"), run=run, resume=True, progress=False)
    assert (result.stopped, result.epochs, result.kept_epoch) == ("early", 7, 5)
    assert epochs(result.to_dict()) == [1, 2, 3, 4, 5, 6, 7]


def test_running_out_of_patience_with_the_last_step_is_no_early_stop(animals: Path, tmp_path: Path) -> None:
    result = train(recipe(animals, "training.num_train_epochs=4"), run=tmp_path / "run", progress=False)
    assert (result.stopped, result.steps, result.planned_steps) == (None, 12, 12)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.early_stopping_patience=-1", "early_stopping_patience must be at least 0, got -1"),
        ("training.eval_strategy=no", r"needs evaluations during training, but training\.eval_strategy is 'no'; set"),
        (
            "training.load_best_model_at_end=false",
            r"best model, but training\.load_best_model_at_end is false; set",
        ),
    ],
)
def test_settings_that_do_not_go_together(override: str, message: str, animals: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        train(recipe(animals, override), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
