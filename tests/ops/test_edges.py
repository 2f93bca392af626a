"""Attention over edges against its form query by query and against dense attention."""

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.ops.attention import attention
from longspan.ops.edges import (
    batch_edges,
    by_target,
    by_target_operator,
    chain,
    edge_attention,
    edge_attention_gradient,
    edge_attention_naive,
    edge_attention_operator,
    in_order,
    new_ones,
    plain_attention,
)


def arguments(n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (n, 2, 4), (m, 2, 4), (m, 2, 3)
    query, key, value = (torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes)
    return query, key, value


def plainly() -> ExitStack:
    """Return a context in which the kernels are those that every device has."""
    stack = ExitStack()
    for each in (edge_attention_operator, edge_attention_gradient, by_target_operator):
        stack.enter_context(each.definition.set_kernel_enabled("cpu", enabled=False))
    return stack


@pytest.mark.parametrize("kernels", [ExitStack, plainly], ids=["loops", "plain"])
@given(n=st.integers(1, 9), m=st.integers(1, 9), count=st.integers(0, 30), density=st.floats(0, 1))
def test_is_the_sum_over_edges(kernels: Any, n: int, m: int, count: int, density: float) -> None:
    source, target = torch.randint(m, (count,)), torch.randint(n, (count,))
    tensors, keep, probe = arguments(n, m), torch.rand(count) < density, torch.randn(n, 2, 3, dtype=torch.float64)
    bias = torch.randn(count, 2, dtype=torch.float64).requires_grad_()
    factor = torch.randint(3, (count, 2)).double()
    for given_too in ((), (keep,), (None, bias), (keep, bias, factor)):
        with kernels():
            actual = edge_attention(*tensors, source, target, *given_too)
            inputs = [*tensors, *(one for one in given_too if one is bias)]
            found = torch.autograd.grad(actual, inputs, probe)
        expected = edge_attention_naive(*tensors, source, target, *given_too)
        torch.testing.assert_close(actual, expected)
        if expected.requires_grad:
            wanted = torch.autograd.grad(expected, inputs, probe, allow_unused=True, materialize_grads=True)
            torch.testing.assert_close(found, wanted)


def test_queries_and_keys_may_have_no_width() -> None:
    """So the bias alone is the score."""
    _, _, value = arguments(3, 4)
    source, target = torch.tensor([[0, 1, 2, 3, 1], [0, 0, 2, 2, 2]])
    bias = torch.randn(5, 2, dtype=torch.float64).requires_grad_()
    query, key = (torch.empty(count, 2, 0, dtype=torch.float64) for count in (3, 4))
    actual = edge_attention(query, key, value, source, target, bias=bias)
    expected = edge_attention_naive(query, key, value, source, target, bias=bias)
    torch.testing.assert_close(actual, expected)
    probe = torch.randn_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad(one, (value, bias), probe) for one in (actual, expected)))


def test_gradcheck_and_the_rules_of_operators() -> None:
    source, target = torch.randint(5, (2, 12))
    bias = torch.randn(12, 2, dtype=torch.float64).requires_grad_()
    keep, factor = torch.rand(12) < 0.7, torch.rand(12, 2, dtype=torch.float64)
    given_too = (source, target, keep, bias, factor)
    tensors = arguments(5, 5)
    assert torch.autograd.gradcheck(
        lambda query, key, value, *others: edge_attention(query, key, value, source, target, keep, *others),
        (*tensors, bias, factor),
    )
    rules = ("test_schema", "test_faketensor")
    torch.library.opcheck(edge_attention_operator.definition, (*tensors, *given_too), test_utils=rules)
    torch.library.opcheck(by_target_operator.definition, (source, target, 5, 5), test_utils=rules)


def test_threads_share_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = torch.randint(5, (2, 20))
    tensors, probe = arguments(5, 5), torch.randn(5, 2, 3, dtype=torch.float64)
    alone = edge_attention(*tensors, source, target)
    gradients = torch.autograd.grad(alone, tensors, probe)
    monkeypatch.setattr("longspan.ops.edges.numba.WORTH_SHARING", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    together = edge_attention(*tensors, source, target)
    assert torch.equal(together, alone)
    for one, other in zip(torch.autograd.grad(together, tensors, probe), gradients, strict=True):
        assert torch.equal(one, other)


def test_more_edges_than_are_read_ahead() -> None:
    """The order of edges changes sums by rounding alone."""
    tensors, (source, target) = arguments(40, 50), (torch.randint(50, (999,)), torch.randint(40, (999,)))
    probe, order = torch.randn(40, 2, 3, dtype=torch.float64), by_target(source, target, 50, 40)
    found = []
    for one, other in ((source, target), (source[order], target[order])):
        out = edge_attention(*tensors, one, other)
        found.append((out, *torch.autograd.grad(out, tensors, probe)))
    torch.testing.assert_close(*found)
    torch.testing.assert_close(
        found[0][0],
        plain_attention(*tensors, source, target, source[:0].bool(), probe[:0, :, 0], probe[:0, :, 0])[0],
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


@pytest.mark.parametrize("kernels", [ExitStack, plainly], ids=["loops", "plain"])
def test_edges_in_order(kernels: Any) -> None:
    source, target = torch.tensor([[3, 1, 3, 2, 1, 3], [0, 1, 0, 2, 1, 1]])
    with kernels():
        order = by_target(source, target, 4, 3)
        none = by_target(source[:0], target[:0], 4, 3)
    assert order.tolist() == [0, 2, 1, 4, 5, 3]
    assert none.tolist() == []
    assert new_ones(source[order], target[order]).tolist() == [True, False, True, False, True, True]
    assert not in_order(source, target)
    assert not in_order(source[order], target[order])
    assert in_order(source[[0, 1, 5, 3]], target[[0, 1, 5, 3]])
    assert in_order(source[:0], target[:0])


def test_a_chain_joins_neighbours() -> None:
    edges = {tuple(edge) for edge in chain(2, 3).T.tolist()}
    one = {(0, 0), (1, 1), (2, 2), (0, 1), (1, 0), (1, 2), (2, 1)}
    assert edges == {(row, *edge) for row in (0, 1) for edge in one}
    assert chain(1, 1).tolist() == [[0], [0], [0]]


def test_graphs_of_a_batch_keep_their_numbers() -> None:
    graphs = [torch.tensor([[0, 1], [1, 2]]), torch.zeros(2, 0, dtype=torch.long), torch.tensor([[5], [4]])]
    assert batch_edges(graphs).tolist() == [[0, 0, 2], [0, 1, 5], [1, 2, 4]]
