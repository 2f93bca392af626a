"""Softmax attention against PyTorch's own."""

import pytest
import torch
from torch import nn

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.softmax import Softmax


@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_nn_multihead_attention(causal: bool) -> None:
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    ours = Softmax(12, heads=3, causal=causal).double()
    with torch.no_grad():
        for name, weight, bias in zip(
            ("query", "key", "value"), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
        ):
            getattr(ours, name).weight.copy_(weight)
            getattr(ours, name).bias.copy_(bias)
        ours.output.load_state_dict(theirs.out_proj.state_dict())
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    future = torch.ones(9, 9, dtype=torch.bool).triu(1) if causal else None
    expected, _ = theirs(x, x, x, key_padding_mask=~mask, attn_mask=future, need_weights=False)
    torch.testing.assert_close(ours(x, mask), expected * mask.unsqueeze(-1))


def test_without_projection_or_biases_only_three_matrices_are_left() -> None:
    mixer = mixers.build("softmax", 16, heads=4, bias=False, output_projection=False)
    assert sum(p.numel() for p in mixer.parameters()) == 3 * 16 * 16


def test_heads_must_divide_dim() -> None:
    with pytest.raises(UserError, match="dim=10 and heads=4"):
        mixers.build("softmax", 10, heads=4)
