"""Gated linear attention and the gated delta rule: every option against the recurrence, and both directions."""

import inspect
from typing import Any

import pytest
import torch

from longspan import mixers
from longspan.errors import UserError

CASES = [
    ("gated_linear", {"gate": gate, "decay": decay})
    for gate in ("head", "channel")
    for decay in ("none", "fixed", "learned", "input")
] + [("delta", {"decay": decay}) for decay in ("none", "fixed", "learned", "input")]
both_mixers = pytest.mark.parametrize("name", ["gated_linear", "delta"])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("causal", [False, True])
def test_every_option_agrees_with_the_recurrence(name: str, options: dict[str, Any], causal: bool) -> None:
    mixer = mixers.build(name, 8, heads=2, causal=causal, **options).double()
    naive = inspect.getmodule(type(mixer)).naive  # type: ignore[union-attr]
    x = torch.randn(2, 35, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 35) > 0.3
    mask[0, 0] = False
    weights = torch.randn(2, 35, 8, dtype=torch.float64)
    y, expected = mixer(x, mask), naive(mixer, x, mask)
    torch.testing.assert_close(y, expected)
    given = [x, *mixer.parameters()]
    got, wanted = (torch.autograd.grad((out * weights).sum(), given) for out in (y, expected))
    torch.testing.assert_close(got, wanted)


@both_mixers
def test_half_of_the_heads_reads_from_the_end(name: str) -> None:
    mixer = mixers.build(name, 8, heads=2)
    mixer.get_submodule("output").get_parameter("weight").data.copy_(torch.eye(8))
    x = torch.randn(1, 20, 8)
    changed = x.clone()
    changed[:, 10] += 1
    moved = (mixer(changed) - mixer(x)).abs().amax(0) > 0
    assert not moved[:10, :4].any()
    assert moved[10:, :4].any(1).all()
    assert moved[:11, 4:].any(1).all()
    assert not moved[11:, 4:].any()


@both_mixers
def test_mistakes_are_named(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name} expected an even number of heads.*heads=1"):
        mixers.build(name, 8, heads=1)
    with pytest.raises(UserError, match=r"heads=3"):
        mixers.build(name, 8, heads=3, causal=True)
    with pytest.raises(UserError, match=r"'inputs'; did you mean 'input'"):
        mixers.build(name, 8, decay="inputs")


def test_there_are_two_gates() -> None:
    with pytest.raises(UserError, match="'channels'; did you mean 'channel'"):
        mixers.build("gated_linear", 8, gate="channels")
