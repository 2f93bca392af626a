"""Graphs that could be misread without a word: nodes that are there twice, attributes that some lack, odd numbers."""

import gzip
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from longspan import UserError
from longspan.data.graphs.networks import of_networkx
from longspan.data.graphs.options import GraphData
from longspan.data.graphs.tables import read_tables

NODES = "node,age,label\na,1,x\nb,2,y\nc,3,\n"
EDGES = "source,target\na,b\nb,c\n"


def tables(folder: Path, nodes: str, name: str = "nodes.csv", **settings: Any) -> Any:
    path = folder / name
    data = nodes.encode(settings.pop("written", "utf-8"))
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    (folder / "edges.csv").write_text(EDGES, encoding="utf-8")
    return read_tables(path, GraphData(path=str(path), edges=str(folder / "edges.csv"), **settings))


@pytest.mark.parametrize("nodes", ["node,age,label\na,1,x\na,1,x\nb,2,y\n", "node,age,label\na,1,x\nb,2,y\na,3,x\n"])
def test_a_node_is_there_once(tmp_path: Path, nodes: str) -> None:
    with pytest.raises(UserError, match="each node once, got 'a' again"):
        tables(tmp_path, nodes)


@pytest.mark.parametrize("cell", ["", " ", "nan", "inf", "1e39", "x"])
def test_features_are_finite_numbers(tmp_path: Path, cell: str) -> None:
    with pytest.raises(UserError, match="expected a finite number in column 'age'"):
        tables(tmp_path, f"node,age,label\na,1,x\nb,{cell},y\nc,3,x\n")


def test_tables_may_be_compressed_and_begin_with_a_mark(tmp_path: Path) -> None:
    plain = tables(tmp_path, NODES)
    for graph in (
        tables(tmp_path, NODES, "nodes.csv.gz"),
        tables(tmp_path, NODES, written="utf-8-sig"),
        tables(tmp_path, NODES, written="utf-16", encoding="auto"),
    ):
        assert graph.names == plain.names == ["a", "b", "c"]
        assert graph.labels == plain.labels == ["x", "y", ""]


def chain(**attributes: Any) -> networkx.Graph:
    graph = networkx.path_graph(4)
    for node in graph:
        graph.nodes[node].update(age=float(node), label="xy"[node % 2])
    graph.nodes[0].update(attributes)
    return graph


def test_an_attribute_that_the_first_node_lacks_is_an_error() -> None:
    graph = chain()
    del graph.nodes[0]["age"]
    with pytest.raises(UserError, match="node '0' of the graph: expected finite numbers as 'age', got none"):
        of_networkx(graph, GraphData(path="graph"))


@pytest.mark.parametrize("value", [[np.nan, 2.0], [2.0, np.nan], 1e39])
def test_attributes_are_finite(value: Any) -> None:
    with pytest.raises(UserError, match="expected finite numbers as 'age'"):
        of_networkx(chain(age=value), GraphData(path="graph"))


@pytest.mark.parametrize("label", [None, float("nan"), "<NA>", " ", ""])
def test_labels_that_say_nothing_are_none(label: Any) -> None:
    assert of_networkx(chain(label=label), GraphData(path="graph")).labels == ["", "y", "x", "y"]


def test_names_that_are_written_alike_are_refused() -> None:
    graph = networkx.Graph([(1, "1"), ("1", 2)])
    with pytest.raises(UserError, match="each node once, got two called '1'"):
        of_networkx(graph, GraphData(path="graph"))


@pytest.mark.parametrize("column", ["node", "label", "age"])
def test_columns_are_there_once(tmp_path: Path, column: str) -> None:
    nodes = "\n".join(line + ("," + (column if not row else "1")) for row, line in enumerate(NODES.splitlines()))
    with pytest.raises(UserError, match=f"{column!r}"):
        tables(tmp_path, nodes)
