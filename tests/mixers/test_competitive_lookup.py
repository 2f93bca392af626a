"""Competitive lookup against the formula, how its causal form differs, and the cost that folding leaves."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from longspan.errors import UserError
from longspan.mixers.competitive_lookup import CompetitiveLookup, naive

both_forms = pytest.mark.parametrize("causal", [False, True])


def close_with_gradients(y: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(y, expected)
    got = torch.autograd.grad((y**2).sum(), inputs)
    torch.testing.assert_close(got, torch.autograd.grad((expected**2).sum(), inputs))


def test_the_formula_without_what_is_ours() -> None:
    """One head, no output projection: Q = Σ softmax(z)_t Q_t, A = Σ softmax(Q·K)_m V_m, y_t = softmax(z)_t A."""
    mixer = CompetitiveLookup(6, heads=1, bias=False, output_projection=False).double()
    x = torch.randn(20, 6, dtype=torch.float64)
    q, k, v = (x @ linear.weight.T for linear in (mixer.query, mixer.key, mixer.value))
    share = (x @ mixer.score.weight[0]).softmax(0)
    answer = (k @ (share @ q) / 6**0.5).softmax(0) @ v
    torch.testing.assert_close(mixer(x.unsqueeze(0))[0], torch.outer(share, answer))


@both_forms
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("output_projection", [False, True])
def test_every_option_agrees_with_the_formula(causal: bool, heads: int, bias: bool, output_projection: bool) -> None:
    options = {"causal": causal, "bias": bias, "output_projection": output_projection}
    mixer = CompetitiveLookup(6, heads=heads, **options).double()
    for t in (1, 5, 20):
        x = torch.randn(3, t, 6, dtype=torch.float64, requires_grad=True)
        mask = torch.rand(3, t) > 0.3
        mask[2], mask[0, -1] = False, True
        close_with_gradients(mixer(x), naive(mixer, x), x, *mixer.parameters())
        close_with_gradients(mixer(x, mask), naive(mixer, x, mask), x, *mixer.parameters())


def last_of_prefixes(mixer: CompetitiveLookup, x: Tensor) -> Tensor:
    """What the bidirectional form gives the last position of each prefix: every key scored by the newest query."""
    return torch.stack([naive(mixer, x[:, :t])[:, -1] for t in range(1, x.shape[1] + 1)], 1)


def test_the_causal_form_scores_each_key_once() -> None:
    mixer = CompetitiveLookup(6, heads=2).double()
    x = torch.randn(2, 12, 6, dtype=torch.float64)
    quadratic = last_of_prefixes(mixer, x)
    mixer.causal = True
    y = mixer(x)
    torch.testing.assert_close(y[:, 0], quadratic[:, 0])
    assert not torch.allclose(y[:, 2:], quadratic[:, 2:], rtol=1e-3)
    # With a query that never changes, scoring a key again gives the same score.
    mixer.causal = False
    nn.init.zeros_(mixer.query.weight)
    quadratic = last_of_prefixes(mixer, x)
    mixer.causal = True
    torch.testing.assert_close(mixer(x), quadratic)


@both_forms
def test_logits_of_ten_thousand(causal: bool) -> None:
    """Known failure elsewhere: unshifted exp is infinite at 89 in float32; one global maximum gives 0/0 early on."""
    mixer = CompetitiveLookup(4, heads=2, causal=causal)
    with torch.no_grad():
        mixer.score.weight.copy_(torch.tensor([[1e4, 0.0, -1e4, 1.0], [-1e4, 1e4, 0.0, 2.0]]))
        mixer.key.weight.mul_(1e4)
    x = torch.eye(4)[torch.arange(50) * 7 % 4].unsqueeze(0).requires_grad_()
    y = mixer(x)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    # The scores of keys reach thousands and are rounded before they are compared.
    torch.testing.assert_close(y.double(), naive(mixer.double(), x.double()), rtol=1e-3, atol=1e-3)


@both_forms
@pytest.mark.parametrize("place", [0, 20, 39])
def test_one_real_token_among_padding(causal: bool, place: int) -> None:
    mixer = CompetitiveLookup(8, heads=2, causal=causal)
    x = torch.full((1, 40, 8), 1e3)
    x[0, place] = torch.randn(8)
    mask = torch.arange(40).unsqueeze(0) == place
    y = mixer(x, mask)
    torch.testing.assert_close(y[:, place], mixer(x[:, place : place + 1])[:, 0])
    # It has no competitors, so it receives all of the answer, which is its own value.
    torch.testing.assert_close(y[:, place], mixer.output(mixer.value(x[:, place])))
    assert (y[~mask] == 0).all()


@both_forms
def test_one_long_document_in_bfloat16(causal: bool) -> None:
    mixer = CompetitiveLookup(8, heads=2, causal=causal)
    x = torch.randn(1, 65536, 8)
    with torch.inference_mode():
        expected = mixer.double()(x.double())
        y = mixer.bfloat16()(x.bfloat16())
    # Outputs shrink as 1/t: each is compared at its own size.
    position = torch.arange(1, 65537).view(1, -1, 1) if causal else 65536
    torch.testing.assert_close(y.double() * position, expected * position, rtol=0.1, atol=0.1)


def flops(module: nn.Module, t: int) -> int:
    x = torch.zeros(1, t, 256, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    return counter.get_total_flops()


def test_costs_less_than_one_linear_layer() -> None:
    """All projections act on pooled rows: nothing of size t x dim x dim is left, forward or backward."""
    assert flops(CompetitiveLookup(256), 4096) < 0.25 * flops(nn.Linear(256, 256), 4096)


def test_heads_must_divide_dim() -> None:
    with pytest.raises(UserError, match="dim=10 and heads=4"):
        CompetitiveLookup(10, heads=4)
