"""Training from a recipe: what a run leaves, and that it survives being stopped in every way."""

import json
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from interruptions import interrupted, killed, same_result
from transformers import pipeline
from transformers.utils import logging

from longspan import evaluate, recipes, train
from longspan.errors import UserError
from longspan.results import TrainingResult
from longspan.tasks.base.classes import ClassificationScores
from longspan.tasks.base.task import Recipe
from longspan.training.checkpoints import last_checkpoint
from longspan.training.lengths import LengthTrainer
from longspan.verbs.run_folders import RunFolder, arguments_of

pytestmark = pytest.mark.usefixtures("as_on_the_command_line")

SETTINGS = [
    "data.tokens=words",
    "data.validation_fraction=0.25",
    "data.test_fraction=0.1",
    "model.dim=16",
    "model.heads=2",
    "model.token_dropout=0.1",
    "model.initializer_range=0.2",
    "training.num_train_epochs=4",
    "training.per_device_train_batch_size=8",
    "training.per_device_eval_batch_size=7",
    "training.learning_rate=0.02",
    "training.batch_tokens=240",
]


def recipe(animals: Path, *more: str) -> Recipe:
    return recipes.load("quickstart", [f"data.path={animals}", "data.vocab_size=200", *SETTINGS, *more])


@pytest.fixture(scope="module")
def whole(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingResult]:
    """A run that nothing interrupted."""
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, train(recipe(animals), run=run, progress=False)


@pytest.mark.slow
def test_a_run_leaves_all_that_is_needed(whole: tuple[Path, TrainingResult]) -> None:
    run, result = whole
    validation, test = result.scores["validation"], result.scores["test"]
    assert isinstance(validation, ClassificationScores)
    assert isinstance(test, ClassificationScores)
    made = "model.safetensors config.json tokenizer.json recipe.toml environment.json metrics.json README.md"
    for name in [*made.split(), "learning_curve.png"]:
        assert (run / name).stat().st_size > 0, name
    assert validation.accuracy > 0.9
    assert test.accuracy > 0.8
    assert result.tokens_per_second > 0
    assert 0 <= result.padding_fraction < 0.3
    assert len([entry for entry in result.history if "validation_accuracy" in entry]) == 4
    assert json.loads((run / "metrics.json").read_text()) == result.to_dict()
    assert result.folder == str(run)
    measured = json.loads((run / "environment.json").read_text())
    assert measured["packages"]["torch"]
    # As the command line chose it before.
    assert measured["float32_matmul_precision"] == torch.get_float32_matmul_precision()
    assert recipes.load(str(run / "recipe.toml")).to_toml() == (run / "recipe.toml").read_text()
    assert not (run / ".unfinished").exists()


@pytest.mark.slow
def test_every_document_is_scored(whole: tuple[Path, TrainingResult]) -> None:
    """Accelerate cuts the last batch to the rest of rows / batch size, unless it knows no batch size."""
    run, result = whole
    for split in ("validation", "test"):
        assert sum(map(sum, result.scores[split].to_dict()["confusion"])) == result.data[split]["documents"]
    again = evaluate(run)
    assert again.scores.to_dict()["confusion"] == result.scores["test"].to_dict()["confusion"]


@pytest.mark.slow
def test_the_last_model_is_kept_where_the_recipe_says_so(animals: Path, tmp_path: Path) -> None:
    result = train(recipe(animals, "training.load_best_model_at_end=false"), run=tmp_path / "run", progress=False)
    assert result.kept_epoch == 4
    last = [entry for entry in result.history if "validation_loss" in entry][-1]
    assert result.scores["validation"].numbers()["accuracy"] == pytest.approx(last["validation_accuracy"])


@pytest.mark.slow
def test_without_evaluations_the_last_model_is_kept(animals: Path, tmp_path: Path) -> None:
    chosen = ("training.eval_strategy=no", "training.num_train_epochs=1")
    result = train(recipe(animals, *chosen), run=tmp_path / "run", progress=False)
    assert result.kept_epoch == 1
    assert result.scores["validation"].numbers()["accuracy"] > 0


@pytest.mark.slow
def test_the_run_folder_is_a_pipeline(whole: tuple[Path, TrainingResult]) -> None:
    classify = pipeline("text-classification", model=str(whole[0]), device="cpu")
    cat, dog = classify(["word1 purr meow whisker word2", "bark wag fetch"])
    assert (cat["label"], dog["label"]) == ("cat", "dog")


@pytest.mark.slow
def test_a_pipeline_warns_of_more_tokens_than_the_model_was_trained_to_read(
    animals: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    train(recipe(animals, "data.max_length=6", "training.num_train_epochs=1"), run=run, progress=False)
    classify = pipeline("text-classification", model=str(run), device="cpu")
    before = logging.get_verbosity()
    logging.enable_propagation()
    try:
        # Commands silence warnings.
        logging.set_verbosity_warning()
        classify("purr " * 6)
        assert "longer" not in caplog.text
        classify("purr " * 7)
    finally:
        logging.disable_propagation()
        logging.set_verbosity(before)
    assert "is longer than the specified maximum sequence length for this model (7 > 6)" in caplog.text


def test_an_existing_run_is_not_touched_without_being_told(animals: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "thesis.txt").write_text("my only copy")
    with pytest.raises(UserError, match="exists"):
        train(recipe(animals), run=run)
    with pytest.raises(UserError, match="not a run folder, so it is not overwritten"):
        train(recipe(animals), run=run, overwrite=True)
    assert (run / "thesis.txt").exists()


@pytest.mark.slow
def test_overwrite_replaces_a_run(animals: Path, tmp_path: Path, whole: tuple[Path, TrainingResult]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text("")
    (run / "old").write_text("")
    train(recipe(animals), run=run, overwrite=True, progress=False)
    assert not (run / "old").exists()
    same_result(run, whole[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "step"),
    # In the middle of an epoch, in the last step of one, and in the very last step.
    [(signal.SIGINT, 30), (signal.SIGTERM, 30), (signal.SIGINT, 21), (signal.SIGINT, 87)],
)
def test_interrupted_training_saves_and_resumes_to_the_same_result(
    number: int,
    step: int,
    animals: Path,
    tmp_path: Path,
    whole: tuple[Path, TrainingResult],
) -> None:
    run = tmp_path / "run"
    before = signal.getsignal(signal.SIGINT)
    interrupted(recipe(animals), run, step, number)
    assert signal.getsignal(signal.SIGINT) is before
    train(recipe(animals), run=run, resume=True, progress=False)
    same_result(run, whole[0])


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_result(
    animals: Path, tmp_path: Path, whole: tuple[Path, TrainingResult]
) -> None:
    run = tmp_path / "run"
    killed(["quickstart", f"data.path={animals}", "data.vocab_size=200", *SETTINGS], run)
    # What a kill in the middle of a save leaves behind.
    broken = run / "checkpoints" / "checkpoint-999"
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"half")
    (broken / "trainer_state.json").write_text('{"global_st')
    train(recipe(animals), run=run, resume=True, progress=False)
    same_result(run, whole[0])


@pytest.mark.slow
def test_a_full_disk_keeps_the_last_checkpoint(
    animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Path, TrainingResult]
) -> None:
    run = tmp_path / "run"
    usual = LengthTrainer._save_checkpoint
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def no_room(self: LengthTrainer, *args: Any) -> None:
        # From the second save on, files may not grow past 1,000 bytes: a real failing write.
        if self.state.epoch is not None and self.state.epoch > 1.5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            usual(self, *args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    with monkeypatch.context() as patch:
        patch.setattr(LengthTrainer, "_save_checkpoint", no_room)
        with pytest.raises(UserError, match=r"got an error .* checkpoint-22 kept; free some space"):
            train(recipe(animals), run=run, progress=False)
    kept = last_checkpoint(run / "checkpoints")
    assert kept is not None
    assert [path.name for path in (run / "checkpoints").iterdir()] == [kept.name]
    train(recipe(animals), run=run, resume=True, progress=False)
    same_result(run, whole[0])


@pytest.mark.slow
def test_a_full_disk_at_the_very_end_can_be_resumed(
    animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Path, TrainingResult]
) -> None:
    run = tmp_path / "run"

    usual = LengthTrainer.save_model

    def no_room(self: LengthTrainer, folder: str, _internal_call: bool = False) -> None:
        if Path(folder).name.startswith(".unfinished-"):
            raise OSError(28, "No space left on device")
        usual(self, folder, _internal_call)

    with monkeypatch.context() as patch:
        patch.setattr(LengthTrainer, "save_model", no_room)
        with pytest.raises(UserError, match=r"No space left on device.*--resume"):
            train(recipe(animals), run=run, progress=False)
    train(recipe(animals), run=run, resume=True, progress=False)
    same_result(run, whole[0])


@pytest.mark.slow
def test_resuming_wants_the_same_run(animals: Path, tmp_path: Path, whole: tuple[Path, TrainingResult]) -> None:
    (tmp_path / "no-run").mkdir()
    (tmp_path / "no-run/thesis.txt").write_text("my only copy")
    with pytest.raises(UserError, match="got none; leave out --resume"):
        train(recipe(animals), run=tmp_path / "no-run", resume=True)
    with pytest.raises(UserError, match="is finished"):
        train(recipe(animals), run=whole[0], resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/recipe.toml").write_text(recipe(animals).to_toml())
    with pytest.raises(UserError, match=r"started with, but training\.seed is 7 \(0 before\); with"):
        train(recipe(animals, "training.seed=7"), run=tmp_path / "other", resume=True)


def test_documents_longer_than_learned_positions_are_named_before_training(animals: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"at most 10 tokens .*, got 40 in a document; .*data.max_length=10"):
        train(recipe(animals, "model.position=learned", "model.max_positions=10"), run=tmp_path / "run")


def test_training_arguments_that_contradict_each_other_are_a_sentence(animals: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\[training\] does not fit together"):
        train(
            recipe(animals, "training.eval_strategy=no", "training.load_best_model_at_end=true"), run=tmp_path / "run"
        )


@pytest.mark.slow
def test_word_vectors_start_the_embeddings(animals: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.txt"
    numbers = " ".join(["1.5"] * 16)
    vectors.write_text(f"2 16\npurr {numbers}\nnowhere {numbers}\n")
    frozen = [f"training.word_vectors={vectors}", "training.learning_rate=0.0", "training.num_train_epochs=1"]
    result = train(recipe(animals, *frozen), run=tmp_path / "run", progress=False)
    assert result.word_vectors_found == 1


def test_the_best_epoch_is_that_of_the_score_that_is_named(animals: Path, tmp_path: Path) -> None:
    """Whether more of it is better goes with the name: `loss` in the recipe, another one on the command line."""
    for given, greater in (([], False), (["training.metric_for_best_model=accuracy"], True)):
        made = recipes.load("classify", [f"data.path={animals}", *given])
        assert arguments_of(made, RunFolder(tmp_path, "new"), False).greater_is_better is greater
    made = recipes.load("classify", [f"data.path={animals}", "training.metric_for_best_model=acuracy"])
    with pytest.raises(UserError, match=r"no training.metric_for_best_model 'acuracy'; did you mean 'accuracy'"):
        arguments_of(made, RunFolder(tmp_path, "new"), False)
