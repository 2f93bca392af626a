"""Masked attention against its naive form."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.ops.attention import attention, attention_naive


@given(n=st.integers(1, 12), extra=st.integers(0, 9), causal=st.booleans(), masked=st.booleans())
def test_attention_is_the_formula(n: int, extra: int, causal: bool, masked: bool) -> None:
    m = n + extra
    query, key, value = (torch.randn(2, 3, size, 4, dtype=torch.float64) for size in (n, m, m))
    mask = torch.rand(2, m) > 0.5 if masked else None
    torch.testing.assert_close(
        attention(query, key, value, mask, causal), attention_naive(query, key, value, mask, causal)
    )


def test_the_last_query_sees_every_key() -> None:
    """Known failure elsewhere: causal masks aligned to the wrong corner when queries are fewer than keys."""
    query, key = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 4, 1)
    value = torch.tensor([1.0, 2.0, 3.0, 10.0]).view(1, 1, 4, 1)
    assert attention(query, key, value, causal=True).flatten().tolist() == [2.0, 4.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_without_keys_are_zero_and_have_finite_gradients(dtype: torch.dtype) -> None:
    """Known failure elsewhere: rows with nothing to attend to become uniform, or NaN."""
    query, key, value = (torch.randn(2, 1, 3, 4, dtype=dtype, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[False] * 3, [False, False, True]])
    out = attention(query, key, value, mask, causal=True)
    assert (out[0] == 0).all()
    assert (out[1, :, :2] == 0).all()
    out.sum().backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in (query, key, value))
