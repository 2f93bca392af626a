"""Depthwise convolution against its naive form and against PyTorch's."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d

from longspan.ops import depthwise
from longspan.ops.depthwise import depthwise_convolution, depthwise_convolution_naive


def gradients(y: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad((y**2).sum(), inputs)


@pytest.mark.parametrize("rows_at_once", [1, 2, 3])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_agrees_with_the_naive_form(
    width: int, apart: bool, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(3, 12, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(width, 5, dtype=torch.float64, requires_grad=True)
    together = torch.rand(3, 13 - width, width) > 0.4 if apart else None
    monkeypatch.setattr(depthwise, "_BLOCK", rows_at_once * x.nbytes // 3)
    y, expected = depthwise_convolution(x, weight, together), depthwise_convolution_naive(x, weight, together)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(gradients(y, x, weight), gradients(expected, x, weight))


def test_agrees_with_pytorchs_convolution() -> None:
    x, weight = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 30, 6), (4, 6)))
    expected = conv1d(x.mT, weight.T.unsqueeze(1), groups=6).mT
    y = depthwise_convolution(x, weight)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(gradients(y, x, weight), gradients(expected, x, weight))


def test_nothing_but_neighbours_is_read() -> None:
    x = torch.randn(1, 9, 2)
    x[:, 0] = torch.nan
    y = depthwise_convolution(x, torch.randn(3, 2))
    assert torch.equal(y.isnan().any(2), torch.tensor([[True] + [False] * 6]))
