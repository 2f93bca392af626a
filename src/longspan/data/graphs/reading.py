"""Reading graphs from files of any known kind: `read_graph`."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longspan.data.graphs.archives import kept, read_npz
from longspan.data.graphs.graph import Graph
from longspan.data.graphs.networks import is_networkx, of_networkx, read_graphml
from longspan.data.graphs.options import GraphData
from longspan.data.graphs.raw import RawGraph
from longspan.data.graphs.tables import read_tables
from longspan.data.sources.files.opening import expand
from longspan.data.sources.in_memory import is_path
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
    return dataclasses.replace(data, path=str(kept(of_networkx(given, data))), edges="")


def _refusal(path: Path) -> UserError:
    return UserError(
        f"expected a graph that can be read without executing code, got {path.name!r}, a pickle, as Planetoid's raw "
        "files are; convert it to npz where you trust it (docs/graphs.md)."
    )
