"""Pictures of a language model's scores."""

from pathlib import Path

import pytest
from drawing import drawn

from longspan.tasks.language_modelling import task


@pytest.mark.parametrize("count", [1, 12])
def test_loss_by_position(tmp_path: Path, count: int) -> None:
    rows = [{"from": 2**n, "to": 2 ** (n + 1) - 1, "tokens": 2**n, "loss": 3 - n / 10} for n in range(count)]
    task.draw_loss_by_position(rows, tmp_path / "position.png")
    assert drawn(tmp_path / "position.png")[0] > drawn(tmp_path / "position.png")[1]
