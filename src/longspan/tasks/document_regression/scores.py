"""Scores of predicted numbers."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longspan.errors import UserError
from longspan.results.scores import Scores, check_finite, score


@dataclass(frozen=True)
class RegressionScores(Scores):
    """Scores of predicted numbers.

    Attributes:
        baseline: The `mae` and `rmse` of always predicting the mean of the training documents.
        mae: Mean absolute error, in the unit of the data.
        rmse: Root of the mean squared error, in the unit of the data.
        spearman: Correlation of ranks, equal numbers sharing the mean of theirs; 0 where all numbers are equal.
        r2: 1 - Σ (y - ŷ)² / Σ (y - ȳ)², ȳ being the mean of the split that is scored; 0 where all y are equal.
        loss: Training loss: the mean squared error over the variance of the training documents.
    """

    baseline: dict[str, float]
    mae: float = score("MAE", higher_is_better=False)
    rmse: float = score("RMSE", higher_is_better=False)
    spearman: float = score("Spearman", higher_is_better=True)
    r2: float = score("R²", higher_is_better=True)
    loss: float = score("loss", higher_is_better=False)


def regression_scores(
    predictions: Tensor | np.ndarray, targets: Tensor | np.ndarray, *, mean: float, scale: float
) -> RegressionScores:
    """Score predicted numbers against true ones.

    Args:
        predictions: `(n,)`, in the unit of the data.
        targets: `(n,)`, likewise.
        mean: The mean of the training documents.
        scale: Their standard deviation.

    Raises:
        UserError: There is nothing to score, or the predictions are not finite.
    """
    found, true = torch.as_tensor(predictions).double(), torch.as_tensor(targets).double()
    if found.shape != true.shape or found.ndim != 1:
        raise ValueError(f"expected as many predictions as targets, got {tuple(found.shape)} and {tuple(true.shape)}.")
    if not len(true):
        raise UserError("expected at least one document with a number to score, got none.")
    check_finite(found.unsqueeze(-1), "documents")
    squared = float((found - true).square().mean())
    variance = float((true - true.mean()).square().mean())
    around = true - mean
    return RegressionScores(
        baseline={"mae": float(around.abs().mean()), "rmse": float(around.square().mean().sqrt())},
        mae=float((found - true).abs().mean()),
        rmse=squared**0.5,
        spearman=spearman(found.numpy(), true.numpy()),
        r2=1 - squared / variance if variance else 0.0,
        loss=squared / scale**2,
    )


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Return the correlation of the ranks of two series of n numbers; 0 where those of one are all equal."""
    ranks = [_ranks(values) - (len(values) + 1) / 2 for values in (first, second)]
    sizes = [float(np.sqrt((rank**2).sum())) for rank in ranks]
    return float((ranks[0] * ranks[1]).sum() / (sizes[0] * sizes[1])) if all(sizes) else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 1; equal numbers share the mean of theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: np.ndarray = (last - (counts - 1) / 2)[group]
    return ranks
