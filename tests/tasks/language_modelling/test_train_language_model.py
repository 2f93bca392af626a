"""Training language models from a recipe: carried states survive being stopped in every way, to the bit."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from interruptions import interrupted, killed, same_result

from longspan import evaluate, recipes, train
from longspan.cli import main
from longspan.errors import UserError
from longspan.machine.printing import BARS
from longspan.mixers.base import Capabilities, Mixer
from longspan.results import TrainingResult
from longspan.tasks.base.task import Recipe
from longspan.tasks.language_modelling.scores import LanguageScores
from longspan.tasks.language_modelling.trainer import SegmentTrainer

pytestmark = pytest.mark.usefixtures("as_on_the_command_line")

RECIPE = """
task = "language_modelling"

[data]
tokens = "characters"
validation_fraction = 0.2
test_fraction = 0.1

[model]
dim = 16
depth = 2
heads = 2
mixers = ["relative", "additive"]
mixer_options.relative.memory = 20
initializer_range = 0.2
dropout = 0.1

[training]
segment_length = 8
num_train_epochs = 2
per_device_train_batch_size = 4
per_device_eval_batch_size = 3
learning_rate = 0.01
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe beside its data, twelve documents."""
    folder = tmp_path_factory.mktemp("stories")
    random = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "mats", "and", "saw", "a", "dog"]
    documents = [" ".join(random.choice(words, size)) for size in (50, 12, 3, 30, 1, 20, 44, 9, 17, 25, 8, 31)]
    (folder / "stories.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents))
    (folder / "tiny.toml").write_text(RECIPE.replace("[data]", f'[data]\npath = "{folder / "stories.jsonl"}"'))
    return folder / "tiny.toml"


def recipe(written: Path, *more: str) -> Recipe:
    return recipes.load(str(written), more)


@pytest.fixture(scope="module")
def whole(written: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingResult]:
    """A run that nothing interrupted."""
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, train(recipe(written), run=run, progress=False)


@pytest.mark.slow
def test_a_run_leaves_all_that_is_needed(whole: tuple[Path, TrainingResult]) -> None:
    run, result = whole
    for name in ("model.safetensors", "config.json", "tokenizer.json", "README.md", "learning_curve.png"):
        assert (run / name).stat().st_size > 0, name
    for split in ("validation", "test"):
        scores, text = result.scores[split], result.data[split]
        assert isinstance(scores, LanguageScores)
        assert scores.perplexity == pytest.approx(np.exp(scores.loss))
        bits = scores.loss / np.log(2) * (text["tokens"] + text["documents"])
        assert scores.bits_per_character == pytest.approx(bits / text["characters"])
    losses = [entry["validation_loss"] for entry in result.history if "validation_loss" in entry]
    assert len(losses) == 2
    assert result.scores["validation"].numbers()["loss"] == min(losses)
    assert result.tokens_per_second > 0
    assert 0 < result.padding_fraction < 0.2


@pytest.mark.slow
def test_evaluation_finds_the_scores_of_training(whole: tuple[Path, TrainingResult]) -> None:
    run, result = whole
    again = evaluate(run, split="test")
    for score, value in result.scores["test"].numbers().items():
        assert again.scores.numbers()[score] == pytest.approx(value, rel=1e-6), score


@pytest.mark.slow
@pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, 7), (signal.SIGTERM, 39)])
def test_a_training_interrupted_within_an_epoch_resumes_to_the_same_result(
    number: int, step: int, written: Path, tmp_path: Path, whole: tuple[Path, TrainingResult]
) -> None:
    steps = whole[1].steps // 2
    assert (step + 1) % steps
    assert (step > steps) == (step == 39)
    interrupted(recipe(written), tmp_path / "run", step, number)
    train(recipe(written), run=tmp_path / "run", resume=True, progress=False)
    same_result(tmp_path / "run", whole[0])


@pytest.mark.slow
def test_without_its_states_a_training_would_not_resume_to_the_same_result(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Path, TrainingResult]
) -> None:
    """The tests above would notice."""
    interrupted(recipe(written), tmp_path / "run", 7)
    monkeypatch.setattr(SegmentTrainer, "_read_states", lambda self, path: self._no_states())
    train(recipe(written), run=tmp_path / "run", resume=True, progress=False)
    with pytest.raises(AssertionError):
        same_result(tmp_path / "run", whole[0])


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_result(written: Path, tmp_path: Path) -> None:
    more = [f"training.{what}_strategy=steps" for what in ("save", "eval")]
    more += ["training.eval_steps=10", "training.save_steps=10", "training.gradient_accumulation_steps=2"]
    steps = train(recipe(written, *more), run=tmp_path / "whole", progress=False).steps
    assert 10 % (steps // 2)
    run = tmp_path / "run"
    kept = killed([str(written), *more], run)
    # What a kill in the middle of a save leaves behind: states, but not yet the file that comes last.
    shutil.copytree(kept, run / "checkpoints/checkpoint-999")
    (run / "checkpoints/checkpoint-999/seal.json").unlink()
    train(recipe(written, *more), run=run, resume=True, progress=False)
    same_result(run, tmp_path / "whole")


def test_a_training_of_so_many_steps_makes_no_more_when_it_is_resumed(written: Path, tmp_path: Path) -> None:
    """Known failure elsewhere: a run resumed after its last step, within an epoch, takes one step more."""
    ten = recipe(written, "training.max_steps=10")
    train(ten, run=tmp_path / "whole", progress=False)
    interrupted(ten, tmp_path / "run", 9)
    train(ten, run=tmp_path / "run", resume=True, progress=False)
    same_result(tmp_path / "run", tmp_path / "whole")


def test_a_finished_training_is_only_written_when_it_is_resumed(written: Path, tmp_path: Path) -> None:
    ten = recipe(written, "training.max_steps=10")
    train(ten, run=tmp_path / "run", progress=False)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    (tmp_path / "again/metrics.json").unlink()
    train(ten, run=tmp_path / "again", resume=True, progress=False)
    same_result(tmp_path / "again", tmp_path / "run")


def test_lost_states_are_a_sentence(written: Path, tmp_path: Path) -> None:
    interrupted(recipe(written), tmp_path / "run", 7)
    (tmp_path / "run/checkpoints/checkpoint-8/states-0.safetensors").unlink()
    with pytest.raises(UserError, match=r"checkpoint-8 is damaged \(states-0.safetensors is missing\); start"):
        train(recipe(written), run=tmp_path / "run", resume=True, progress=False)


class Forgetful(Mixer):
    """A causal mixer without states."""

    capabilities = Capabilities(causal=True)

    def mix(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return x

    def operations(self, length: int) -> int:
        return 0


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["training.segment_length=0"], "training.segment_length must be at least 1, got 0"),
        (["training.per_device_train_batch_size=400"], "tokens to train on"),
        (
            ["model.mixers=test_train_language_model.Forgetful", "model.mixer_options={}"],
            "a mixer that continues from a state, got forgetful, which has none; choose another mixer",
        ),
        (["model.mixers=bigbird", "model.mixer_options={}"], "no causal form"),
        (
            ["model.position=learned", "model.max_positions=30"],
            r"got \d+ in a document with its end; set model.max_positions=\d+",
        ),
        (
            ["model.position=learned", "model.max_positions=6", "model.mixers=softmax", "model.mixer_options={}"],
            "at most 6 tokens for learned positions, got 8 in a segment; set model.max_positions=8",
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    settings: list[str], told: str, written: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=told):
        train(recipe(written, *settings), run=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_learned_positions_need_to_reach_over_a_segment_where_nothing_is_carried(written: Path, tmp_path: Path) -> None:
    more = ["model.position=learned", "model.max_positions=8", "model.mixers=softmax", "model.mixer_options={}"]
    result = train(recipe(written, *more, "training.max_steps=2"), run=tmp_path / "run", progress=False)
    assert np.isfinite(result.scores["test"].numbers()["loss"])


def test_the_command_line_trains_a_language_model(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(tmp_path / "run")
    # As on a terminal.
    monkeypatch.setenv(BARS, "1")
    assert main(["train", str(written), "training.max_steps=3", "training.bf16=true", "--run", run]) == 0
    shown = capsys.readouterr()
    assert "bits per character" in shown.out
    assert "tokens/s" in shown.out
    # Books take minutes to score.
    assert "Training" in shown.err
    assert "Scoring" in shown.err


def test_without_progress_nothing_is_said(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(recipe(written, "training.max_steps=2"), run=tmp_path / "run", progress=False)
    assert capsys.readouterr().err == ""
