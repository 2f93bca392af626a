"""Attention over edges against the dense form, and what graphs demand of it."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rounding import EXP, assert_within, module_errors
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.errors import UserError
from longspan.mixers.graph import Edges, Graph, naive
from longspan.mixers.softmax import Softmax
from longspan.ops.edges import batch_edges, chain

DIM, HEADS = 8, 2


def build(**options: Any) -> Graph:
    torch.manual_seed(0)
    return Graph(DIM, heads=HEADS, **options).double()


def inputs(b: int, t: int) -> Tensor:
    return torch.randn(b, t, DIM, generator=torch.Generator().manual_seed(t), dtype=torch.float64)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, int, Tensor]:
    """Any edges, some of them twice, some nodes without any."""
    b, t = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    edge = st.tuples(st.integers(0, b - 1), st.integers(0, t - 1), st.integers(0, t - 1))
    edges = draw(st.lists(edge, max_size=40))
    return b, t, torch.tensor(edges, dtype=torch.long).view(-1, 3).T


def dense(mixer: Graph, x: Tensor, edges: Tensor) -> Tensor:
    """Softmax over all nodes, masked by the adjacency matrix; no matrix knows an edge twice."""
    b, t, _ = x.shape
    row, source, target = edges
    adjacent = torch.zeros(b, t, t, dtype=torch.bool)
    adjacent[row, target, source] = True
    query, key, value = (w(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for w in (mixer.query, mixer.key, mixer.value))
    scores = (query @ key.mT / (DIM // HEADS) ** 0.5).masked_fill(~adjacent.unsqueeze(1), -torch.inf)
    mixed = (scores.softmax(-1).nan_to_num(0) @ value).transpose(1, 2).flatten(2)
    y: Tensor = mixer.output(mixed)
    return y


@given(graph=graphs())
def test_is_dense_attention_masked_by_the_graph(graph: tuple[int, int, Tensor]) -> None:
    b, t, edges = graph
    mixer, x = build(), inputs(b, t)
    torch.testing.assert_close(mixer(x, structure=Edges(edges)), dense(mixer, x, edges))
    torch.testing.assert_close(mixer(x, structure=Edges(edges)), naive(mixer, x, edges=Edges(edges)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"output_projection": False},
        {"score": "additive", "bias": False},
        {"score": "additive", "value_projection": False, "output_projection": False},
    ],
)
@given(graph=graphs(), density=st.floats(0, 1))
def test_masked_nodes_neither_send_nor_receive(
    options: dict[str, Any], graph: tuple[int, int, Tensor], density: float
) -> None:
    """Known failure elsewhere: a mask silently ignored."""
    b, t, edges = graph
    mixer, x = build(**options), inputs(b, t)
    mask = torch.rand(b, t) < density
    y = mixer(x, mask, structure=Edges(edges))
    torch.testing.assert_close(y, naive(mixer, x, mask, Edges(edges)))
    row, source, target = edges
    among_real = edges[:, mask[row, source] & mask[row, target]]
    torch.testing.assert_close(y, mixer(x, structure=Edges(among_real)) * mask.unsqueeze(-1))


@pytest.mark.parametrize("score", ["dot", "additive"])
@given(graph=graphs())
def test_features_of_edges_are_added_to_scores(score: str, graph: tuple[int, int, Tensor]) -> None:
    b, t, edges = graph
    mixer, x = build(score=score, edge_width=3), inputs(b, t)
    features = torch.randn(edges.shape[1], 3, dtype=torch.float64)
    y = mixer(x, structure=Edges(edges, features))
    torch.testing.assert_close(y, naive(mixer, x, edges=Edges(edges, features)))


def test_additive_scores_are_those_of_graph_attention_networks() -> None:
    """The paper's equation 3, written out with one concatenated vector a of each head."""
    mixer, x = build(score="additive", bias=False, output_projection=False), inputs(1, 4)
    edges = torch.cartesian_prod(torch.arange(1), torch.arange(4), torch.arange(4)).T
    a = torch.cat((mixer.target_score, mixer.source_score), 1)
    h = mixer.value(x)[0].unflatten(1, (HEADS, -1))
    both = torch.cat((h.unsqueeze(1).expand(4, 4, -1, -1), h.unsqueeze(0).expand(4, 4, -1, -1)), 3)
    weights = torch.nn.functional.leaky_relu((both * a).sum(-1), 0.2).softmax(1)
    expected = torch.einsum("tsh,she->the", weights, h).flatten(1)
    torch.testing.assert_close(mixer(x, structure=Edges(edges))[0], expected)


def test_weights_of_edges_are_dropped_in_training() -> None:
    mixer, x = build(attention_dropout=0.5, bias=False), inputs(1, 6)
    edges = torch.cartesian_prod(torch.arange(1), torch.arange(6), torch.arange(6)).T
    mixer.eval()
    whole = mixer(x, structure=Edges(edges)).detach()
    torch.testing.assert_close(whole, naive(mixer, x, edges=Edges(edges)).detach())
    mixer.train()
    torch.manual_seed(0)
    with torch.no_grad():
        drawn = torch.stack([mixer(x, structure=Edges(edges)) for _ in range(500)])
    # The mean of 500 draws, each off by about as much as the output itself.
    torch.testing.assert_close(drawn.mean(0), whole, atol=5 * float(drawn.std(0).max()) / 500**0.5, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "dott"}, "did you mean 'dot'"),
        ({"attention_dropout": 1.0}, "attention_dropout of at least 0 and below 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(**options)


def test_features_must_fit() -> None:
    with pytest.raises(UserError, match="features of 3 numbers for each of 2 edges"):
        build(edge_width=3)(inputs(1, 4), structure=Edges(torch.zeros(3, 2, dtype=torch.long), torch.zeros(2, 2)))


def test_a_complete_graph_is_softmax_attention() -> None:
    mixer, full, x = build(), Softmax(DIM, heads=HEADS).double(), inputs(2, 6)
    full.load_state_dict(mixer.state_dict())
    everything = torch.cartesian_prod(torch.arange(2), torch.arange(6), torch.arange(6)).T
    torch.testing.assert_close(mixer(x, structure=Edges(everything)), full(x))


def test_without_edges_the_sequence_is_a_chain() -> None:
    mixer, x = build(), inputs(2, 7)
    torch.testing.assert_close(mixer(x), mixer(x, structure=Edges(chain(2, 7))))


def test_an_edge_given_twice_counts_once() -> None:
    mixer, x = build(), inputs(1, 3)
    edges = torch.tensor([[0, 0], [0, 1], [2, 2]])
    torch.testing.assert_close(mixer(x, structure=Edges(edges.repeat(1, 3))), mixer(x, structure=Edges(edges)))
    torch.testing.assert_close(mixer(x, structure=Edges(edges.flip(1))), mixer(x, structure=Edges(edges)))


@pytest.mark.slow
def test_a_node_without_edges_gives_zeros() -> None:
    """Known failure elsewhere: rows with nothing to attend to become uniform, or NaN."""
    mixer, x = build(bias=False), inputs(1, 4).requires_grad_()
    y = mixer(x, structure=Edges(torch.tensor([[0], [0], [1]])))
    assert (y[:, [0, 2, 3]] == 0).all()
    assert (y[:, 1] != 0).any()
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert (mixer(x, structure=Edges(torch.zeros(3, 0, dtype=torch.long))) == 0).all()


def test_a_batch_of_graphs_is_each_graph_alone() -> None:
    mixer, sizes = build(), (5, 1, 7)
    nodes = [inputs(1, size) for size in sizes]
    edges = [torch.randint(size, (2, 9)) for size in sizes]
    x = torch.full((3, 7, DIM), 1e3, dtype=torch.float64)
    mask = torch.arange(7) < torch.tensor(sizes).unsqueeze(1)
    x[mask] = torch.cat(nodes, 1)[0]
    y = mixer(x, mask, structure=Edges(batch_edges(edges)))
    for row, size in enumerate(sizes):
        alone = mixer(nodes[row], structure=Edges(batch_edges([edges[row]])))
        torch.testing.assert_close(y[row : row + 1, :size], alone)


def test_the_order_of_nodes_and_of_edges_means_nothing() -> None:
    mixer, x, edges = build(), inputs(1, 9), torch.randint(9, (2, 30))
    order = torch.randperm(9)
    number = order.argsort()
    y = mixer(x, structure=Edges(batch_edges([edges])))
    moved = mixer(x[:, order], structure=Edges(batch_edges([number[edges[:, torch.randperm(30)]]])))
    torch.testing.assert_close(moved, y[:, order])


def test_edges_between_packed_documents_do_not_count() -> None:
    mixer, x, edges = build(), inputs(2, 8), torch.randint(8, (2, 40))
    document_ids = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2]).expand(2, 8)
    both = batch_edges([edges, edges])
    within = edges[:, document_ids[0, edges[0]] == document_ids[0, edges[1]]]
    packed = mixer(x, document_ids=document_ids, structure=Edges(both))
    torch.testing.assert_close(packed, mixer(x, structure=Edges(batch_edges([within, within]))))
    mask = torch.rand(2, 8) > 0.3
    expected = mixer(x, mask, structure=Edges(batch_edges([within, within])))
    torch.testing.assert_close(mixer(x, mask, document_ids=document_ids, structure=Edges(both)), expected)


@pytest.mark.parametrize("wrong", [[1, 0, 0], [0, 4, 0], [0, 0, 4], [0, -1, 0]])
def test_edges_of_nodes_that_are_not_there_are_named(wrong: list[int]) -> None:
    edges = torch.tensor([[0, 0, 0], wrong]).T
    with pytest.raises(UserError, match="rows below 1, and sources and targets below 4"):
        build()(inputs(1, 4), structure=Edges(edges))


def test_heads_must_divide_dim() -> None:
    with pytest.raises(UserError, match="dim=8 and heads=3"):
        Graph(DIM, heads=3)


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation gave."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.size = max(self.size, tensor.numel())
        return out


@pytest.mark.slow
def test_65536_nodes_cost_their_edges() -> None:
    """Nothing of nodes x nodes, forward or backward."""
    mixer, x = Graph(DIM, heads=HEADS), torch.randn(1, 65536, DIM).requires_grad_()
    edges = batch_edges([torch.randint(65536, (2, 200_000))])
    with Largest() as largest:
        y = mixer(x, structure=Edges(edges))
        y.sum().backward()
    assert largest.size <= 200_000 * DIM
    node = int(edges[2, 0])
    its = edges[:, edges[2] == node]
    nodes = torch.cat((its[1], torch.tensor([node])))
    renumbered = batch_edges([torch.stack((torch.arange(its.shape[1]), torch.full((its.shape[1],), its.shape[1])))])
    torch.testing.assert_close(y[:, node], mixer(x[:, nodes], structure=Edges(renumbered))[:, -1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_ten_thousand_are_right(dtype: torch.dtype) -> None:
    """Known failure elsewhere: unshifted exp is infinite at 89 in float32 and bfloat16."""
    mixer, edges = build().to(dtype), batch_edges([torch.randint(9, (2, 40))])
    x = (inputs(1, 9) * 300).to(dtype).requires_grad_()
    y = mixer(x, structure=Edges(edges))
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    if dtype == torch.float32:
        structure = Edges(edges)
        allowed = module_errors(
            mixer, lambda other, rounded: other(rounded(x.double()), structure=structure), 2 * DIM + 40 + EXP, dtype
        )
        assert_within(y, mixer.double()(x.double(), structure=structure), allowed)


@pytest.mark.slow
@pytest.mark.usefixtures("no_shape_checks")
def test_compiles_with_edges() -> None:
    torch._dynamo.reset()
    mixer, x, edges = build(), inputs(2, 6), torch.cat((torch.randint(2, (1, 30)), torch.randint(6, (2, 30))))
    mask = torch.rand(2, 6) > 0.2
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask, structure=Edges(edges)), mixer(x, mask, structure=Edges(edges)))
    program = torch.export.export(mixer, (x, mask), {"structure": Edges(edges)})
    torch.testing.assert_close(
        program.module()(x, mask, structure=Edges(edges)), mixer(x, mask, structure=Edges(edges))
    )


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
# On Python 3.13 and newer.
@pytest.mark.filterwarnings("ignore:Failing to pass a value:DeprecationWarning:torch_geometric.inspector")
@pytest.mark.parametrize("heads", [1, 2])
def test_a_layer_of_the_paper_equals_that_of_pyg(heads: int) -> None:
    """`GATConv` of PyG. It has the features of edges within the LeakyReLU, so these are left out."""
    convolutions = pytest.importorskip("torch_geometric.nn")
    mixer = Graph(DIM, heads=heads, score="additive", bias=False, output_projection=False).double()
    rival = convolutions.GATConv(DIM, DIM // heads, heads, add_self_loops=False, bias=False).double()
    with torch.no_grad():
        rival.lin.weight.copy_(mixer.value.weight)
        rival.att_src.copy_(mixer.source_score)
        rival.att_dst.copy_(mixer.target_score)
    x = inputs(1, 9)[0]
    source, target = torch.randint(9, (2, 40), generator=torch.Generator().manual_seed(0)).unique(dim=1)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    one = mixer(ours[None], structure=Edges(torch.stack([torch.zeros_like(source), source, target])))[0]
    other = rival(theirs, torch.stack([source, target]))
    torch.testing.assert_close(one, other)
    one.square().sum().backward()
    other.square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(mixer.value.weight.grad, rival.lin.weight.grad)
    torch.testing.assert_close(mixer.source_score.grad, rival.att_src.grad[0])
