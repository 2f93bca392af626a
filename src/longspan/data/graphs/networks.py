"""Graphs of networkx, in memory or in GraphML: `of_networkx`, `read_graphml`."""

import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import numpy as np

from longspan.data.graphs.graph import Features
from longspan.data.graphs.options import GraphData
from longspan.data.graphs.raw import RawGraph
from longspan.data.graphs.tables import LARGEST, label_of, split_nodes
from longspan.data.sources.files.addresses import named
from longspan.errors import UserError
from longspan.machine.imports import require


def is_networkx(given: Any) -> bool:
    """Return whether something is a graph of networkx, which need not be installed."""
    module = sys.modules.get("networkx")
    return module is not None and isinstance(given, module.Graph)


def read_graphml(path: Path, data: GraphData) -> RawGraph:
    """Read a graph from GraphML. Raises UserError if networkx is missing, or the file cannot be read."""
    require("networkx", f"reading {named(path)}")
    import networkx

    try:
        found = networkx.read_graphml(path)
    except (OSError, ParseError, networkx.NetworkXError, KeyError, ValueError, EOFError, zlib.error) as error:
        raise UserError(f"expected GraphML in {named(path)}, got something else ({error}); restore it.") from None
    return of_networkx(found, data, named(path))


def of_networkx(graph: Any, data: GraphData, where: str = "the graph") -> RawGraph:
    """Return a graph of networkx.

    The attribute `data.label_column` of a node is its class, `data.split_column` its split. Other attributes are its
    features: numbers, or lists of them, of which every node has as many.

    Raises:
        UserError: Features of nodes or of edges differ in number or are none.
    """
    nodes = list(graph.nodes(data=True))
    number = {node: place for place, (node, _) in enumerate(nodes)}
    special = {data.label_column, data.split_column}
    # Of all nodes: what the first one lacks is no reason to leave it out.
    wanted = list(dict.fromkeys(name for _, values in nodes for name in values if name not in special))
    rows = [_numbers(values, wanted, f"node {str(node)!r} of {where}") for node, values in nodes]
    places = [f"node {str(node)!r} of {where}" for node, _ in nodes]
    splits = split_nodes([str(values.get(data.split_column) or "") for _, values in nodes], places)
    labels = [label_of(values.get(data.label_column)) for _, values in nodes]
    names = Counter(str(node) for node, _ in nodes)
    if again := [name for name, times in names.items() if times > 1]:
        raise UserError(f"{where}: expected each node once, got two called {again[0]!r}; rename one of them.")
    edges = list(graph.edges(data=True))
    edge_wanted = data.edge_feature_columns or []
    edge_rows = [_numbers(values, edge_wanted, f"edge {a!s} to {b!s} of {where}") for a, b, values in edges]
    return RawGraph(
        where,
        [str(node) for node, _ in nodes],
        Features.dense(_table(rows, where)),
        np.array([number[a] for a, _, _ in edges], np.int64),
        np.array([number[b] for _, b, _ in edges], np.int64),
        _table(edge_rows, where),
        labels,
        splits,
        bool(graph.is_directed()),
    )


def _numbers(values: Any, wanted: list[str], where: str) -> list[float]:
    found: list[float] = []
    for name in wanted:
        cell = values.get(name)
        try:
            found.extend(np.asarray(cell, dtype=np.float64).reshape(-1).tolist())
        except (TypeError, ValueError):
            found.append(np.nan)
        if not (np.abs(found) <= LARGEST).all() or cell is None:
            got = "none" if cell is None else repr(cell)
            raise UserError(
                f"{where}: expected finite numbers as {name!r}, got {got}; correct or remove the attribute."
            )
    return found


def _table(rows: list[list[float]], where: str) -> np.ndarray:
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise UserError(
            f"expected as many features everywhere in {where}, got {min(widths)} and {max(widths)}; correct them."
        )
    return np.array(rows, np.float32).reshape(len(rows), widths.pop() if widths else 0)
