"""Linformer against softmax attention and its own equations."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.linformer import Linformer, naive


def test_with_identities_for_sums_it_is_softmax_attention() -> None:
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    ours = Linformer(12, heads=3, rank=9, max_length=9).double()
    with torch.no_grad():
        for name, weight, bias in zip(
            ("query", "key", "value"), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
        ):
            getattr(ours, name).weight.copy_(weight)
            getattr(ours, name).bias.copy_(bias.normal_())
        ours.output.load_state_dict(theirs.out_proj.state_dict())
        ours.key_sums.copy_(torch.eye(9))
        ours.value_sums.copy_(torch.eye(9))
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize(
    "options", [{"bias": False}, {"rank": 1}, {"rank": 50, "max_length": 20}, {"heads": 1, "rank": 7}], ids=str
)
@pytest.mark.parametrize("t", [1, 20])
def test_options_agree_with_the_naive_form(options: dict[str, Any], t: int) -> None:
    mixer = Linformer(12, **({"heads": 3, "max_length": 64} | options)).double()
    x, mask = torch.randn(2, t, 12, dtype=torch.float64), torch.rand(2, t) > 0.4
    torch.testing.assert_close(mixer(x, mask), naive(mixer, x, mask))
    torch.testing.assert_close(mixer(x), naive(mixer, x))


def test_holes_do_not_move_tokens_to_other_columns() -> None:
    """Known failure elsewhere: padding before or between tokens gives them other columns of E, and its own bias."""
    mixer = Linformer(12, heads=3, rank=5, max_length=40)
    x, mask = torch.randn(1, 40, 12), torch.zeros(1, 40, dtype=torch.bool)
    mask[0, [4, 5, 11, 30]] = True
    torch.testing.assert_close(mixer(x, mask)[mask], mixer(x[mask].unsqueeze(0))[0])


def test_keys_and_values_are_summed_before_they_are_projected() -> None:
    """The paper's order costs 2·t·dim² more."""
    t, dim, rank = 128, 16, 8
    mixer = Linformer(dim, heads=4, rank=rank, max_length=t)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        mixer(torch.zeros(1, t, dim))
    products = 4 * t * rank * dim + 2 * t * dim**2 + 2 * rank * dim**2
    counts_of_positions = 2 * t * rank
    assert counter.get_total_flops() == 2 * (products + counts_of_positions)


def test_longer_rows_than_built_for_are_refused() -> None:
    with pytest.raises(UserError, match="at most 8 positions, got 9"):
        mixers.build("linformer", 16, max_length=8)(torch.zeros(1, 9, 16))


@pytest.mark.parametrize("left", [0, 3, 5])
def test_padding_does_not_count_as_length(left: int) -> None:
    mixer, x = mixers.build("linformer", 16, max_length=8), torch.randn(1, 8, 16)
    padded = torch.nn.functional.pad(x, (0, 0, left, 5 - left), value=7.0)
    mask = (torch.arange(13) >= left) & (torch.arange(13) < left + 8)
    torch.testing.assert_close(mixer(padded, mask.unsqueeze(0))[:, mask], mixer(x))
    mask[(left + 8) % 13] = True
    with pytest.raises(UserError, match="at most 8 positions, got 9"):
        mixer(padded, mask.unsqueeze(0))


@pytest.mark.parametrize("options", [{"rank": 0}, {"max_length": 0}])
def test_sizes_below_one_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match="at least 1"):
        mixers.build("linformer", 16, **options)
