"""What both forms of competing queries keep: the formula with every option, and the cost that folding leaves."""

import importlib

import pytest
import torch
from contract import close_with_gradients
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from longspan import mixers
from longspan.errors import UserError

both_mixers = pytest.mark.parametrize("name", ["competitive_gate", "competitive_lookup"])


@pytest.mark.slow
@both_mixers
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("output_projection", [False, True])
def test_every_option_agrees_with_the_formula(
    name: str, causal: bool, heads: int, bias: bool, output_projection: bool
) -> None:
    options = {"heads": heads, "causal": causal, "bias": bias, "output_projection": output_projection}
    mixer = mixers.build(name, 6, **options).double()
    naive = importlib.import_module(f"longspan.mixers.{name}").naive
    for t in (1, 5, 20):
        x = torch.randn(3, t, 6, dtype=torch.float64, requires_grad=True)
        mask = torch.rand(3, t) > 0.3
        mask[2], mask[0, -1] = False, True
        close_with_gradients(mixer(x), naive(mixer, x), x, *mixer.parameters())
        close_with_gradients(mixer(x, mask), naive(mixer, x, mask), x, *mixer.parameters())


def flops(module: nn.Module, t: int) -> int:
    x = torch.zeros(1, t, 256, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    return counter.get_total_flops()


@both_mixers
def test_costs_less_than_one_linear_layer(name: str) -> None:
    """All projections act on pooled rows: nothing of size t x dim x dim is left, forward or backward."""
    assert flops(mixers.build(name, 256), 4096) < 0.25 * flops(nn.Linear(256, 256), 4096)


@both_mixers
def test_heads_must_divide_dim(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}.*dim=10 and heads=4"):
        mixers.build(name, 10, heads=4)
