"""Dropout from shared random words keeps the promises of the usual one."""

import torch

from longspan.ops.dropout import Dropout, dropout


def test_drops_the_right_share_everywhere_and_keeps_the_mean() -> None:
    y = dropout(torch.ones(400, 1001), 0.2)
    dropped = (y == 0).flatten()
    # Four elements share a random word: each of the four must be as likely to fall, independently of its neighbours.
    for lane in range(4):
        assert abs(dropped[lane::4].double().mean() - 0.2) < 0.005
    assert abs((dropped[:-1] & dropped[1:]).double().mean() - 0.04) < 0.003
    assert abs(y.double().mean() - 1) < 0.005


def test_gradient_passes_where_values_do() -> None:
    x = torch.ones(1000, requires_grad=True)
    y = dropout(x, 0.5)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


def test_edges() -> None:
    x = torch.randn(7)
    assert dropout(x, 0.3, training=False) is x
    assert dropout(x, 0.0) is x
    assert (dropout(x, 1.0) == 0).all()
    assert dropout(torch.empty(0), 0.5).shape == (0,)
    assert dropout(x.bfloat16(), 0.5).dtype == torch.bfloat16


def test_follows_the_seed() -> None:
    layer, x = Dropout(0.3), torch.randn(50)
    torch.manual_seed(3)
    first = layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)
    assert torch.equal(layer.eval()(x), x)
