"""Runs that were stopped or that are to go on for longer: `finish`, and `resume` with more epochs or steps."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from interruptions import interrupted, same_result
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from longspan import cli, evaluate, predict, recipes, train
from longspan.errors import UserError
from longspan.results import TrainingResult
from longspan.tasks.base.task import Recipe
from longspan.training.base import LongspanTrainer
from longspan.verbs.runs import load_run

pytestmark = pytest.mark.usefixtures("as_on_the_command_line")

SETTINGS = [
    "data.tokens=words",
    "data.vocab_size=200",
    "data.validation_fraction=0.25",
    "data.test_fraction=0.1",
    "model.dim=16",
    "model.heads=2",
    "model.depth=1",
    "model.dropout=0.1",
    "model.token_dropout=0.1",
    "model.initializer_range=0.2",
    "training.num_train_epochs=2",
    "training.per_device_train_batch_size=16",
    "training.learning_rate=0.02",
    "model.wide=false",
]
#: Of one epoch, and where the runs below are stopped, in the second one.
STEPS, STOPPED = 10, 14


def recipe(animals: Path, *more: str) -> Recipe:
    return recipes.load("quickstart", [f"data.path={animals}", *SETTINGS, *more])


@pytest.fixture(scope="module")
def whole(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingResult]:
    """A run that nothing interrupted."""
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, train(recipe(animals), run=run, progress=False)


@pytest.fixture(scope="module")
def made_stopped(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ctrl-C has stopped."""
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("stopped") / "run"
    interrupted(recipe(animals), run, STOPPED - 1)
    return run


@pytest.fixture
def stopped(made_stopped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made_stopped, tmp_path / "run")


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


# finish


@pytest.mark.slow
def test_a_stopped_run_is_finished_with_what_it_had(animals: Path, stopped: Path, whole: Any) -> None:
    saved = checkpoints(stopped)
    assert saved == [f"checkpoint-{STEPS}", f"checkpoint-{STOPPED}"]
    result = train(recipe(animals), run=stopped, finish=True, progress=False)
    assert (result.steps, result.planned_steps, result.stopped) == (STOPPED, 2 * STEPS, "interrupted")
    assert result.epochs == pytest.approx(STOPPED / STEPS)
    # Where it was stopped it had not been scored yet.
    scored = {entry["step"]: entry["validation_accuracy"] for entry in result.history if "validation_loss" in entry}
    assert list(scored) == [STEPS, STOPPED]
    best = max(scored, key=lambda step: scored[step])
    assert result.kept_epoch == best / STEPS
    assert result.scores["validation"].numbers()["accuracy"] == scored[best]
    kept = stopped / f"checkpoints/checkpoint-{best}/model.safetensors"
    assert (stopped / "model.safetensors").read_bytes() == kept.read_bytes()
    assert {path.name for path in stopped.iterdir()} == {path.name for path in whole[0].iterdir()}
    assert json.loads((stopped / "metrics.json").read_text()) == result.to_dict()
    card = " ".join((stopped / "README.md").read_text().split())
    assert f"It was interrupted after epoch {STOPPED / STEPS} (step {STOPPED} of {2 * STEPS}) and finished" in card
    # No step was taken, and nothing was saved again.
    assert checkpoints(stopped) == saved
    again = evaluate(stopped)
    assert again.scores.numbers() == pytest.approx(result.scores["test"].numbers(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("better", [False, True])
def test_the_better_one_of_the_best_and_the_last_model_is_kept(
    better: bool, animals: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = LongspanTrainer._determine_best_metric

    def determine(self: LongspanTrainer, metrics: dict[str, float], trial: Any) -> bool:
        return usual(self, {**metrics, "eval_accuracy": 2.0 if better else 0.0}, trial)

    monkeypatch.setattr(LongspanTrainer, "_determine_best_metric", determine)
    result = train(recipe(animals), run=stopped, finish=True, progress=False)
    assert result.kept_epoch == (STOPPED / STEPS if better else 1)
    wanted = stopped / f"checkpoints/checkpoint-{STOPPED if better else STEPS}/model.safetensors"
    assert (stopped / "model.safetensors").read_bytes() == wanted.read_bytes()
    last = result.scores["validation"].numbers()["accuracy"]
    step = STOPPED if better else STEPS
    assert [row["validation_accuracy"] for row in result.history if row["step"] == step and len(row) > 3] == [last]


def test_the_last_model_is_kept_where_the_recipe_says_so(animals: Path, tmp_path: Path) -> None:
    last = recipe(animals, "training.load_best_model_at_end=false")
    interrupted(last, tmp_path / "run", 3)
    result = train(last, run=tmp_path / "run", finish=True, progress=False)
    assert (result.kept_epoch, result.steps) == (0.4, 4)
    kept = tmp_path / "run/checkpoints/checkpoint-4/model.safetensors"
    assert (tmp_path / "run/model.safetensors").read_bytes() == kept.read_bytes()


def test_a_run_without_evaluations_is_finished(animals: Path, tmp_path: Path) -> None:
    unscored = recipe(animals, "training.eval_strategy=no")
    interrupted(unscored, tmp_path / "run", 3)
    result = train(unscored, run=tmp_path / "run", finish=True, progress=False)
    assert (result.kept_epoch, result.steps, result.stopped) == (0.4, 4, "interrupted")
    assert result.scores["validation"].numbers()["loss"] > 0


@pytest.mark.slow
def test_a_finished_run_can_still_take_the_steps_it_had_been_stopped_before(
    animals: Path, stopped: Path, whole: tuple[Path, TrainingResult]
) -> None:
    train(recipe(animals), run=stopped, finish=True, progress=False)
    train(recipe(animals), run=stopped, resume=True, progress=False)
    same_result(stopped, whole[0])
    assert json.loads((stopped / "metrics.json").read_text())["stopped"] is None


@pytest.mark.slow
def test_stopped_by_ctrl_c_finished_by_hand(
    animals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user does it: ctrl-C, and what the message says."""
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "quickstart", f"data.path={animals}", *SETTINGS, "training.num_train_epochs=500"]
    arguments += ["training.eval_strategy=steps", "training.eval_steps=5", "--run", "mine"]
    told = tmp_path / "told.txt"
    process = forked.fork(lambda: cli.main(arguments), told)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("mine/checkpoints/*/seal.json")):
        assert time.monotonic() < deadline
        assert os.waitpid(process, os.WNOHANG) == (0, 0), told.read_text()
        time.sleep(0.02)
    os.kill(process, signal.SIGINT)
    assert forked.ended(process) == 130
    said = told.read_text()
    assert "run the same command with --resume to continue, or with --finish to end here with a complete run." in said
    assert cli.main(["evaluate", "mine"]) == 2
    assert "end it with --finish, or name one of its checkpoints with --checkpoint." in capsys.readouterr().err
    assert cli.main(["evaluate", "mine", "--checkpoint", "last"]) == 0
    assert "written to mine/evaluation/checkpoint-" in capsys.readouterr().out
    # The run folder is as good as the recipe and its overrides.
    assert cli.main(["train", "mine", "--finish"]) == 0
    shown = capsys.readouterr().out
    assert "training was interrupted after epoch " in shown
    assert "of 5,000) and finished with its last checkpoint; the model kept is that after epoch " in shown
    assert "\nrun folder: mine\n" in shown
    assert cli.main(["evaluate", "mine"]) == 0


def test_what_cannot_be_finished(
    animals: Path, tmp_path: Path, stopped: Path, whole: tuple[Path, TrainingResult], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = recipe(animals)
    with pytest.raises(UserError, match=r"expected a run to finish in .*nowhere, got none; leave out --finish to"):
        train(mine, run=tmp_path / "nowhere", finish=True)
    with pytest.raises(UserError, match=r"is finished; see .*metrics.json, train it longer with --resume and a larger"):
        train(mine, run=whole[0], finish=True)
    with pytest.raises(UserError, match=r"training\.num_train_epochs is 3 \(2 before\); give the same recipe and over"):
        train(recipe(animals, "training.num_train_epochs=3"), run=stopped, finish=True)
    shutil.rmtree(stopped / "checkpoints")
    with pytest.raises(UserError, match=r"expected a checkpoint to finish in .*, got none; start again with"):
        train(mine, run=stopped, finish=True)
    assert not (stopped / "metrics.json").exists()
    with pytest.raises(UserError, match="expected one of resume, overwrite and finish, got resume and finish; choose"):
        train(mine, run=stopped, finish=True, resume=True)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["train", str(stopped), "--finish", "--resume"])
    assert "not allowed with argument" in capsys.readouterr().err


# resume with more


@pytest.mark.slow
def test_a_run_with_more_epochs_ends_as_if_it_had_had_them_from_the_start(animals: Path, tmp_path: Path) -> None:
    """The learning rate is constant, so that no step depends on how many follow."""
    constant = ["training.lr_scheduler_type=constant", "training.logging_steps=5"]
    more = recipe(animals, *constant, "training.num_train_epochs=3")
    train(more, run=tmp_path / "whole", progress=False)
    train(recipe(animals, *constant), run=tmp_path / "finished", progress=False)
    interrupted(recipe(animals, *constant), tmp_path / "stopped", STOPPED - 1)
    for run in (tmp_path / "finished", tmp_path / "stopped"):
        result = train(more, run=run, resume=True, progress=False)
        assert (result.steps, result.planned_steps, result.stopped) == (3 * STEPS, 3 * STEPS, None)
        same_result(run, tmp_path / "whole")
        assert (run / "recipe.toml").read_text() == more.to_toml()


def rates(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Collect the learning rate of each step."""
    found: dict[int, float] = {}
    usual = LongspanTrainer.training_step

    def training_step(self: LongspanTrainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        assert self.optimizer is not None
        found[self.state.global_step] = self.optimizer.param_groups[0]["lr"]
        return usual(self, *args, **kwargs)

    monkeypatch.setattr(LongspanTrainer, "training_step", training_step)
    return found


@pytest.mark.slow
def test_the_learning_rate_goes_on_with_the_schedule_over_all_steps(
    animals: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rates(monkeypatch)
    train(recipe(animals, "training.max_steps=50"), run=stopped, resume=True, progress=False)
    assert found == {step: pytest.approx(0.02 * (1 - step / 50)) for step in range(STOPPED, 50)}


def test_from_the_command_line_a_finished_run_is_trained_longer(
    animals: Path, tmp_path: Path, whole: tuple[Path, TrainingResult], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    found = rates(monkeypatch)
    run = shutil.copytree(whole[0], tmp_path / "run")
    assert cli.main(["train", str(run), "training.num_train_epochs=3", "--resume", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    # It would have been zero by the old schedule.
    assert found[2 * STEPS] == pytest.approx(0.02 / 3)
    assert (result["steps"], result["planned_steps"], result["folder"]) == (3 * STEPS, 3 * STEPS, str(run))
    assert [row["step"] for row in result["history"] if "validation_loss" in row] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert load_run(run).recipe.training["num_train_epochs"] == 3
    assert cli.main(["train", str(run), "--resume"]) == 2
    assert "is finished; see" in capsys.readouterr().err


def test_a_run_that_is_killed_while_it_is_trained_longer_goes_on(
    animals: Path, tmp_path: Path, whole: tuple[Path, TrainingResult]
) -> None:
    run = shutil.copytree(whole[0], tmp_path / "run")
    more = recipe(animals, "training.num_train_epochs=3")

    class Killed(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LongspanTrainer, "training_step", die)
        with pytest.raises(Killed):
            train(more, run=run, resume=True, progress=False)
    # Its model is still the one from before, but the run says that it is unfinished.
    assert (run / "model.safetensors").exists()
    assert not (run / "metrics.json").exists()
    with pytest.raises(UserError, match=r"expected training\.num_train_epochs to be at least 3, .*, got 2; to end the"):
        train(recipe(animals), run=run, resume=True)
    result = train(more, run=run, resume=True, progress=False)
    assert (result.steps, result.stopped) == (3 * STEPS, None)


def test_what_cannot_be_trained_longer(animals: Path, tmp_path: Path, whole: tuple[Path, TrainingResult]) -> None:
    run = shutil.copytree(whole[0], tmp_path / "run")
    before = sorted(path.name for path in run.iterdir())
    with pytest.raises(UserError, match=r"at least 2, as when .* was started, got 1; to end the run where it was stop"):
        train(recipe(animals, "training.num_train_epochs=1"), run=run, resume=True)
    changes = ["data.lowercase=true", "model.dim=32", "training.learning_rate=0.1", "training.weight_decay=0.1"]
    several = recipe(animals, "training.num_train_epochs=3", *changes)
    message = (
        r"but data\.lowercase is true \(false before\), model\.dim is 32 \(16 before\), training.* and 1 more differ"
    )
    with pytest.raises(UserError, match=rf"{message}; with --resume only training\.num_train_epochs, t"):
        train(several, run=run, resume=True)
    # Steps go before epochs, and these are fewer, or as many.
    for steps in (15, 2 * STEPS):
        message = (
            rf"more than the 20 steps that .*, got {steps} from training\.max_steps={steps}, which goes before epochs"
        )
        with pytest.raises(UserError, match=message):
            train(recipe(animals, "training.num_train_epochs=3", f"training.max_steps={steps}"), run=run, resume=True)
    assert sorted(path.name for path in run.iterdir()) == before
    shutil.rmtree(run / f"checkpoints/checkpoint-{2 * STEPS}")
    with pytest.raises(UserError, match=r"expected checkpoint-20 in .*, with which the run ended, but "):
        train(recipe(animals, "training.num_train_epochs=3"), run=run, resume=True)
    assert sorted(path.name for path in run.iterdir()) == before


# time over all sessions


def test_time_and_tokens_count_all_sessions(animals: Path, stopped: Path, whole: tuple[Path, TrainingResult]) -> None:
    saved = json.loads((stopped / f"checkpoints/checkpoint-{STOPPED}/trainer_state.json").read_text())
    before = saved["stateful_callbacks"]["Sessions"]["attributes"]
    assert before["tokens"] > 0
    assert before["seconds"] > before["training_seconds"] > 0
    result = train(recipe(animals), run=stopped, resume=True, progress=False)
    state = json.loads((stopped / f"checkpoints/checkpoint-{2 * STEPS}/trainer_state.json").read_text())
    after = state["stateful_callbacks"]["Sessions"]["attributes"]
    # Every token of two epochs.
    assert after["tokens"] == 2 * result.data["train"]["tokens"]
    assert (
        result.seconds > after["seconds"] > before["seconds"] + after["training_seconds"] - before["training_seconds"]
    )
    assert result.tokens_per_second == pytest.approx(after["tokens"] / after["training_seconds"], rel=0.5)


def test_resuming_at_the_very_end_keeps_the_speed(animals: Path, tmp_path: Path, whole: Any) -> None:
    run = shutil.copytree(whole[0], tmp_path / "run")
    (run / "metrics.json").unlink()
    result = train(recipe(animals), run=run, resume=True, progress=False)
    assert result.tokens_per_second == pytest.approx(whole[1].tokens_per_second, rel=0.5)
    assert result.seconds > whole[1].seconds * 0.5
    assert result.peak_memory_bytes >= whole[1].peak_memory_bytes


def test_a_checkpoint_of_an_earlier_version_has_no_sums(animals: Path, stopped: Path) -> None:
    from longspan.training.checkpoints import seal

    checkpoint = stopped / f"checkpoints/checkpoint-{STOPPED}"
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    del state["stateful_callbacks"]["Sessions"]
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    seal(checkpoint)
    result = train(recipe(animals), run=stopped, resume=True, progress=False)
    assert result.steps == 2 * STEPS
    assert result.tokens_per_second > 0


# evaluate a checkpoint


def test_checkpoints_can_be_used_by_themselves(stopped: Path) -> None:
    checkpoint = stopped / f"checkpoints/checkpoint-{STOPPED}"
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    ids = tokenizer("purr meow whisker", return_tensors="pt")
    assert model(**ids).logits.shape == (1, 2)
    assert model.config.id2label == {0: "cat", 1: "dog"}
    assert tokenizer.unk_token_id not in ids["input_ids"]


@pytest.mark.slow
def test_a_checkpoint_is_scored_as_in_training(animals: Path, stopped: Path, capsys: Any) -> None:
    result = train(recipe(animals), run=stopped, finish=True, progress=False)
    evaluate(stopped, split="validation")
    final = (stopped / "evaluation/metrics.json").read_bytes()
    for step, given in ((STEPS, STEPS), (STEPS, str(STEPS)), (STOPPED, "last")):
        found = evaluate(stopped, split="validation", checkpoint=given)
        assert found.checkpoint == step
        assert found.folder == f"{stopped}/evaluation/checkpoint-{step}"
        (scored,) = (row for row in result.history if row["step"] == step and "validation_loss" in row)
        assert found.scores.numbers()["loss"] == pytest.approx(scored["validation_loss"], rel=1e-5)
    assert (stopped / "evaluation/metrics.json").read_bytes() == final


def test_a_checkpoint_of_an_unfinished_run_predicts(stopped: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "new.csv").write_text("text\npurr meow whisker\n")
    (one,) = predict(stopped, tmp_path / "new.csv", checkpoint="last")
    assert one.error is None
    assert cli.main(["predict", str(stopped), str(tmp_path / "new.csv"), "--checkpoint", "last"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(one.to_dict()))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def refusals(stopped: Path) -> Iterator[tuple[str, str]]:
    yield "30", r"expected a checkpoint in .*checkpoints, got '30'; choose from 10 and 14, or last\."
    yield "best", r"got 'best'; choose from 10 and 14, or last\."
    flip(stopped / f"checkpoints/checkpoint-{STOPPED}/model.safetensors")
    yield "last", r"checkpoint-14 is damaged \(model\.safetensors has changed\); choose from 10\."
    (stopped / f"checkpoints/checkpoint-{STEPS}/seal.json").unlink()
    yield "10", r"got '10'; choose from 14, or last\."
    (stopped / f"checkpoints/checkpoint-{STOPPED}/tokenizer.json").unlink()
    yield "14", r"checkpoint-14 is damaged \(.* has changed\); there is no other\."
    shutil.rmtree(stopped / "checkpoints")
    yield "last", r"expected a checkpoint in .*checkpoints, got none; leave out --checkpoint"


def test_a_checkpoint_that_cannot_be_scored(stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wanted, message in refusals(stopped):
        with pytest.raises(UserError, match=message):
            load_run(stopped, checkpoint=wanted)
    with pytest.raises(UserError, match=r"expected recipe\.toml in the run folder"):
        load_run(tmp_path, checkpoint="last")
    assert cli.main(["evaluate", str(stopped), "--checkpoint", "last"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_checkpoint_is_no_run_folder(stopped: Path) -> None:
    with pytest.raises(UserError, match=r"got a checkpoint in .*; name its run '.*run' and --checkpoint 14\."):
        evaluate(stopped / f"checkpoints/checkpoint-{STOPPED}")
    with pytest.raises(UserError, match=r"expected checkpoint=14 with the path of a run, got a loaded run"):
        evaluate(load_run(stopped, checkpoint=14), checkpoint=14)
