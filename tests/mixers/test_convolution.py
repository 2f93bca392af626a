"""Convolution against PyTorch's own."""

from typing import Any

import pytest
import torch
from torch import nn

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.convolution import Convolution, naive

OPTIONS: list[dict[str, Any]] = [
    {"kernel_size": 1},
    {"kernel_size": 5, "bias": False},
    {"kernel_size": 7, "depthwise": True},
    {"kernel_size": 4, "causal": True},
    {"kernel_size": 1, "causal": True},
    {"kernel_size": 2, "causal": True, "depthwise": True, "bias": False},
]


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_nn_conv1d(causal: bool, depthwise: bool) -> None:
    theirs = nn.Conv1d(6, 6, 5, padding=4 if causal else 2, groups=6 if depthwise else 1).double()
    ours = Convolution(6, kernel_size=5, causal=causal, depthwise=depthwise).double()
    ours.kernel.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 11, 6, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x.mT)[:, :, :11].mT)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("t", [1, 3, 20])
def test_options_agree_with_the_naive_form(options: dict[str, Any], t: int) -> None:
    mixer = Convolution(6, **options).double()
    x, mask = torch.randn(2, t, 6, dtype=torch.float64), torch.rand(2, t) > 0.3
    torch.testing.assert_close(mixer(x, mask), naive(mixer, x, mask))
    torch.testing.assert_close(mixer(x), naive(mixer, x))


@pytest.mark.parametrize("options", [o for o in OPTIONS if o.get("causal")], ids=str)
@pytest.mark.parametrize("size", [1, 2, 9])
def test_streams_with_a_state_of_constant_size(options: dict[str, Any], size: int) -> None:
    mixer, x = Convolution(6, **options), torch.randn(2, 20, 6)
    state, parts = mixer.init_state(2), []
    for part in x.split(size, 1):
        y, state = mixer.step(part, state)
        parts.append(y)
        assert state.inputs.shape == (2, options["kernel_size"] - 1, 6)
    torch.testing.assert_close(torch.cat(parts, 1), mixer(x))


def test_a_masked_position_keeps_its_place_and_counts_as_zero() -> None:
    """Known failure elsewhere: padding reaches its neighbours through the kernel."""
    mixer = Convolution(6, kernel_size=3)
    x = torch.randn(1, 7, 6)
    mask = torch.tensor([[True, True, False, True, True, True, True]])
    hidden, zero = x.clone(), x.clone()
    hidden[:, 2], zero[:, 2] = 1e4, 0
    torch.testing.assert_close(mixer(hidden, mask)[mask], mixer(zero)[mask])


@pytest.mark.parametrize("options", [{"kernel_size": 4}, {"kernel_size": 0}, {"kernel_size": 0, "causal": True}])
def test_kernel_sizes_without_a_middle_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"kernel_size={options['kernel_size']}"):
        mixers.build("convolution", 6, **options)
