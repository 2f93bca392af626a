"""Averages of neighbours against a dense matrix."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.ops.propagation import propagate, propagate_naive


@given(n=st.integers(1, 8), count=st.integers(0, 20), steps=st.integers(0, 4), teleport=st.floats(0, 1))
def test_is_the_power_of_a_matrix(n: int, count: int, steps: int, teleport: float) -> None:
    x, (source, target) = torch.randn(n, 3, dtype=torch.float64), torch.randint(n, (2, count))
    found = propagate(x, source, target, steps, teleport)
    torch.testing.assert_close(found, propagate_naive(x, source, target, steps, teleport))


def test_gradients() -> None:
    x, (source, target) = torch.randn(5, 2, dtype=torch.float64).requires_grad_(), torch.randint(5, (2, 9))
    assert torch.autograd.gradcheck(lambda x: propagate(x, source, target, 3, 0.2), (x,))
