"""Losses of candidates against naive forms."""

import math

import pytest
import torch
from recommending import LABELS
from torch import Tensor

from longspan import UserError
from longspan.models.parts.ranking import LOSSES, count_items, ranking_loss


def scores() -> Tensor:
    return torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 3


def naive(name: str, found: Tensor, labels: Tensor) -> list[float]:
    """The losses that a mean is taken of."""
    losses = []
    for row, marks in zip(found.tolist(), labels.tolist(), strict=True):
        clicked = [s for s, mark in zip(row, marks, strict=True) if mark == 1]
        skipped = [s for s, mark in zip(row, marks, strict=True) if mark == 0]
        if name == "softmax":
            losses += [-math.log(math.exp(s) / (math.exp(s) + sum(map(math.exp, skipped)))) for s in clicked]
        elif name == "binary":
            losses += [math.log1p(math.exp(-s)) for s in clicked] + [math.log1p(math.exp(s)) for s in skipped]
        else:
            losses += [math.log1p(math.exp(t - s)) for s in clicked for t in skipped]
    return losses


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_those_of_the_formulas(name: str) -> None:
    found, expected = scores().requires_grad_(), naive(name, scores(), LABELS)
    loss = ranking_loss(name, found, LABELS, None)
    assert count_items(name, LABELS) == len(expected)
    torch.testing.assert_close(loss.item(), sum(expected) / len(expected))
    torch.testing.assert_close(ranking_loss(name, found, LABELS, 40).item(), sum(expected) / 40)
    loss.backward()
    assert found.grad is not None
    # One clicked candidate alone is compared with nothing, unless it is judged for itself.
    assert found.grad[3, 2].ne(0) == (name == "binary")
    assert not found.grad[LABELS == -100].any()
    assert torch.autograd.gradcheck(lambda x: ranking_loss(name, x, LABELS, None), scores().requires_grad_())


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_float32_and_finite(name: str) -> None:
    extreme = torch.tensor([[300.0, -300.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    loss = ranking_loss(name, extreme, torch.tensor([[0, 1, 0]]), None)
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    loss.backward()
    assert extreme.grad is not None
    assert extreme.grad.isfinite().all()
    nothing = torch.full((1, 3), -100)
    assert ranking_loss(name, extreme, nothing, None) == 0
    assert ranking_loss(name, extreme[:, :0], nothing[:, :0], None) == 0
    with pytest.raises(UserError, match=r"labels of \(1, 3\), one for each candidate, got \(1, 2\)"):
        ranking_loss(name, extreme, nothing[:, :2], None)
