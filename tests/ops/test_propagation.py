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


@given(n=st.integers(2, 8), count=st.integers(0, 20), steps=st.integers(1, 4))
def test_a_count_of_zero_removes_the_edges_to_others(n: int, count: int, steps: int) -> None:
    """Of a node with its own loop, as all have in graphs; what it passes to itself stays."""
    x, (source, target) = torch.randn(n, 3, dtype=torch.float64), torch.randint(n, (2, count))
    loops = torch.arange(n)
    source, target = torch.cat((source, loops)), torch.cat((target, loops))
    counts = (torch.arange(n) > 0).double()
    found = propagate(x, source, target, steps, 0.1, counts)
    there = (source > 0) | (target == 0)
    matrix = torch.zeros(n, n, dtype=torch.float64).index_put((target, source), there.double(), accumulate=True)
    begins = torch.zeros(n, dtype=torch.float64).index_add(0, source, torch.ones(len(source), dtype=torch.float64))
    matrix = matrix / matrix.sum(1, keepdim=True).sqrt() / begins.sqrt()
    expected = x
    for _ in range(steps):
        expected = 0.9 * matrix @ expected + 0.1 * x
    torch.testing.assert_close(found, expected)
