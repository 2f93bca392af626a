"""Competitive lookup against the formula, and how its causal form differs."""

import pytest
import torch
from torch import Tensor, nn

from longspan.mixers.competitive_lookup import CompetitiveLookup, naive


def test_the_formula_without_what_is_ours() -> None:
    """One head, no output projection: Q = Σ softmax(z)_t Q_t, A = Σ softmax(Q·K)_m V_m, y_t = softmax(z)_t A."""
    mixer = CompetitiveLookup(6, heads=1, bias=False, output_projection=False).double()
    x = torch.randn(20, 6, dtype=torch.float64)
    q, k, v = (x @ linear.weight.T for linear in (mixer.query, mixer.key, mixer.value))
    share = (x @ mixer.score.weight[0]).softmax(0)
    answer = (k @ (share @ q) / 6**0.5).softmax(0) @ v
    torch.testing.assert_close(mixer(x.unsqueeze(0))[0], torch.outer(share, answer))


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


@pytest.mark.parametrize("causal", [False, True])
def test_without_competitors_a_position_receives_its_own_value(causal: bool) -> None:
    mixer, x = CompetitiveLookup(8, heads=2, causal=causal), torch.randn(2, 1, 8)
    torch.testing.assert_close(mixer(x), mixer.output(mixer.value(x)))
