"""Masked attention against its naive form."""

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rounding import assert_within, rounding

from longspan.errors import UserError
from longspan.ops.attention import attended_mask, attention, attention_naive, check_context


@given(n=st.integers(1, 12), extra=st.integers(0, 9), causal=st.booleans(), masked=st.booleans(), fused=st.booleans())
def test_attention_is_the_formula(n: int, extra: int, causal: bool, masked: bool, fused: bool) -> None:
    """In plain products, as for few scores on a CPU, and in the fused kernel."""
    m = n + extra
    query, key = (torch.randn(2, 3, size, 4, dtype=torch.float64) for size in (n, m))
    value = torch.randn(2, 3, m, 5, dtype=torch.float64)
    mask = torch.rand(2, m) > 0.5 if masked else None
    with mock.patch("longspan.ops.attention._few", return_value=not fused):
        torch.testing.assert_close(
            attention(query, key, value, mask, causal), attention_naive(query, key, value, mask, causal)
        )


def test_half_precision_is_exact_up_to_its_rounding() -> None:
    query, key, value = (torch.randn(4, 2, 20, 8) for _ in range(3))
    exact = attention_naive(query.double(), key.double(), value.double(), causal=True)
    # Inputs, scores, weights and results are rounded to bfloat16; the error of a score is that of its weight.
    scores = (query.double() @ key.double().mT / 8**0.5).masked_fill(torch.ones(20, 20).triu(1) > 0, -torch.inf)
    errors = rounding(5, query.double().abs() @ key.double().abs().mT / 8**0.5, torch.bfloat16)
    weights = scores.softmax(3)
    changed = weights * (errors + (weights * errors).sum(3, keepdim=True) + rounding(3, 1.0, torch.bfloat16))
    allowed = changed @ value.double().abs()
    for few in (False, True):
        with mock.patch("longspan.ops.attention._few", return_value=few), torch.autocast("cpu", torch.bfloat16):
            found = attention(query.bfloat16(), key.bfloat16(), value.bfloat16(), causal=True)
            assert_within(found, exact, allowed)


@given(n=st.integers(1, 9), m=st.integers(1, 9), masked=st.booleans())
def test_keys_of_another_sequence_may_be_fewer_than_queries(n: int, m: int, masked: bool) -> None:
    query, key = (torch.randn(2, 3, size, 4, dtype=torch.float64) for size in (n, m))
    value = torch.randn(2, 3, m, 2, dtype=torch.float64)
    mask = torch.rand(2, m) > 0.5 if masked else None
    torch.testing.assert_close(attention(query, key, value, mask), attention_naive(query, key, value, mask))


def test_the_last_query_sees_every_key() -> None:
    """Known failure elsewhere: causal masks aligned to the wrong corner when queries are fewer than keys."""
    query, key = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 4, 1)
    value = torch.tensor([1.0, 2.0, 3.0, 10.0]).view(1, 1, 4, 1)
    assert attention(query, key, value, causal=True).flatten().tolist() == [2.0, 4.0]


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_without_keys_are_zero_and_have_finite_gradients(dtype: torch.dtype, few: bool) -> None:
    """Known failure elsewhere: rows with nothing to attend to become uniform, or NaN."""
    query, key, value = (torch.randn(2, 1, 3, 4, dtype=dtype, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[False] * 3, [False, False, True]])
    with mock.patch("longspan.ops.attention._few", return_value=few):
        out = attention(query, key, value, mask, causal=True)
    assert (out[0] == 0).all()
    assert (out[1, :, :2] == 0).all()
    out.sum().backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in (query, key, value))


def test_a_context_stands_alone() -> None:
    """Known failure elsewhere: a mask silently ignored."""
    x, mask = torch.zeros(1, 2, 3), torch.ones(1, 2, dtype=torch.bool)
    check_context(None, x, mask)
    check_context(mask.long(), None, None)
    with pytest.raises(UserError, match="the mask alone"):
        check_context(None, None, mask)
    with pytest.raises(UserError, match="document_ids"):
        check_context(mask.long(), x, None)


def test_outputs_are_due_at_real_positions_of_rows_with_a_context() -> None:
    x = torch.zeros(2, 2, 3)
    mask, context_mask = torch.tensor([[True, False], [True, True]]), torch.tensor([[True], [False]])
    assert attended_mask(x, None, None) is None
    assert attended_mask(x, mask, None) is mask
    for given_mask, expected in ((None, [[True, True], [False, False]]), (mask, [[True, False], [False, False]])):
        due = attended_mask(x, given_mask, context_mask)
        assert due is not None
        assert due.tolist() == expected
