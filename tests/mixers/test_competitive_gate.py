"""Competitive gate against the formula, its parallel causal form against the loop, and the cost that folding leaves."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from longspan.errors import UserError
from longspan.mixers.competitive_gate import CompetitiveGate, naive

both_forms = pytest.mark.parametrize("causal", [False, True])


def close_with_gradients(y: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(y, expected)
    got = torch.autograd.grad((y**2).sum(), inputs)
    torch.testing.assert_close(got, torch.autograd.grad((expected**2).sum(), inputs))


def test_the_formula_without_what_is_ours() -> None:
    """One head, no output projection: Q = Σ softmax(z)_t Q_t, V = Σ softmax(z)_t V_t, y_t = relu(Q·K_t) V."""
    mixer = CompetitiveGate(6, heads=1, bias=False, output_projection=False).double()
    x = torch.randn(20, 6, dtype=torch.float64)
    q, k, v = (x @ linear.weight.T for linear in (mixer.query, mixer.key, mixer.value))
    share = (x @ mixer.score.weight[0]).softmax(0)
    torch.testing.assert_close(mixer(x.unsqueeze(0))[0], torch.outer((k @ (share @ q)).relu(), share @ v))


@both_forms
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("output_projection", [False, True])
def test_every_option_agrees_with_the_formula(causal: bool, heads: int, bias: bool, output_projection: bool) -> None:
    options = {"causal": causal, "bias": bias, "output_projection": output_projection}
    mixer = CompetitiveGate(6, heads=heads, **options).double()
    for t in (1, 5, 20):
        x = torch.randn(3, t, 6, dtype=torch.float64, requires_grad=True)
        mask = torch.rand(3, t) > 0.3
        mask[2], mask[0, -1] = False, True
        close_with_gradients(mixer(x), naive(mixer, x), x, *mixer.parameters())
        close_with_gradients(mixer(x, mask), naive(mixer, x, mask), x, *mixer.parameters())


def loop(mixer: CompetitiveGate, x: Tensor) -> Tensor:
    """Compute the causal form one position after the other, carrying the running query and value along."""

    def heads(tensor: Tensor) -> Tensor:
        return tensor.unflatten(2, (mixer.heads, -1))

    z, query, key, value = mixer.score(x), heads(mixer.query(x)), heads(mixer.key(x)), heads(mixer.value(x))
    normaliser, running_query, running_value = z[:, 0], query[:, 0], value[:, 0]
    rows = []
    for t in range(x.shape[1]):
        if t:
            normaliser = torch.logaddexp(normaliser, z[:, t])
            weight = (z[:, t] - normaliser).exp().unsqueeze(-1)
            running_query = running_query + weight * (query[:, t] - running_query)
            running_value = running_value + weight * (value[:, t] - running_value)
        rows.append((running_query * key[:, t]).sum(-1, keepdim=True).relu() * running_value)
    return mixer.output(torch.stack(rows, 1).flatten(2))


def test_the_causal_form_in_parallel_is_the_sequential_loop() -> None:
    """Known claim elsewhere: that the causal form cannot be parallelised. Outputs and all gradients, in float64."""
    mixer = CompetitiveGate(8, heads=2, causal=True).double()
    x = (2 * torch.randn(2, 300, 8, dtype=torch.float64)).requires_grad_()
    close_with_gradients(mixer(x), loop(mixer, x), x, *mixer.parameters())


def test_the_causal_form_is_exact() -> None:
    """Each position has what the bidirectional form gives the last position of its prefix."""
    mixer = CompetitiveGate(6, heads=2).double()
    x = torch.randn(2, 12, 6, dtype=torch.float64)
    expected = torch.stack([mixer(x[:, :t])[:, -1] for t in range(1, 13)], 1)
    mixer.causal = True
    torch.testing.assert_close(mixer(x), expected)


def flops(module: nn.Module, t: int) -> int:
    x = torch.zeros(1, t, 256, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    return counter.get_total_flops()


def test_costs_less_than_one_linear_layer() -> None:
    """All projections act on pooled rows: nothing of size t x dim x dim is left, forward or backward."""
    assert flops(CompetitiveGate(256), 4096) < 0.2 * flops(nn.Linear(256, 256), 4096)


def test_heads_must_divide_dim() -> None:
    with pytest.raises(UserError, match="dim=10 and heads=4"):
        CompetitiveGate(10, heads=4)
