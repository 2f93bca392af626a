"""Training that diverges ends at once: later steps would take hours and change nothing."""

from pathlib import Path

import pytest

from longspan import train
from longspan.cli import main
from longspan.errors import UserError
from longspan.training import base

TINY = ["data.tokens=words", "data.vocab_size=60", "model.dim=8", "model.heads=2", "training.warmup_steps=0"]


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["training.gradient_accumulation_steps=2", "training.bf16=true"]])
def test_it_ends_with_the_first_loss_that_is_not_finite(more: list[str], animals: Path, tmp_path: Path) -> None:
    given = [f"data.path={animals}", *TINY, "training.learning_rate=1e30", "training.num_train_epochs=500", *more]
    with pytest.raises(UserError, match=r"got one that is not in step 2, .* lower training\.learning_rate=1e\+30"):
        train("movie-reviews", given, run=tmp_path / "run", progress=False)


@pytest.mark.slow
def test_on_a_gpu_it_ends_before_anything_is_made_of_that_loss(
    animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "on_cpu", lambda tensor: False)
    given = [f"data.path={animals}", *TINY, "training.learning_rate=1e30", "training.logging_steps=1000"]
    given += ["training.save_strategy=steps", "training.save_steps=4", "training.eval_strategy=no"]
    with pytest.raises(UserError, match="got one that is not in step 2, "):
        train("movie-reviews", given, run=tmp_path / "run", progress=False)
    assert not [*(tmp_path / "run").rglob("checkpoint-*")]


def test_the_command_line_says_so_and_returns_2(
    animals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"data.path={animals}", *TINY, "training.learning_rate=1e30"]
    assert main(["train", "movie-reviews", *given, "--run", str(tmp_path / "run")]) == 2
    assert "training diverged; lower training.learning_rate=1e+30." in capsys.readouterr().err
