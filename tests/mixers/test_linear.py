"""Linear attention against the paper's two ways of writing it."""

import pytest
import torch
from contract import close_with_gradients
from torch import Tensor
from torch.nn.functional import elu

from longspan.errors import UserError
from longspan.mixers.linear import Linear, naive

both_forms = pytest.mark.parametrize("causal", [False, True])


def heads(mixer: Linear, x: Tensor) -> list[Tensor]:
    query, key, value = (p(x).unflatten(2, (mixer.heads, -1)) for p in (mixer.query, mixer.key, mixer.value))
    return [elu(query) + 1, elu(key) + 1, value]


def test_the_paper_bidirectional() -> None:
    mixer = Linear(12, heads=3).double()
    x = torch.randn(2, 30, 12, dtype=torch.float64)
    query, key, value = heads(mixer, x)
    sums = torch.einsum("bjhe,bjhv->bhev", key, value)
    mixed = torch.einsum("bihe,bhev->bihv", query, sums) / torch.einsum("bihe,bhe->bih", query, key.sum(1))[..., None]
    torch.testing.assert_close(mixer(x), mixer.output(mixed.flatten(2)))


def test_the_paper_as_a_recurrent_network() -> None:
    mixer = Linear(12, heads=3, causal=True).double()
    x = torch.randn(2, 70, 12, dtype=torch.float64)
    query, key, value = heads(mixer, x)
    sums, weights, rows = x.new_zeros(2, 3, 4, 4), x.new_zeros(2, 3, 4), []
    for i in range(70):
        sums = sums + key[:, i].unsqueeze(-1) * value[:, i].unsqueeze(-2)
        weights = weights + key[:, i]
        read = torch.einsum("bhe,bhev->bhv", query[:, i], sums)
        rows.append(read / (query[:, i] * weights).sum(-1, keepdim=True))
    torch.testing.assert_close(mixer(x), mixer.output(torch.stack(rows, 1).flatten(2)))
    _, state = mixer.step(x, mixer.init_state(2))
    torch.testing.assert_close(tuple(state), (sums, weights))


@pytest.mark.slow
@both_forms
@pytest.mark.parametrize("bias", [False, True])
def test_every_option_agrees_with_the_formula(causal: bool, bias: bool) -> None:
    mixer = Linear(6, heads=2, causal=causal, bias=bias).double()
    for t in (1, 5, 40):
        x = torch.randn(3, t, 6, dtype=torch.float64, requires_grad=True)
        mask = torch.rand(3, t) > 0.3
        mask[2], mask[0, -1] = False, True
        close_with_gradients(mixer(x), naive(mixer, x), x, *mixer.parameters())
        close_with_gradients(mixer(x, mask), naive(mixer, x, mask), x, *mixer.parameters())


@both_forms
def test_cross_attention_agrees_with_the_formula(causal: bool) -> None:
    mixer = Linear(6, heads=2, causal=causal).double()
    x, context = (torch.randn(3, t, 6, dtype=torch.float64, requires_grad=True) for t in (4, 9))
    mask, context_mask = torch.rand(3, 4) > 0.3, torch.rand(3, 9) > 0.3
    mask[0, 0] = context_mask[0, 0] = True
    context_mask[2] = False
    y = mixer(x, mask, context=context, context_mask=context_mask)
    assert (y[2] == 0).all()
    close_with_gradients(y, naive(mixer, x, mask, context, context_mask), x, context, *mixer.parameters())
    if not causal:
        torch.testing.assert_close(mixer(x, mask, context=x, context_mask=mask), mixer(x, mask))


def test_heads_must_divide_dim() -> None:
    with pytest.raises(UserError, match="dim=10 and heads=4"):
        Linear(10, heads=4)
