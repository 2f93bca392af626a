"""Cutting a width into heads."""

import pytest
import torch

from longspan.errors import UserError
from longspan.ops.heads import head_width, merge_heads, split_heads


def test_heads_are_cut_from_the_width_and_not_from_the_positions() -> None:
    """Known failure elsewhere: heads and positions scrambled by a reshape without a transpose."""
    x = torch.arange(2 * 5 * 6).view(2, 5, 6).float()
    heads = split_heads(x, 3)
    for head in range(3):
        assert torch.equal(heads[:, head], x[:, :, 2 * head : 2 * head + 2])
    assert torch.equal(merge_heads(heads), x)


@pytest.mark.parametrize("heads", [0, -2, 4])
def test_heads_must_divide_the_width(heads: int) -> None:
    with pytest.raises(UserError, match=f"local expected a dim that heads divides, got dim=10 and heads={heads}"):
        head_width("local", 10, heads)
    assert head_width("local", 10, 5) == 2
