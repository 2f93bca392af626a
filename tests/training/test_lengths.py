"""Training in batches by length."""

from pathlib import Path

import pytest
from transformers import TrainingArguments

from longspan import recipes
from longspan.errors import UserError
from longspan.train import train


def test_several_processes_are_refused(animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would have different numbers of batches, and wait for each other for ever."""
    monkeypatch.setattr(TrainingArguments, "world_size", 2)
    recipe = recipes.load("quickstart", [f"data.path={animals}", "data.tokens=words", "data.vocab_size=200"])
    with pytest.raises(UserError, match="takes one process, got 2: start it without torchrun"):
        train(recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
