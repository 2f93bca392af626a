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
    LongspanTrainer.at_least(trainer, steps)  # type: ignore[arg-type]
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


def test_a_time_budget_may_be_spent_on_them(animals: Path, tmp_path: Path) -> None:
    tiny = [f"data.path={animals}", "data.tokens=words", "data.vocab_size=60", "model.dim=8", "model.heads=2"]
    given = [*tiny, "training.num_train_epochs=1", "training.min_steps=10", "training.max_minutes=9"]
    result = train("movie-reviews", given, run=tmp_path / "run", progress=False)
    assert result.steps == 12
    assert recipes.load(str(tmp_path / "run")).training["max_steps"] == 12


def test_fewer_than_none_are_refused() -> None:
    with pytest.raises(UserError, match="min_steps must be at least 0, got -1"):
        recipes.load("classify", ["training.min_steps=-1"])
