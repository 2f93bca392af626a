"""The host never waits for a GPU in a mixer: see `unread`, which stands for one."""

from typing import Any

import pytest
import torch
from unread import DEVICE, unread

from longspan import mixers
from longspan.mixers import Mixer


def built(name: str, **given: Any) -> Mixer:
    options = {"heads": 4, **given}
    known = {key: value for key, value in options.items() if key in mixers.options(name)}
    return mixers.build(name, dim=16, **known).to(DEVICE)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", mixers.names())
def test_gradients(name: str, causal: bool, masked: bool) -> None:
    mixer = built(name, causal=causal)
    x = torch.randn(2, 70, 16, device=DEVICE, requires_grad=True)
    mask = torch.ones(2, 70, dtype=torch.bool, device=DEVICE) if masked else None
    with unread():
        mixer(x, mask).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("name", [name for name in mixers.names() if mixers.describe(name).streaming])
def test_steps(name: str) -> None:
    """As generation takes them, token by token, also with what earlier tokens have left."""
    mixer = built(name, causal=True)
    with unread(), torch.no_grad():
        state = mixer.init_state(2, device=DEVICE)
        for length in (5, 1, 1):
            y, state = mixer.step(torch.randn(2, length, 16, device=DEVICE), state)
        mixer.reset(state, torch.zeros(2, dtype=torch.bool, device=DEVICE))
    assert y.shape == (2, 1, 16)
