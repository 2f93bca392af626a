"""Decaying sums over chunks against the recurrence, one step after the other."""

import pytest
import torch
from rounding import EXP, assert_within, rounding
from torch import Tensor

from longspan.ops import decay


def recurrence(chunks: Tensor, start: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    sums = [start]
    for i in range(chunks.shape[2]):
        kept = (-rates[:, :, i]).exp()
        sums.append(kept[(..., *[None] * (start.ndim - kept.ndim))] * sums[-1] + chunks[:, :, i])
    return torch.stack(sums[:-1], 2), sums[-1]


@pytest.mark.parametrize("rate", [0.0, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("n", [1, 2, 33, decay.FEW])
@pytest.mark.parametrize("widths", [(5,), (4, 3)])
@pytest.mark.parametrize("per_channel", [False, True])
def test_sums_before_each_chunk_are_the_recurrence(
    rate: float, n: int, widths: tuple[int, ...], per_channel: bool
) -> None:
    chunks, start = torch.randn(2, 3, n, *widths).double(), torch.randn(2, 3, *widths).double()
    rates = rate * torch.rand(2, 3, n, *widths[: int(per_channel)], dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (chunks, start, rates)]
    found, expected = decay.running_sums(chunks, start, rates), recurrence(chunks, start, rates)
    torch.testing.assert_close(found, expected)
    upstream = [torch.randn_like(x) for x in found]
    got, wanted = (torch.autograd.grad(each, inputs, upstream) for each in (found, expected))
    torch.testing.assert_close(got, wanted)


def test_factors_within_chunks_are_at_most_one_and_keep_their_digits() -> None:
    """Known failures elsewhere: separate factors of queries and keys, exp(-G_i) and exp(G_j), overflow.

    Sums in float32 of rates after a large one are rounded to its last place.
    """
    rates = torch.full((3, 8), 0.25)
    rates[:, 2] = 1e6
    found = decay.chunk_decay(rates)
    for i in range(8):
        for j in range(8):
            expected = torch.exp(-rates[:, j + 1 : i + 1].double().sum(1)) if j <= i else torch.zeros(3).double()
            # Sums of up to seven rates, in more digits, and an exponential of them.
            assert_within(found.within[:, i, j], expected, rounding(EXP + 2, 2 * expected, torch.float32))
    torch.testing.assert_close(found.until_end, torch.exp(-rates.flip(1).cumsum(1).flip(1) + rates))
    torch.testing.assert_close(found.since_start, torch.exp(-rates.cumsum(1)))


def test_factors_can_be_differentiated_twice() -> None:
    rates = torch.rand(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda rates: decay.chunk_decay(rates).within, rates)
