"""Softmax-weighted means of the parts of a row."""

import pytest
import torch

from longspan.ops.segments import segment_softmax_pool, segment_softmax_pool_naive, segment_sum

# The third segment of the first row is empty, and padding is on either side, and in between.
SEGMENTS = torch.tensor([[3, 0, 0, 1, 1, 3, 0], [0, 2, 2, 3, 3, 1, 1]])
MASK = torch.tensor([[0, 1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0, 0]]).bool()


@pytest.mark.parametrize("mask", [None, MASK])
def test_it_is_the_naive_form_with_its_gradients(mask: torch.Tensor | None) -> None:
    torch.manual_seed(0)
    values = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    logits = (50 * torch.randn(2, 7, dtype=torch.float64)).requires_grad_()
    found = segment_softmax_pool(values, logits, SEGMENTS, 4, mask)
    expected = segment_softmax_pool_naive(values, logits, SEGMENTS, 4, mask)
    torch.testing.assert_close(found, expected)
    assert not found[0, 2].any()
    weights = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), (values, logits)),
        torch.autograd.grad((expected * weights).sum(), (values, logits)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_padding_is_in_no_segment_whatever_it_holds() -> None:
    values, logits = torch.randn(2, 7, 3), torch.randn(2, 7)
    rubbish = values.masked_fill(~MASK.unsqueeze(-1), torch.nan), logits.masked_fill(~MASK, torch.inf)
    numbers = SEGMENTS.masked_fill(~MASK, 2)
    found = segment_softmax_pool(*rubbish, numbers, 4, MASK)
    torch.testing.assert_close(found, segment_softmax_pool_naive(values, logits, SEGMENTS, 4, MASK))
    assert not segment_softmax_pool(values, logits, SEGMENTS, 4, torch.zeros_like(MASK)).any()
    counts = segment_sum(torch.ones(2, 7, 1), SEGMENTS, 4, MASK)[..., 0]
    assert counts.tolist() == [[3, 1, 0, 1], [1, 0, 2, 2]]


def test_half_precision_sums_in_more() -> None:
    values = torch.ones(1, 4096, 1, dtype=torch.bfloat16)
    one = torch.zeros(1, 4096, dtype=torch.long)
    # bfloat16 stops counting at 256.
    assert segment_sum(values, one, 1).item() == 4096
    pooled = segment_softmax_pool(values, torch.zeros(1, 4096, dtype=torch.bfloat16), one, 1)
    assert pooled.dtype == torch.bfloat16
    assert pooled.item() == 1
