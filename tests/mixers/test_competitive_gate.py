"""Competitive gate against the formula, and its parallel causal form against the loop."""

import torch
from contract import close_with_gradients
from torch import Tensor

from longspan.mixers.competitive_gate import CompetitiveGate


def test_the_formula_without_what_is_ours() -> None:
    """One head, no output projection: Q = Σ softmax(z)_t Q_t, V = Σ softmax(z)_t V_t, y_t = relu(Q·K_t) V."""
    mixer = CompetitiveGate(6, heads=1, bias=False, output_projection=False).double()
    x = torch.randn(20, 6, dtype=torch.float64)
    q, k, v = (x @ linear.weight.T for linear in (mixer.query, mixer.key, mixer.value))
    share = (x @ mixer.score.weight[0]).softmax(0)
    torch.testing.assert_close(mixer(x.unsqueeze(0))[0], torch.outer((k @ (share @ q)).relu(), share @ v))


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
