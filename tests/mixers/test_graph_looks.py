"""What nodes read: their outputs follow from it, and no matrix of all pairs of nodes is made."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rounding import assert_within, rounding
from test_graph import DIM, HEADS, Largest, build, graphs, inputs
from torch import Tensor

from longspan.errors import UserError
from longspan.mixers.graph import Edges, Graph
from longspan.ops.edges import batch_edges, edge_attention_naive, edge_weights
from longspan.ops.heads import weighted

FORMS: list[dict[str, Any]] = [
    {},
    {"score": "additive", "output_projection": False},
    {"value_projection": False, "bias": False},
    {"edge_width": 3},
]


@pytest.mark.parametrize("options", FORMS)
@given(graph=graphs(), seed=st.integers(0, 9))
def test_outputs_follow_from_the_weights(options: dict[str, Any], graph: tuple[int, int, Tensor], seed: int) -> None:
    b, t, edges = graph
    mixer, x, draw = build(**options), inputs(b, t), torch.Generator().manual_seed(seed)
    mask = torch.rand(b, t, generator=draw) > 0.3
    features = torch.randn(edges.shape[1], mixer.edge_width, generator=draw).double() if mixer.edge_width else None
    structure = Edges(edges, features)
    hidden = x.masked_fill(~mask.unsqueeze(-1), float("nan"))
    each = [mixer.look(hidden, mask, at=at, structure=structure).weights["attention"] for at in range(t)]
    y = mixer.output(weighted(torch.stack(each, 2), mixer.value(x))) * mask.unsqueeze(2)
    torch.testing.assert_close(y, mixer(x, mask, structure=structure))
    number = mask.sum(1).clamp_min(1).view(-1, 1, 1)
    whole = mixer.look(hidden, mask, structure=structure).weights["attention"]
    torch.testing.assert_close(whole, torch.stack(each).sum(0) / number)


def test_neighbours_are_named_by_their_weights() -> None:
    """A star: the middle reads its leaves and nothing else; the largest product of query and key comes first."""
    mixer, x = build(), inputs(1, 6)
    edges = batch_edges([torch.tensor([[0, 1, 2, 4], [3, 3, 3, 5]])])
    (found,) = mixer.look(x, at=3, structure=Edges(edges)).strongest("attention", 2)
    query, key = (part(x)[0].unflatten(1, (HEADS, -1)) for part in (mixer.query, mixer.key))
    weights = ((query[3] * key[:3]).sum(2) / (DIM // HEADS) ** 0.5).softmax(0).mean(1)
    expected = weights.argsort(descending=True)[:2].tolist()
    assert [node for node, _ in found] == expected
    assert_within(
        torch.tensor([weight for _, weight in found]), weights[expected], rounding(2, weights[expected], torch.float32)
    )
    assert mixer.look(x, at=2, structure=Edges(edges)).strongest("attention") == [[]]


def test_weights_of_edges_are_those_that_attention_uses() -> None:
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(7, HEADS, 4, generator=draw).double() for _ in range(3))
    source, target = torch.randint(7, (2, 20), generator=draw)
    keep, bias = torch.rand(20, generator=draw) > 0.3, torch.randn(20, HEADS, generator=draw).double()
    weights = edge_weights(query, key, source, target, keep, bias)
    pooled = torch.zeros_like(value).index_add(0, target, weights.unsqueeze(2) * value[source])
    torch.testing.assert_close(pooled, edge_attention_naive(query, key, value, source, target, keep, bias))
    assert edge_weights(query.bfloat16(), key.bfloat16(), source, target).dtype == torch.float32


def test_looks_at_65536_nodes_cost_their_edges() -> None:
    mixer, x = Graph(DIM, heads=HEADS), torch.randn(1, 65536, DIM, generator=torch.Generator().manual_seed(0))
    edges = batch_edges([torch.randint(65536, (2, 200_000), generator=torch.Generator().manual_seed(1))])
    for at in (None, int(edges[2, 0])):
        with Largest() as largest, torch.no_grad():
            mixer.look(x, at=at, structure=Edges(edges))
        assert largest.size <= 200_000 * DIM


def test_mistakes_are_one_sentence() -> None:
    mixer, x = build(), inputs(1, 4)
    with pytest.raises(UserError, match="expected a position of a row of 4, got 4"):
        mixer.look(x, at=4, structure=Edges(batch_edges([torch.tensor([[0], [1]])])))
    with pytest.raises(UserError, match="edge"):
        mixer.look(x, at=0, structure=Edges(torch.tensor([[0], [9], [1]])))
    with pytest.raises(UserError, match="expected Edges as structure, got tuple"):
        mixer.look(x, at=0, structure=([0], [1]))
