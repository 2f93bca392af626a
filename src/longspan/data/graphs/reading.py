"""Reading graphs from files of any known kind: `read_graph`."""

import dataclasses
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.graphs.graph import Features, Graph
from longspan.data.graphs.networks import is_networkx, of_networkx, read_graphml
from longspan.data.graphs.options import GraphData
from longspan.data.graphs.raw import RawGraph
from longspan.data.graphs.tables import read_tables
from longspan.data.sources.files.addresses import named
from longspan.data.sources.files.opening import expand
from longspan.data.sources.in_memory import cached_copy, is_path
from longspan.errors import UserError

_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".graph", ".allx", ".ally", ".tx", ".ty", ".x", ".y")
_READERS: dict[str, Callable[[Path, GraphData], RawGraph]] = {
    ".npz": lambda path, data: read_npz(path),
    ".csv": read_tables,
    ".tsv": read_tables,
    ".graphml": read_graphml,
}


def read_graph(path: Path | str, data: GraphData, *, training: bool) -> Graph:
    """Read a graph.

    Raises:
        UserError: There is none, it may be a pickle, or it is damaged.
    """
    found = expand(path)
    if found.is_dir():
        names = sorted(each.name for each in found.iterdir())
        if any(name.startswith("ind.") for name in names):
            raise _refusal(found)
        inside = [found / name for name in names if name.endswith(".npz")]
        if len(inside) != 1:
            raise UserError(f"expected one npz file in the folder {str(found)!r}, got {len(inside)}; name a file.")
        found = inside[0]
    if not found.is_file():
        raise UserError(f"expected a graph in {str(path)!r}, got no such file; check data.path.")
    suffix = found.with_suffix("").suffix if found.suffix == ".gz" else found.suffix
    if suffix in _PICKLES or found.name.startswith("ind."):
        raise _refusal(found)
    if suffix not in _READERS:
        raise UserError(
            f"expected a graph as {', '.join(_READERS)}, got {found.name!r}; convert it, or give a graph of networkx "
            "in Python."
        )
    return _READERS[suffix](found, data).finished(data, training=training)


def with_graph(data: GraphData, given: Any) -> GraphData:
    """Return settings with another graph: a path, or a graph of networkx.

    Raises:
        UserError: It is something else.
    """
    if is_path(given):
        return dataclasses.replace(data, path=str(given), edges=data.edges if Path(given).suffix == ".csv" else "")
    if not is_networkx(given):
        raise UserError(
            f"expected a graph as a path or a graph of networkx, got a value of type {type(given).__name__}; give one "
            "of them."
        )
    return dataclasses.replace(data, path=str(_cached_graph(of_networkx(given, data))), edges="")


def _refusal(path: Path) -> UserError:
    return UserError(
        f"expected a graph that can be read without executing code, got {path.name!r}, a pickle, as Planetoid's raw "
        "files are; convert it to npz where you trust it (docs/graphs.md)."
    )


SPLITS = {"train": "train", "valid": "validation", "test": "test"}


def read_npz(path: Path) -> RawGraph:
    """Read a graph from an npz file.

    Raises:
        UserError: It is damaged, has arrays of objects, or no layout that is known.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            for keys, read in _LAYOUTS.items():
                if set(keys) <= set(archive.files):
                    return read(archive, path)
            found = ", ".join(sorted(archive.files)[:8])
    except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(
            f"expected arrays of a graph in {named(path)}, got something else ({error}); restore the file."
        ) from None
    raise UserError(
        f"expected an npz file as of Planetoid (feature_row, edges, label, ...) or with matrices in CSR form "
        f"(adj_indices, attr_indices, labels, ...), got {named(path)} with {found}; convert it."
    )


_Arrays = Mapping[str, np.ndarray]


def _planetoid(arrays: _Arrays, path: Path) -> RawGraph:
    shape = [int(size) for size in arrays["shape"]]
    row, column = arrays["feature_row"].astype(np.int64), arrays["feature_col"].astype(np.int64)
    features = Features.sparse(row, column, arrays["feature_value"], shape)
    edges = arrays["edges"].astype(np.int64).reshape(-1, 2)
    splits = {ours: arrays[theirs].astype(np.int64) for theirs, ours in SPLITS.items() if theirs in arrays}
    return _raw_graph(path, shape[0], features, edges, arrays["label"], splits)


def _csr(arrays: _Arrays, path: Path) -> RawGraph:
    nodes = int(arrays["adj_shape"][0])
    source = np.repeat(np.arange(nodes), np.diff(arrays["adj_indptr"]))
    edges = np.stack((source, arrays["adj_indices"].astype(np.int64)), 1)
    if "attr_indptr" in arrays:
        row = np.repeat(np.arange(nodes), np.diff(arrays["attr_indptr"]))
        shape = [int(size) for size in arrays["attr_shape"]]
        features = Features.sparse(row, arrays["attr_indices"], arrays["attr_data"], shape)
    else:
        features = Features.dense(arrays["attr_matrix"])
    return _raw_graph(path, nodes, features, edges, arrays["labels"], {})


def _copy(arrays: _Arrays, path: Path) -> RawGraph:
    names = [str(name) for name in arrays["names"]]
    features = Features(arrays["starts"], arrays["columns"], arrays["values"], int(arrays["width"]))
    splits = {name: arrays[f"split_{name}"] for name in SPLITS.values() if f"split_{name}" in arrays}
    source, target = arrays["source"], arrays["target"]
    labels = [str(label) for label in arrays["labels"]]
    directed = bool(arrays["directed"])
    return RawGraph(named(path), names, features, source, target, arrays["edge_features"], labels, splits, directed)


def _raw_graph(
    path: Path,
    nodes: int,
    features: Features,
    edges: np.ndarray,
    labels: np.ndarray,
    splits: Mapping[str, np.ndarray],
) -> RawGraph:
    if len(labels) != nodes or len(features.starts) != nodes + 1:
        raise ValueError(f"{nodes} nodes with {len(labels)} labels and {len(features.starts) - 1} rows of features")
    for what, numbers in {"edges": edges, **splits}.items():
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < nodes:
            raise ValueError(f"{what} of nodes below {nodes}, got {numbers.min()} to {numbers.max()}")
    names = [str(number) for number in range(nodes)]
    classes = ["" if label < 0 else str(int(label)) for label in labels]
    none = np.zeros((len(edges), 0), np.float32)
    return RawGraph(named(path), names, features, edges[:, 0], edges[:, 1], none, classes, splits)


_LAYOUTS: dict[tuple[str, ...], Callable[[_Arrays, Path], RawGraph]] = {
    ("feature_row", "feature_col", "feature_value", "shape", "label", "edges"): _planetoid,
    ("adj_indptr", "adj_indices", "adj_shape", "labels"): _csr,
    ("names", "starts", "columns", "source", "target", "directed"): _copy,
}


def _cached_graph(graph: RawGraph) -> Path:
    """Return the file with a copy of a graph that is in memory, writing it unless it is there."""
    arrays: dict[str, Any] = {
        "names": np.array(graph.names, dtype=np.str_),
        "starts": graph.features.starts,
        "columns": graph.features.columns,
        "values": graph.features.values,
        "width": np.array(graph.features.width),
        "source": graph.source,
        "target": graph.target,
        "edge_features": graph.edge_features,
        "labels": np.array(graph.labels, dtype=np.str_),
        "directed": np.array(bool(graph.directed)),
        **{f"split_{name}": nodes for name, nodes in graph.splits.items()},
    }

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **arrays)

    return cached_copy("graph.npz", write)
