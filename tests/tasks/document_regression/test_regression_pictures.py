"""The picture of predicted against true numbers, for any numbers."""

from pathlib import Path

import numpy as np
import pytest
from drawing import drawn

from longspan.tasks.document_regression.scores import regression_scores
from longspan.tasks.document_regression.task import POINTS, draw_predictions


@pytest.mark.slow
@pytest.mark.parametrize("documents", [1, 50, POINTS + 1])
def test_points_or_their_density(documents: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    true = random.normal(size=documents).astype(np.float32)
    predicted = (0.5 * true + random.normal(size=documents)).astype(np.float32)
    scores = regression_scores(predicted, true, mean=0.0, scale=1.0)
    draw_predictions(predicted, true, scores, "price in $, not $x_{", tmp_path / "predicted.png")
    drawn(tmp_path / "predicted.png")


def test_numbers_that_are_all_equal(tmp_path: Path) -> None:
    same = np.full(3, 5.0, dtype=np.float32)
    scores = regression_scores(same, same, mean=5.0, scale=1.0)
    draw_predictions(same, same, scores, "", tmp_path / "predicted.png")
    drawn(tmp_path / "predicted.png")
