"""Attention over edges against its form query by query and against dense attention."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.ops.attention import attention
from longspan.ops.edges import batch_edges, chain, edge_attention, edge_attention_naive, first_of_each


def arguments(n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (n, 2, 4), (m, 2, 4), (m, 2, 3)
    query, key, value = (torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes)
    return query, key, value


@given(n=st.integers(1, 9), m=st.integers(1, 9), count=st.integers(0, 30), density=st.floats(0, 1))
def test_is_the_sum_over_edges(n: int, m: int, count: int, density: float) -> None:
    source, target = torch.randint(m, (count,)), torch.randint(n, (count,))
    tensors, keep, probe = arguments(n, m), torch.rand(count) < density, torch.randn(n, 2, 3, dtype=torch.float64)
    for kept in (None, keep):
        actual = edge_attention(*tensors, source, target, kept)
        expected = edge_attention_naive(*tensors, source, target, kept)
        torch.testing.assert_close(actual, expected)
        if expected.requires_grad:
            torch.testing.assert_close(
                torch.autograd.grad(actual, tensors, probe), torch.autograd.grad(expected, tensors, probe)
            )


def test_all_edges_are_dense_attention() -> None:
    tensors = arguments(5, 7)
    source, target = torch.cartesian_prod(torch.arange(7), torch.arange(5)).T
    query, key, value = (tensor.transpose(0, 1).unsqueeze(0) for tensor in tensors)
    expected = attention(query, key, value)[0].transpose(0, 1)
    torch.testing.assert_close(edge_attention(*tensors, source, target), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scores_of_ten_thousand_do_not_overflow(dtype: torch.dtype) -> None:
    """Known failure elsewhere: unshifted exp is infinite at 12 in float16 and at 89 in float32."""
    query = torch.ones(3, 1, 1, dtype=dtype).requires_grad_()
    key = torch.tensor([1e4, -1e4, 0.0]).to(dtype).view(3, 1, 1)
    value = torch.tensor([1.0, 2.0, 4.0]).to(dtype).view(3, 1, 1)
    source, target = torch.tensor([[0, 1, 1, 2, 1], [0, 0, 1, 1, 2]])
    out = edge_attention(query, key, value, source, target)
    assert out.flatten().tolist() == [1.0, 4.0, 2.0]
    out.sum().backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()
    dropped = edge_attention(query, key, value, source, target, torch.tensor([False, True, True, True, False]))
    assert dropped.flatten().tolist() == [2.0, 4.0, 0.0]


def test_gradients_at_ties_are_those_of_softmax() -> None:
    """Known failure elsewhere: the gradient of the shift by a maximum, shared between ties, leaks into the scores."""
    query, key, value = (torch.ones(1, 1, 2, dtype=torch.float64).requires_grad_() for _ in range(3))
    keys = key.expand(4, 1, 2)
    values = value * torch.arange(4.0).view(4, 1, 1)
    source, target = torch.arange(4), torch.zeros(4, dtype=torch.long)
    out = edge_attention(query, keys, values, source, target)
    assert out.flatten().tolist() == [1.5, 1.5]
    gradients = torch.autograd.grad(out.sum(), (query, key, value))
    assert [gradient.flatten().tolist() for gradient in gradients] == [[0, 0], [0, 0], [1.5, 1.5]]


def test_the_first_of_equal_edges_is_kept() -> None:
    source, target = torch.tensor([[3, 1, 3, 2, 1, 3], [0, 1, 0, 2, 1, 1]])
    assert first_of_each(source, target).tolist() == [True, True, False, True, False, True]
    assert first_of_each(source[:0], target[:0]).tolist() == []


def test_a_chain_joins_neighbours() -> None:
    edges = {tuple(edge) for edge in chain(2, 3).T.tolist()}
    one = {(0, 0), (1, 1), (2, 2), (0, 1), (1, 0), (1, 2), (2, 1)}
    assert edges == {(row, *edge) for row in (0, 1) for edge in one}
    assert chain(1, 1).tolist() == [[0], [0], [0]]


def test_graphs_of_a_batch_keep_their_numbers() -> None:
    graphs = [torch.tensor([[0, 1], [1, 2]]), torch.zeros(2, 0, dtype=torch.long), torch.tensor([[5], [4]])]
    assert batch_edges(graphs).tolist() == [[0, 0, 2], [0, 1, 5], [1, 2, 4]]
