"""A position that counts twice is a position that is there twice."""

import pytest
import torch

from longspan import mixers
from longspan.mixers.base import Mixer
from longspan.mixers.graph import Edges
from longspan.mixers.local import Local

# Those whose outputs do not depend on distances.
ORDERLESS = (
    "additive", "messages", "bounded_memory", "competitive_gate", "competitive_lookup", "linear", "softmax",
)  # fmt: skip


def built(name: str, causal: bool) -> Mixer:
    torch.manual_seed(0)
    return mixers.build(name, 16, causal=causal).double()


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ORDERLESS)
def test_a_count_of_two_is_a_position_that_is_there_twice(name: str, causal: bool) -> None:
    if causal and name in ("additive", "competitive_lookup"):
        pytest.skip("The second mean is of products with the first mean so far, which is another one at each copy.")
    mixer, x = built(name, causal), torch.randn(2, 40, 16, dtype=torch.float64)
    repeats = torch.ones(40, dtype=torch.long)
    repeats[[3, 17, 18, 39]] = torch.tensor([2, 3, 2, 2])
    # Of causal copies, the last one has seen the others.
    last = repeats.cumsum(0) - 1
    expected = mixer(x.repeat_interleave(repeats, 1))[:, last]
    found = mixer(x, counts=repeats.double().expand(2, -1))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["additive", "messages", "linear", "softmax", "bounded_memory"])
def test_positions_of_a_context_count_alike(name: str) -> None:
    mixer = built(name, False)
    x, context = torch.randn(2, 7, 16, dtype=torch.float64), torch.randn(2, 9, 16, dtype=torch.float64)
    repeats = torch.tensor([1, 2, 1, 1, 3, 1, 1, 1, 2])
    expected = mixer(x, context=context.repeat_interleave(repeats, 1))
    found = mixer(x, context=context, context_counts=repeats.double().expand(2, -1))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("alibi", [False, True])
def test_windows_count_keys(alibi: bool) -> None:
    """Against the same with a bias of logits, over windows that are cut into blocks."""
    torch.manual_seed(0)
    mixer = Local(16, heads=2, radius=5, alibi=alibi).double()
    x, counts = torch.randn(1, 90, 16, dtype=torch.float64), torch.rand(1, 90, dtype=torch.float64) * 2
    query, key, value = (
        project(x).unflatten(2, (2, 8)).transpose(1, 2) for project in (mixer.query, mixer.key, mixer.value)
    )
    distance = (torch.arange(90) - torch.arange(90).unsqueeze(1)).abs()
    scores = query @ key.mT / 8**0.5 + counts.log()
    if alibi:
        scores = scores - distance * torch.tensor([2.0**-4, 2.0**-8]).view(2, 1, 1)
    weights = scores.masked_fill(distance > 5, -torch.inf).softmax(-1)
    expected = mixer.output((weights @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixer(x, counts=counts), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_edges_count_their_sources() -> None:
    torch.manual_seed(0)
    mixer = mixers.build("graph", 16).double()
    x = torch.randn(1, 4, 16, dtype=torch.float64)
    edges = torch.tensor([[0, 0, 1], [0, 1, 1], [0, 2, 1], [0, 3, 3]]).T
    # Node 2 and its copy, node 4.
    twice = torch.cat((edges, torch.tensor([[0], [4], [1]])), 1)
    expected = mixer(torch.cat((x, x[:, 2:3]), 1), structure=Edges(twice))[:, :4]
    counts = torch.tensor([[1.0, 1.0, 2.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(mixer(x, structure=Edges(edges), counts=counts), expected, rtol=1e-10, atol=1e-10)
