"""Scores of predicted numbers, against the formulas written out."""

import json

import numpy as np
import pytest
import torch

from longspan.errors import UserError
from longspan.tasks.document_regression.scores import RegressionScores, regression_scores, spearman


def test_scores_by_hand() -> None:
    scores = regression_scores(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([2.0, 2.0, 5.0]), mean=4.0, scale=2.0)
    assert scores.mae == pytest.approx(2 / 3)
    assert scores.rmse == pytest.approx((2 / 3) ** 0.5)
    assert scores.r2 == pytest.approx(1 - 2 / 6)
    assert scores.loss == pytest.approx(2 / 3 / 4)
    # Predicting 4 is off by 2, 2 and 1.
    assert scores.baseline == pytest.approx({"mae": 5 / 3, "rmse": 3**0.5})
    assert RegressionScores.headline() == "mae"
    assert not RegressionScores.higher_is_better()
    assert RegressionScores.from_dict(json.loads(json.dumps(scores.to_dict()))) == scores


def naive_ranks(values: np.ndarray) -> list[float]:
    """How many are smaller, and half of the others that are equal."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def test_spearman_is_the_correlation_of_ranks_with_ties() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        first, second = random.integers(0, 6, 30).astype(float), random.normal(size=30).round(1)
        expected = np.corrcoef(naive_ranks(first), naive_ranks(second))[0, 1]
        assert spearman(first, second) == pytest.approx(expected, abs=1e-12)
    assert spearman(np.array([1.0, 2, 3]), np.array([1.0, 10, 100])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == pytest.approx(-1)


def test_what_is_undefined_is_zero() -> None:
    same = regression_scores(torch.tensor([3.0, 4.0]), torch.tensor([5.0, 5.0]), mean=0.0, scale=1.0)
    assert (same.spearman, same.r2) == (0, 0)
    one = regression_scores(torch.tensor([3.0]), torch.tensor([5.0]), mean=0.0, scale=1.0)
    assert (one.mae, one.spearman, one.r2) == (2, 0, 0)


def test_large_numbers_keep_their_digits() -> None:
    """Squares of them would be off in float32."""
    true = torch.tensor([1.0e6, 1.0e6 + 1, 1.0e6 + 2])
    scores = regression_scores(true + 1, true, mean=1e6 + 1, scale=1.0)
    assert (scores.mae, scores.rmse, scores.r2) == pytest.approx((1, 1, -0.5))


def test_refuses_what_cannot_be_scored() -> None:
    with pytest.raises(UserError, match="at least one document with a number"):
        regression_scores(torch.zeros(0), torch.zeros(0), mean=0.0, scale=1.0)
    with pytest.raises(UserError, match="not finite for 1 of 2 documents"):
        regression_scores(torch.tensor([0.0, torch.inf]), torch.zeros(2), mean=0.0, scale=1.0)
    with pytest.raises(ValueError, match="as many predictions as targets"):
        regression_scores(torch.zeros(2, 1), torch.zeros(2), mean=0.0, scale=1.0)
