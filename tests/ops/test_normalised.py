"""Vectors scaled to a length, against the formula."""

import pytest
import torch
from rounding import assert_within, rounding

from longspan.ops.normalised import normalised, normalised_naive, plain_normalised
from longspan.ops.normalised import numba as loops


@pytest.mark.parametrize("width", [1, 5, 8, 40])
def test_the_formula(width: int) -> None:
    x = torch.randn(2, 7, 3, width, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn_like(x)
    expected = normalised_naive(x, 1.5, 1e-2)
    (wanted,) = torch.autograd.grad(expected, x, upstream)
    for function in (normalised, plain_normalised):
        found = function(x, 1.5, 1e-2)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, x, upstream)[0], wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [-0.49, 0.49, 0.98])
def test_squares_may_be_larger_than_any_number(dtype: torch.dtype, exponent: float) -> None:
    """Outputs and gradients are those of a vector of usual size, times what the size makes of them."""
    size = torch.finfo(dtype).max ** exponent
    x = torch.randn(5, 20, dtype=dtype)
    upstream = torch.randn(5, 20, dtype=dtype)
    found: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    for factor, results in ((size, found), (1.0, expected)):
        leaf = (x * factor).requires_grad_()
        y = normalised(leaf, 2.0, 0.0)
        results += [y, torch.autograd.grad(y, leaf, upstream)[0] * factor]
    # Sums of 20 products, a root, inverses, and products with factors that are no powers of two.
    for one, other in zip(found, expected, strict=True):
        assert_within(one, other.double(), rounding(2 * 50, 2 * upstream.abs().max() * other.abs().max(), dtype))


def test_zeros_have_the_gradient_of_the_formula() -> None:
    x = torch.zeros(3, 4, requires_grad=True)
    y = normalised(x, 1.0, 1e-4)
    assert (y == 0).all()
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], torch.full((3, 4), 100.0))


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(11, 5)
    alone = normalised(x, 1.0, 1e-6)
    monkeypatch.setattr(loops, "WORTH_SHARING", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(normalised(x, 1.0, 1e-6), alone)
