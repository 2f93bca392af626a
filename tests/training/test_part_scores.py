"""What a run says of its model's parts, whichever checkpoint it keeps, and however often it was resumed."""

from pathlib import Path

import pytest
from transformers.utils import logging

from longspan import recipes, train

pytestmark = pytest.mark.usefixtures("as_on_the_command_line")

#: The last model is not the best, as the rate is far too high.
SETTINGS = [
    "data.tokens=words",
    "data.vocab_size=200",
    "data.test_fraction=0.2",
    "model.dim=16",
    "model.heads=2",
    "model.wide=true",
    "training.max_minutes=0",
    "training.num_train_epochs=3",
    "training.learning_rate=3.0",
    "training.lr_scheduler_type=constant",
    "training.warmup_steps=0",
    "training.metric_for_best_model=loss",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"word{(number * 7 + number * number) % 23}" for number in range(6000)), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["classify", "model-text"])
def test_a_run_resumed_after_the_checkpoint_that_it_keeps_tells_of_its_parts(
    recipe: str, animals: Path, text: Path, tmp_path: Path
) -> None:
    made = recipes.load(recipe, [f"data.path={animals if recipe == 'classify' else text}", *SETTINGS])
    whole = train(made, run=tmp_path / "run", progress=False)
    assert whole.kept_epoch is not None
    assert whole.kept_epoch < whole.epochs
    (tmp_path / "run" / "metrics.json").unlink()
    resumed = train(made, run=tmp_path / "run", resume=True, progress=False)
    for name in ("parts", "test_parts"):
        assert resumed.details[name] == whole.details[name], name


@pytest.mark.slow
def test_tied_weights_are_not_said_to_be_missing(text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are saved once; transformers' Trainer misses the other name when it loads the best checkpoint."""
    made = recipes.load("model-text", [f"data.path={text}", *SETTINGS, "model.wide=false"])
    logging.enable_propagation()
    try:
        train(made, run=tmp_path / "run", progress=False)
    finally:
        logging.disable_propagation()
    assert "missing keys" not in caplog.text
