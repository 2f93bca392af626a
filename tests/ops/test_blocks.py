"""Sequences in blocks give what they give in one piece, and the backward pass makes again what a block made."""

from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from longspan import mixers
from longspan.ops import blocks, linear


def outputs_and_gradients(mixer: torch.nn.Module, x: Tensor, mask: Tensor | None) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = mixer(x, mask)
    return [y, *torch.autograd.grad(y.sin().sum(), [x, *mixer.parameters()])]


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("name", "causal"),
    [
        ("linear", False),
        ("linear", True),
        ("messages", True),
        ("convolution", False),
        ("convolution", True),
        ("additive", True),
        ("reformer", False),
        ("competitive_lookup", True),
        ("competitive_gate", True),
    ],
)
def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, name: str, causal: bool, masked: bool) -> None:
    # Compiled loops and kernels cut nothing.
    monkeypatch.setattr(linear, "has_loops", lambda *_: False)
    mixer = mixers.build(name, 16, **({"causal": True} if causal else {})).double()
    x = torch.randn(3, 131, 16, dtype=torch.float64)
    mask = torch.rand(3, 131) < torch.tensor([[0.8], [0.1], [0.0]]) if masked else None
    whole = outputs_and_gradients(mixer, x, mask)
    monkeypatch.setattr(blocks, "LARGE", 3 * 131 * 16 * 8 - 1)
    monkeypatch.setattr(blocks, "BLOCK", 48 * 3 * 16 * 8)
    made = Mock(wraps=blocks._remade)
    monkeypatch.setattr(blocks, "_remade", made)
    for got, expected in zip(outputs_and_gradients(mixer, x, mask), whole, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x, mask), whole[0], rtol=1e-9, atol=1e-11)
    assert made.call_count > 4


def test_a_block_is_made_again_from_the_state_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "LARGE", 19)
    monkeypatch.setattr(blocks, "BLOCK", 8)
    seen: list[tuple[float, int]] = []

    def running(state: Tensor, x: Tensor, none: None) -> tuple[Tensor, Tensor]:
        seen.append((state.item(), x.shape[0]))
        sums = state + x.cumsum(0)
        return sums.square(), sums[-1]

    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], requires_grad=True)
    out, last = blocks.carried_through_blocks(running, 0, torch.zeros(()), x, None)
    assert (out.tolist(), last.item()) == ([1.0, 9.0, 36.0, 100.0, 225.0], 15.0)
    out.sum().backward()
    # Σ 2·S_t over the t from i on.
    assert x.grad is not None
    assert x.grad.tolist() == [70.0, 68.0, 62.0, 50.0, 30.0]
    assert seen == [(0.0, 2), (3.0, 2), (10.0, 1), (10.0, 1), (3.0, 2), (0.0, 2)]


def test_only_large_tensors_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "LARGE", 40)
    monkeypatch.setattr(blocks, "BLOCK", 12)
    few, many = torch.zeros(10, dtype=torch.bool), torch.zeros(10)

    def lengths(*tensors: Tensor | None, widening: int = 1) -> list[int]:
        return blocks.block_by_block(lambda one, other: len(one), 0, *tensors, widening=widening)

    assert lengths(many, None) == [10]
    assert lengths(many, None, widening=2) == [3, 3, 3, 1]
    # The largest decides: 80 bytes.
    assert lengths(few, many.double()) == [1] * 10
    assert lengths(many.to("meta"), None, widening=2) == [10]
