"""Graphs from files and from memory: the same graph, whatever it is read from, and one sentence for each mistake."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from longspan.data.graphs.graph import Features, Graph, in_order
from longspan.data.graphs.neighbours import Neighbourhoods
from longspan.data.graphs.options import GraphData
from longspan.data.graphs.positions import eigenvector_positions, walk_positions
from longspan.data.graphs.processor import GraphProcessor
from longspan.data.graphs.reading import read_graph, with_graph
from longspan.errors import UserError

NODES = """node,age,height,label,split
ann,1,0.5,red,train
bob,0,2,blue,train
cat,3,0,,
dan,1,1,red,validation
"""
EDGES = """source,target,weight
ann,bob,1
bob,ann,2
cat,ann,3
ann,bob,4
"""


def tables(folder: Path, nodes: str = NODES, edges: str = EDGES, **more: Any) -> GraphData:
    (folder / "nodes.csv").write_text(nodes, encoding="utf-8")
    (folder / "edges.csv").write_text(edges, encoding="utf-8")
    more = {"self_loops": False, **more}
    return GraphData(path=str(folder / "nodes.csv"), edges=str(folder / "edges.csv"), **more)


def read(data: GraphData, training: bool = True) -> Graph:
    return read_graph(data.path, data, training=training)


def pairs(graph: Graph) -> set[tuple[str, str]]:
    return {(graph.names[source], graph.names[target]) for source, target in graph.edges.T}


def test_tables(tmp_path: Path) -> None:
    graph = read(tables(tmp_path, directed="yes", edge_feature_columns=["weight"]))
    assert list(graph.names) == ["ann", "bob", "cat", "dan"]
    np.testing.assert_array_equal(graph.features.table(), [[1, 0.5], [0, 2], [3, 0], [1, 1]])
    # By target, then by source; of equal edges the first counts.
    assert graph.edges.tolist() == [[1, 2, 0], [0, 0, 1]]
    assert graph.edge_features.tolist() == [[2], [3], [1]]
    assert list(graph.classes) == ["blue", "red"]
    assert graph.labels.tolist() == [1, 0, -1, 1]
    assert {name: nodes.tolist() for name, nodes in graph.splits.items()} == {"train": [0, 1], "validation": [3]}


def test_edges_lead_both_ways_and_loops_are_added(tmp_path: Path) -> None:
    assert pairs(read(tables(tmp_path))) == {("ann", "bob"), ("bob", "ann"), ("ann", "cat"), ("cat", "ann")}
    both = read(tables(tmp_path, self_loops=True))
    assert pairs(both) >= {(name, name) for name in both.names}
    assert both.edges.shape[1] == 4 + 4


def test_graphs_of_networkx_in_memory_and_as_graphml(tmp_path: Path) -> None:
    given = networkx.DiGraph()
    given.add_node("ann", age=1.0, height=0.5, label="red", split="train")
    given.add_node("bob", age=0.0, height=2.0, label="blue", split="train")
    given.add_node("cat", age=3.0, height=0.0)
    given.add_node("dan", age=1.0, height=1.0, label="red", split="validation")
    given.add_edge("ann", "bob", weight=1.0)
    given.add_edge("bob", "ann", weight=2.0)
    given.add_edge("cat", "ann", weight=3.0)
    networkx.write_graphml(given, tmp_path / "graph.graphml.gz")
    wanted = read(tables(tmp_path, directed="yes", edge_feature_columns=["weight"]))
    settings = GraphData(self_loops=False, edge_feature_columns=["weight"])
    for data in (with_graph(settings, given), with_graph(settings, tmp_path / "graph.graphml.gz")):
        graph = read(data)
        assert list(graph.names) == list(wanted.names)
        for name in ("edges", "edge_features", "labels"):
            np.testing.assert_array_equal(getattr(graph, name), getattr(wanted, name))
        np.testing.assert_array_equal(graph.features.table(), wanted.features.table())
        assert {name: nodes.tolist() for name, nodes in graph.splits.items()} == {"train": [0, 1], "validation": [3]}
    assert with_graph(settings, given).path == with_graph(settings, given.copy()).path


def test_planetoid_and_csr_archives(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "planetoid.npz",
        feature_row=[0, 2, 1],
        feature_col=[1, 0, 1],
        feature_value=np.array([1, 3, 2], dtype=np.float32),
        shape=[3, 2],
        label=np.array([0, 1, 0], dtype=np.int16),
        edges=[[0, 1], [1, 2]],
        train=[0, 1],
        valid=[2],
    )
    np.savez(
        tmp_path / "csr.npz",
        adj_indptr=[0, 1, 2, 2],
        adj_indices=[1, 2],
        adj_data=[1, 1],
        adj_shape=[3, 3],
        attr_matrix=np.array([[0, 1], [0, 2], [3, 0]], dtype=np.float32),
        labels=[0, 1, 0],
    )
    graphs = [
        read(GraphData(path=str(tmp_path / name), validation_fraction=0.5)) for name in ("planetoid.npz", "csr.npz")
    ]
    for graph in graphs:
        assert graph.features.table().tolist() == [[0, 1], [0, 2], [3, 0]]
        assert graph.edges.shape[1] == 4 + 3
        assert graph.labels.tolist() == [0, 1, 0]
    assert graphs[0].splits["train"].tolist() == [0, 1]
    # None are given: half of each class.
    assert sorted(np.concatenate([*graphs[1].splits.values()]).tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("nodes", "edges", "more", "message"),
    [
        (NODES, EDGES + "ann,eve,1\n", {}, "edges.csv, row 6: expected an edge between nodes .* the node 'eve'"),
        (NODES, "source,target\n", {}, "expected edges in nodes.csv, got none"),
        (NODES, "from,to\na,b\n", {}, "has no column 'source' .data.source_column."),
        (NODES + "ann,1,1,red,train\n", EDGES, {}, "row 6: expected each node once, got 'ann' again"),
        (NODES.replace("0.5", "tall"), EDGES, {}, "row 2: expected a finite number in column 'height', got 'tall'"),
        (NODES.replace("validation", "valdation"), EDGES, {}, "row 5: there is no split 'valdation'; did you mean"),
        (NODES.replace("red", "blue"), EDGES, {}, "expected nodes of at least two classes in nodes.csv, got 1"),
        (NODES + "eve,1\n", EDGES, {}, "row 6: expected 5 fields"),
        (NODES, EDGES, {"edges": ""}, "expected a file of edges beside that of nodes"),
    ],
)
def test_mistakes(nodes: str, edges: str, more: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = tables(tmp_path, nodes, edges)
    with pytest.raises(UserError, match=message):
        read(GraphData(path=data.path, **{"edges": data.edges, **more}))


def test_edges_to_missing_nodes_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = read(tables(tmp_path, edges=EDGES + "ann,eve,1\n", skip_bad_rows=True))
    assert len(pairs(graph)) == 4
    assert "1 edges of edges.csv are left out" in capsys.readouterr().err


def test_pickles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ind.cora.graph").write_bytes(b"cos\nsystem\n")
    for path in (tmp_path, tmp_path / "ind.cora.graph"):
        with pytest.raises(UserError, match="without executing code"):
            read_graph(path, GraphData(), training=True)
    np.savez(tmp_path / "objects.npz", feature_row=np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="expected an npz file as of Planetoid"):
        read_graph(tmp_path / "objects.npz", GraphData(), training=True)


def drawn(nodes: int, edges: int) -> Graph:
    random = np.random.default_rng(0)
    ends, features = in_order(*random.integers(nodes, size=(2, edges)), directed=False, loops=True, nodes=nodes)
    table = random.random((nodes, 3)).astype(np.float32)
    labels = np.zeros(nodes, np.int64)
    return Graph("it", [str(number) for number in range(nodes)], Features.dense(table), ends, features, labels)


def test_positions_are_those_of_dense_matrices() -> None:
    graph = drawn(30, 60)
    matrix = np.zeros((30, 30))
    matrix[graph.edges[0], graph.edges[1]] = 1
    np.fill_diagonal(matrix, 0)
    walk = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    wanted = np.stack([np.diag(np.linalg.matrix_power(walk, step)) for step in (1, 2, 3)], 1)
    np.testing.assert_allclose(walk_positions(graph.edges, 30, 3), wanted, atol=1e-6)
    found = eigenvector_positions(graph.edges, 30, 2)
    part = np.flatnonzero(found.any(1))
    degree = matrix[part][:, part].sum(1)
    laplacian = np.eye(len(part)) - matrix[part][:, part] / np.sqrt(np.outer(degree, degree))
    values = np.linalg.eigvalsh(laplacian)[1:3]
    np.testing.assert_allclose(laplacian @ found[part], found[part] * values, atol=1e-5)


def test_parts_have_the_edges_that_were_drawn() -> None:
    graph = drawn(200, 900)
    around = Neighbourhoods(graph.edges, 200, fanout=2, hops=2)
    seeds = np.array([7, 3, 150])
    nodes, edges, which = around.part(seeds, np.random.default_rng(0))
    assert nodes[:3].tolist() == [7, 3, 150]
    assert len(np.unique(nodes)) == len(nodes)
    np.testing.assert_array_equal(nodes[edges], graph.edges[:, which])
    # In the order of a graph, none twice; each node has its loop and at most two more.
    number = edges[1] * len(nodes) + edges[0]
    assert (np.diff(number) > 0).all()
    assert np.bincount(edges[1]).max() <= 3
    loops = edges[0] == edges[1]
    assert set(edges[1, loops]) == set(edges[1])
    again = around.part(seeds, np.random.default_rng(0))
    np.testing.assert_array_equal(again[2], which)
    everything = Neighbourhoods(graph.edges, 200, fanout=1000, hops=1).part(np.arange(200), np.random.default_rng(0))
    np.testing.assert_array_equal(everything[1], graph.edges)


def test_features_are_scaled() -> None:
    graph = drawn(40, 50)
    table = graph.features.table()
    splits = {"train": np.arange(30)}
    given = Graph(graph.source, graph.names, graph.features, graph.edges, graph.edge_features, graph.labels, (), splits)
    rows = GraphProcessor.of(given, GraphData(normalize="rows")).inputs(given).features.table()
    np.testing.assert_allclose(rows, table / table.sum(1, keepdims=True), rtol=1e-6)
    columns = GraphProcessor.of(given, GraphData(normalize="columns")).inputs(given).features.table()
    wanted = (table - table[:30].mean(0)) / table[:30].std(0)
    np.testing.assert_allclose(columns, wanted, rtol=1e-4, atol=1e-5)


def featured(table: np.ndarray) -> Graph:
    graph = drawn(len(table), 2 * len(table))
    return replace(graph, features=Features.dense(table), splits={"train": np.arange(len(table))})


def test_scaling_is_chosen_by_what_features_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Counts of words are shares of a node; numbers with units are not, even where many are 0 or there is one alone."""
    random = np.random.default_rng(0)
    words = (random.random((50, 100)) < 0.05).astype(np.float32)
    units = random.random((50, 3)) * [80, 2, 50000]
    sparse_units = units * (random.random((50, 3)) < 0.3)
    for table, chosen in (
        (words, "rows"),
        (np.abs(random.standard_normal((50, 100))) * words, "rows"),
        (units, "columns"),
        (sparse_units, "columns"),
        (units[:, :1], "columns"),
        (np.where(words, random.standard_normal((50, 100)), 0), "columns"),
        (random.random((50, 100)), "columns"),
    ):
        graph = featured(table)
        processor = GraphProcessor.of(graph, GraphData())
        assert processor.normalize == chosen
        assert f"(data.normalize={chosen})" in capsys.readouterr().err
        explicit = GraphProcessor.of(graph, GraphData(normalize=chosen))  # type: ignore[arg-type]
        assert processor == explicit
        assert not capsys.readouterr().err


def test_columns_in_any_unit_are_scaled() -> None:
    random = np.random.default_rng(0).standard_normal((50, 1))
    table = np.concatenate((1e-9 * random, 1e6 + 10 * random, np.full((50, 1), 0.1)), 1)
    graph = featured(table.astype(np.float32))
    scaled = GraphProcessor.of(graph, GraphData()).inputs(graph).features.table()
    np.testing.assert_allclose(scaled[:, :2].std(0), 1, rtol=1e-5)
    np.testing.assert_allclose(scaled[:, 2], 0, atol=1e-6)


def test_features_of_edges_are_scaled_and_added_loops_have_none() -> None:
    random = np.random.default_rng(0)
    ends = random.integers(30, size=(2, 80))
    weights = 1e4 + 100 * random.standard_normal((80, 1))
    edges, features = in_order(ends[0], ends[1], weights, directed=True, loops=True, nodes=30)
    graph = replace(drawn(30, 60), edges=edges, edge_features=features, splits={"train": np.arange(30)})
    found = GraphProcessor.of(graph, GraphData()).inputs(graph).edge_features
    empty = (edges[0] == edges[1]) & (features[:, 0] == 0)
    assert empty.any()
    assert (found[empty] == 0).all()
    np.testing.assert_allclose([found[~empty].mean(), found[~empty].std()], [0, 1], atol=1e-4)
    plain = GraphProcessor.of(graph, GraphData(normalize="none")).inputs(graph).edge_features
    np.testing.assert_array_equal(plain, features)


def test_processors_without_scales_of_edges_load(tmp_path: Path) -> None:
    """As earlier releases saved them."""
    values = {"width": 2, "edge_width": 1, "normalize": "rows", "mean": [], "scale": []}
    values |= {"walk_positions": 0, "eigenvector_positions": 0}
    (tmp_path / "processor.json").write_text(json.dumps(values), encoding="utf-8")
    assert GraphProcessor.from_pretrained(tmp_path) == GraphProcessor(2, 1, "rows", [], [], 0, 0, [], [])
    (tmp_path / "processor.json").write_text(json.dumps({**values, "edge_mean": [1.0]}), encoding="utf-8")
    with pytest.raises(UserError, match="edge_mean and edge_scale must have 1 numbers, got 1 and 0"):
        GraphProcessor.from_pretrained(tmp_path)


def test_no_loops_means_no_loops_of_the_source() -> None:
    edges, features = in_order(
        np.array([0, 1, 1]), np.array([0, 1, 2]), np.ones((3, 1)), directed=False, loops=False, nodes=3
    )
    assert edges.tolist() == [[2, 1], [1, 2]]
    assert features.shape == (2, 1)
