"""Softmax attention against PyTorch's own."""

import pytest
import torch
from torch import nn

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.softmax import Softmax


def with_weights_of(theirs: nn.MultiheadAttention, causal: bool = False) -> Softmax:
    ours = Softmax(12, heads=3, causal=causal).double()
    with torch.no_grad():
        for name, weight, bias in zip(
            ("query", "key", "value"), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
        ):
            getattr(ours, name).weight.copy_(weight)
            getattr(ours, name).bias.copy_(bias)
        ours.output.load_state_dict(theirs.out_proj.state_dict())
    return ours


@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_nn_multihead_attention(causal: bool) -> None:
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    ours = with_weights_of(theirs, causal)
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    future = torch.ones(9, 9, dtype=torch.bool).triu(1) if causal else None
    expected, _ = theirs(x, x, x, key_padding_mask=~mask, attn_mask=future, need_weights=False)
    torch.testing.assert_close(ours(x, mask), expected * mask.unsqueeze(-1))


@pytest.mark.parametrize("lengths", [(9, 4), (4, 9), (1, 9), (9, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_cross_attention_agrees_with_nn_multihead_attention(lengths: tuple[int, int], causal: bool) -> None:
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    ours = with_weights_of(theirs, causal=causal)
    x, context = (torch.randn(2, length, 12, dtype=torch.float64) for length in lengths)
    mask, context_mask = (torch.rand(2, length) > 0.3 for length in lengths)
    context_mask[:, 0] = True
    expected, _ = theirs(x, context, context, key_padding_mask=~context_mask, need_weights=False)
    y = ours(x, mask, context=context, context_mask=context_mask)
    torch.testing.assert_close(y, expected * mask.unsqueeze(-1))


def test_an_empty_context_gives_zeros_without_the_output_bias() -> None:
    """Known failure elsewhere: rows with nothing to attend to become uniform, or NaN."""
    mixer, x, context = Softmax(12, heads=3), torch.randn(2, 4, 12), torch.randn(2, 5, 12)
    y = mixer(x, context=context, context_mask=torch.tensor([[False] * 5, [True] * 5]))
    assert (y[0] == 0).all()
    assert (y[1] != 0).all()


def test_queries_that_continue_a_stream_see_all_earlier_keys() -> None:
    """Known failure elsewhere: causal masks aligned to the wrong corner when queries are fewer than keys."""
    mixer, x = Softmax(12, heads=3, causal=True).double(), torch.randn(1, 9, 12, dtype=torch.float64)
    _, state = mixer.step(x[:, :6], mixer.init_state(1))
    y, _ = mixer.step(x[:, 6:], state)
    torch.testing.assert_close(y, mixer(x)[:, 6:])


def test_without_projection_or_biases_only_three_matrices_are_left() -> None:
    mixer = mixers.build("softmax", 16, heads=4, bias=False, output_projection=False)
    assert sum(p.numel() for p in mixer.parameters()) == 3 * 16 * 16


def test_heads_must_divide_dim() -> None:
    with pytest.raises(UserError, match="dim=10 and heads=4"):
        mixers.build("softmax", 10, heads=4)
