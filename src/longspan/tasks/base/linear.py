"""Multinomial logistic regression over fixed features, the simple part of several tasks: `fit_linear`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

#: Penalties that validation chooses from, the strongest first, as shares of the mean square of an example's features.
PENALTIES = tuple(10.0 ** (-exponent / 2) for exponent in range(2, 15))
#: Factors of logits that validation chooses from: a penalty makes a model less sure, few examples make it too sure.
_FACTORS = tuple(2.0 ** (exponent / 2) for exponent in range(-6, 9))
#: Nats that a weaker penalty has to gain on all held-out examples: where these are few, confidence may be chance.
_STEP = 0.1
#: Weaker penalties that may be worse before the search ends.
_PATIENCE = 2


@dataclass(frozen=True)
class LinearFit:
    """A fitted model, the best on validation data.

    Attributes:
        weight: `(f, c)`.
        bias: `(c,)`.
        penalty: The chosen one of `PENALTIES`.
        loss: Cross-entropy on the validation data, with what a weaker penalty and a factor have to gain.
    """

    weight: Tensor
    bias: Tensor
    penalty: float
    loss: float


def fit_linear(
    features: Float[Tensor, "n f"],
    labels: Int[Tensor, " n"],
    held_out: Float[Tensor, "m f"],
    truth: Int[Tensor, " m"],
    classes: int,
    penalties: Sequence[float] = PENALTIES,
) -> LinearFit:
    """Fit weights to training data for each penalty, and return those with the lowest cross-entropy on held-out data.

    The problem is convex, so nothing depends on a seed: mean cross-entropy + λ/2 |W|², solved by L-BFGS. Each penalty
    starts at the solution of the one before.

    Args:
        features: Those of training examples, of similar scale.
        labels: Their classes.
        held_out: Features of validation examples.
        truth: Their classes.
        classes: Number of classes.
        penalties: Choices, the strongest first.
    """
    size = float(features.double().square().sum(1).mean().clamp_min(1e-12))
    # In units of the features' size, steps of the solver and penalties fit all data alike.
    scaled = features / size**0.5
    weight = features.new_zeros(features.shape[1], classes, requires_grad=True)
    bias = features.new_zeros(classes, requires_grad=True)
    best: LinearFit | None = None
    worse = 0
    for number, penalty in enumerate(penalties):
        _solve(scaled, labels, weight, bias, penalty)
        solved, shift = weight.detach() / size**0.5, bias.detach()
        logits = held_out @ solved + shift
        loss, factor = calibrated_loss(logits, truth)
        loss = (loss + number * _STEP) / len(truth)
        worse = 0 if best is None or loss < best.loss else worse + 1
        if not worse:
            best = LinearFit(factor * solved, factor * shift, penalty, loss)
        elif worse == _PATIENCE:
            break
    assert best is not None
    return best


def calibrated_loss(logits: Float[Tensor, "m c"], truth: Int[Tensor, " m"]) -> tuple[float, float]:
    """Sum of the cross-entropy of logits times the best factor, and this factor; one other than 1 has to earn it."""
    return min(
        (float(cross_entropy(factor * logits, truth, reduction="sum")) + math.log2(factor) ** 2, factor)
        for factor in _FACTORS
    )


def _solve(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, penalty: float) -> None:
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, tolerance_change=1e-7, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = cross_entropy(features @ weight + bias, labels) + penalty / 2 * weight.square().sum()
        found.backward()
        return found

    with torch.enable_grad():
        optimizer.step(loss)
