"""Softmax pooling and prefix means against their naive forms."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.ops import pooling


@given(t=st.integers(1, 50), padding=st.integers(0, 60))
def test_softmax_pool_is_the_weighted_mean_of_real_positions(t: int, padding: int) -> None:
    values, logits = torch.randn(2, t, 3, dtype=torch.float64), torch.randn(2, t, 4, dtype=torch.float64)
    mask = torch.arange(t).expand(2, t) < torch.tensor([[t], [max(0, t - padding)]])
    pooled = pooling.softmax_pool(values, logits, mask)
    torch.testing.assert_close(pooled, pooling.softmax_pool_naive(values, logits, mask))


def test_padding_is_left_out_of_the_normaliser() -> None:
    """Known failure elsewhere: padding zeroed in the values but left in the normaliser."""
    values, logits = torch.ones(1, 4, 1), torch.zeros(1, 4, 1)
    mask = torch.tensor([[True, True, False, False]])
    assert pooling.softmax_pool(values, logits, mask).item() == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_logits_of_ten_thousand_do_not_overflow(dtype: torch.dtype) -> None:
    """Known failure elsewhere: unshifted exp is infinite at 12 in float16 and at 89 in float32."""
    values = torch.arange(1.0, 5.0).view(1, 4, 1).to(dtype)
    logits = torch.tensor([-1e4, 1e4, 0.0, -1e4]).view(1, 4, 1).to(dtype)
    assert pooling.softmax_pool(values, logits).item() == 2.0
    means, _ = pooling.prefix_softmax_mean(values.unsqueeze(2), logits)
    assert means.flatten().tolist() == [1.0, 2.0, 2.0, 2.0]


@given(t=st.integers(1, 130), density=st.floats(0, 1), cut=st.integers(0, 130))
def test_prefix_mean_is_the_gated_recurrence(t: int, density: float, cut: int) -> None:
    values, logits = torch.randn(2, t, 3, 4, dtype=torch.float64), 3 * torch.randn(2, t, 3, dtype=torch.float64)
    mask = torch.rand(2, t) < density
    means, state = pooling.prefix_softmax_mean(values, logits, mask)
    expected, last = pooling.prefix_softmax_mean_naive(values, logits, mask)
    torch.testing.assert_close(means, expected)
    torch.testing.assert_close(state.mean, last.mean)
    cut = min(cut, t - 1)
    if cut:
        first, state = pooling.prefix_softmax_mean(values[:, :cut], logits[:, :cut], mask[:, :cut])
        second, state = pooling.prefix_softmax_mean(values[:, cut:], logits[:, cut:], mask[:, cut:], state)
        torch.testing.assert_close(torch.cat((first, second), 1), expected)
        torch.testing.assert_close(state.mean, last.mean)


def test_early_prefixes_survive_a_later_maximum() -> None:
    """Known failure elsewhere: cumulative exp sums with one global maximum give 0/0 for early positions."""
    logits = torch.linspace(-1e3, 1e3, 200).view(1, 200, 1)
    values = torch.arange(200.0).view(1, 200, 1, 1)
    means, _ = pooling.prefix_softmax_mean(values, logits)
    expected, _ = pooling.prefix_softmax_mean_naive(values.double(), logits.double())
    torch.testing.assert_close(means.double(), expected, rtol=1e-4, atol=1e-4)


def test_prefix_mean_of_65536_positions_is_right_in_bfloat16() -> None:
    """Sums are taken in float32, so that rounding does not grow with the length."""
    values = torch.randn(1, 65536, 1, 2).bfloat16()
    means, _ = pooling.prefix_softmax_mean(values, torch.zeros(1, 65536, 1).bfloat16())
    expected = values.double().cumsum(1) / torch.arange(1, 65537).view(1, -1, 1, 1)
    # The mean itself is rounded to bfloat16 once, which keeps eight bits.
    torch.testing.assert_close(means.double(), expected, rtol=1e-2, atol=1e-3)


def test_prefix_mean_gradients() -> None:
    values, logits = torch.randn(1, 40, 2, 2, dtype=torch.float64), torch.randn(1, 40, 2, dtype=torch.float64)
    mask = torch.rand(1, 40) > 0.3
    values.requires_grad_()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda v, z: pooling.prefix_softmax_mean(v, z, mask)[0], (values, logits))
