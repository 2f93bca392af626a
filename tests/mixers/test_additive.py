"""Fastformer: every option against the paper's order of computation, and the shapes of its parameters."""

import itertools
from typing import Any

import pytest
import torch

from longspan.errors import UserError
from longspan.mixers import additive


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("interaction", "sharing", "output", "scoring"),
    list(itertools.product(additive.INTERACTIONS, additive.SHARINGS, additive.OUTPUTS, additive.SCORINGS)),
)
def test_every_option_agrees_with_the_paper(
    causal: bool, interaction: str, sharing: str, output: str, scoring: str
) -> None:
    options: dict[str, Any] = {"interaction": interaction, "sharing": sharing, "output": output, "scoring": scoring}
    mixer = additive.Additive(12, heads=3, causal=causal, **options).double()
    # Both orders of computation: fewer positions than dim, and more.
    for t in (5, 40):
        x = torch.randn(3, t, 12, dtype=torch.float64, requires_grad=True)
        mask = torch.rand(3, t) > 0.3
        mask[2] = False
        y, expected = mixer(x, mask), additive.naive(mixer, x, mask)
        torch.testing.assert_close(y, expected)
        weights = [x, *mixer.parameters()]
        got = torch.autograd.grad((y**2).sum(), weights, allow_unused=True)
        wanted = torch.autograd.grad((expected**2).sum(), weights, allow_unused=True)
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(
                torch.zeros(()) if one is None else one, torch.zeros(()) if other is None else other
            )
    state = mixer.init_state(3)
    if causal:
        parts = []
        for part in x.detach().split([1, 7, 32], 1):
            part, state = mixer.step(part, state)
            parts.append(part)
        torch.testing.assert_close(torch.cat(parts, 1), mixer(x))


def test_the_authors_code() -> None:
    """The published module, written out: scores over all heads, query and value shared, residual query."""
    torch.manual_seed(0)
    mixer = additive.Additive(8, heads=2, scoring="all-heads").double()
    x = torch.randn(2, 20, 8, dtype=torch.float64)
    query, key = mixer.query(x), mixer.key(x)
    weights = (query @ mixer.query_score.T / 2.0).softmax(1)
    pooled_query = torch.stack(
        [weights[:, :, h, None].mul(query.unflatten(2, (2, 4))[:, :, h]).sum(1) for h in (0, 1)], 1
    )
    mixed = key * pooled_query.flatten(1).unsqueeze(1)
    weights = (mixed @ mixer.key_score.T / 2.0).softmax(1)
    pooled_key = torch.stack(
        [weights[:, :, h, None].mul(mixed.unflatten(2, (2, 4))[:, :, h]).sum(1) for h in (0, 1)], 1
    )
    expected = mixer.output(pooled_key.flatten(1).unsqueeze(1) * query) + query
    torch.testing.assert_close(mixer(x), expected)


def test_keys_meet_the_global_query_before_they_are_pooled() -> None:
    """Known failure elsewhere: keys pooled before the global query is applied, so that it cannot choose among them."""
    mixer = additive.Additive(4, heads=1, bias=False, output="r").double()
    x = torch.randn(1, 30, 4, dtype=torch.float64)
    key = mixer.key(x)
    unaware = ((key @ mixer.key_score.T / 2.0).softmax(1).transpose(1, 2) @ key) * x.new_ones(1)
    query = mixer.query(x)
    pooled_query = (query @ mixer.query_score.T / 2.0).softmax(1).transpose(1, 2) @ query
    wrong = mixer.output(pooled_query * unaware * query)
    assert not torch.allclose(mixer(x), wrong, rtol=1e-3)


def test_sharing_saves_parameters() -> None:
    def count(sharing: str) -> int:
        return sum(p.numel() for p in additive.Additive(16, heads=4, sharing=sharing, bias=False).parameters())

    scores = 2 * 16
    assert count("none") == 4 * 256 + scores
    assert count("query-value") == 3 * 256 + scores
    assert count("head-wise") == 256 + 2 * 64 + scores


def test_one_long_document_in_bfloat16() -> None:
    mixer = additive.Additive(16, heads=4)
    x = torch.randn(1, 65536, 16)
    expected = mixer.double()(x.double())
    y = mixer.bfloat16()(x.bfloat16())
    torch.testing.assert_close(y.double(), expected, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("option", ["interaction", "sharing", "output", "scoring"])
def test_unknown_values_name_the_known_ones(option: str) -> None:
    options: dict[str, Any] = {option: "nothing"}
    with pytest.raises(UserError, match=f"no additive {option} 'nothing'"):
        additive.Additive(8, **options)


def test_heads_must_divide_dim() -> None:
    with pytest.raises(UserError, match="dim=10 and heads=4"):
        additive.Additive(10, heads=4)
