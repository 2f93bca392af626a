"""Sequences in blocks give what they give in one piece, and the backward pass makes again what a block made."""

import pytest
import torch
from torch import Tensor

from longspan import mixers
from longspan.ops import blocks


def outputs_and_gradients(mixer: torch.nn.Module, x: Tensor, mask: Tensor | None) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = mixer(x, mask)
    return [y, *torch.autograd.grad(y.sin().sum(), [x, *mixer.parameters()])]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("name", "causal"),
    [("linear", False), ("linear", True), ("messages", True), ("convolution", False), ("convolution", True)],
)
def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, name: str, causal: bool, masked: bool) -> None:
    mixer = mixers.build(name, 16, causal=causal).double()
    x = torch.randn(3, 131, 16, dtype=torch.float64)
    mask = torch.rand(3, 131) < torch.tensor([[0.8], [0.1], [0.0]]) if masked else None
    whole = outputs_and_gradients(mixer, x, mask)
    monkeypatch.setattr(blocks, "BLOCK", 48)
    for got, expected in zip(outputs_and_gradients(mixer, x, mask), whole, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x, mask), whole[0], rtol=1e-9, atol=1e-11)


def test_a_block_is_made_again_from_the_state_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 2)
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
