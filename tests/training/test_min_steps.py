"""`training.min_steps`: the data decide how many epochs there are."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from longspan import recipes, train
from longspan.errors import UserError
from longspan.training.base import MOST_EPOCHS, LongspanTrainer


@pytest.mark.parametrize(
    ("steps", "batches", "accumulation", "max_steps", "epochs"),
    [
        (0, 7, 1, -1, 3),
        (21, 7, 1, -1, 3),
        (22, 7, 1, -1, 4),
        (700, 7, 1, -1, MOST_EPOCHS),
        # A step takes two batches, the last of an epoch one.
        (22, 7, 2, -1, 6),
        # A number of steps that is given counts for itself.
        (700, 7, 1, 5, 3),
        (4, 1, 8, -1, 4),
    ],
)
def test_epochs_follow_from_the_number_of_batches(steps, batches, accumulation, max_steps, epochs) -> None:
    args = SimpleNamespace(max_steps=max_steps, gradient_accumulation_steps=accumulation, num_train_epochs=3)
    trainer = SimpleNamespace(args=args, get_train_dataloader=lambda: range(batches))
    LongspanTrainer.raise_epochs_to(trainer, steps)  # type: ignore[arg-type]
    assert args.num_train_epochs == epochs


def test_a_training_run_takes_them_and_its_recipe_stays_as_it_was(animals: Path, tmp_path: Path) -> None:
    tiny = [f"data.path={animals}", "data.tokens=words", "data.vocab_size=60", "model.dim=8", "model.heads=2"]
    given = [*tiny, "training.num_train_epochs=1", "training.min_steps=10"]
    result = train("movie-reviews", given, run=tmp_path / "run", progress=False)
    # 173 documents in batches of 32.
    assert result.steps == 12
    written = recipes.load(str(tmp_path / "run"))
    assert written.training["num_train_epochs"] == 1
    assert written.options.min_steps == 10


def test_fewer_than_none_are_refused() -> None:
    with pytest.raises(UserError, match="min_steps must be at least 0, got -1"):
        recipes.load("classify", ["training.min_steps=-1"])


@pytest.mark.parametrize(
    ("given", "settings", "least"),
    [
        ([], {}, 300),
        (["training.learning_rate=1e-3"], {"max_minutes": 3}, 300),
        (["training.num_train_epochs=2"], {}, 0),
        # The user's number counts even where it is the recipe's own.
        ([f"training.num_train_epochs={recipes.load('classify').training['num_train_epochs']}"], {}, 0),
        (["training.max_steps=20"], {}, 0),
        ([], {"num_train_epochs": 2}, 0),
        ([], {"training": {"max_steps": 7}}, 0),
        (["training.num_train_epochs=2", "training.min_steps=40"], {}, 40),
        (["training.num_train_epochs=2"], {"min_steps": 40}, 40),
    ],
)
def test_what_the_user_sets_switches_off_the_minimum_of_the_recipe(given, settings, least) -> None:
    assert recipes.load("classify", given, settings=settings).options.min_steps == least


def test_a_file_may_have_both(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[training]\nnum_train_epochs = 2\nmin_steps = 40\n")
    assert recipes.load(str(tmp_path / "mine.toml")).options.min_steps == 40


def test_a_run_with_a_minimum_is_trained_longer(animals: Path, tmp_path: Path) -> None:
    tiny = [f"data.path={animals}", "data.tokens=words", "data.vocab_size=60", "model.dim=8", "model.heads=2"]
    (tmp_path / "mine.toml").write_text("[training]\nnum_train_epochs = 1\nmin_steps = 10\n")
    assert train(str(tmp_path / "mine.toml"), tiny, run=tmp_path / "run", progress=False).steps == 14
    longer = ["training.num_train_epochs=3"]
    assert train(str(tmp_path / "run"), longer, run=tmp_path / "run", resume=True, progress=False).steps == 21
    assert recipes.load(str(tmp_path / "run")).options.min_steps == 0
