"""Attention with linear biases against its naive form, whole and in windows, with gradients."""

import pytest
import torch

from longspan.ops import blocks
from longspan.ops.alibi import alibi_attention, alibi_attention_naive, slopes
from longspan.ops.window import window_attention


@pytest.mark.slow
@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "radius"), [(9, None), (4, None), (90, 7), (40, 7)])
def test_agrees_with_the_naive_form(
    n: int, radius: int | None, causal: bool, in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = 9 if radius is None else 90
    query, key, value = (torch.randn(2, 3, t, 4, dtype=torch.float64, requires_grad=True) for t in (n, m, m))
    mask = torch.rand(2, m) > 0.4
    mask[1] = False
    if in_blocks:
        monkeypatch.setattr(blocks, "LARGE", 0)
        monkeypatch.setattr(blocks, "BLOCK", 1 << 10)
    for given in (None, mask):
        if radius is None:
            y = alibi_attention(query, key, value, given, causal)
        else:
            y = window_attention(query, key, value, radius, given, causal, alibi=True)
        expected = alibi_attention_naive(query, key, value, given, causal, radius)
        torch.testing.assert_close(y, expected)
        found = torch.autograd.grad((y**2).sum(), (query, key, value))
        torch.testing.assert_close(found, torch.autograd.grad((expected**2).sum(), (query, key, value)))


def test_slopes_are_the_published_ones() -> None:
    assert slopes(8) == [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8]
    assert slopes(16)[:3] == [2**-0.5, 2**-1, 2**-1.5]
