"""Graphs in two csv files, one of nodes and one of edges: `read_tables`."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.graphs.graph import Features
from longspan.data.graphs.options import GraphData
from longspan.data.graphs.raw import RawGraph
from longspan.data.sources.files.addresses import named, row_of
from longspan.data.sources.files.decoding import open_text
from longspan.data.sources.files.opening import encoding_of, open_packed, packed_suffix
from longspan.data.sources.formats.tables import check_once
from longspan.errors import UserError, suggestion
from longspan.machine.printing import note, printable

SPLIT_NAMES = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
#: Features are float32.
LARGEST = float(np.finfo(np.float32).max)
_DELIMITERS = {"auto": ",", "tab": "\t", "comma": ",", "semicolon": ";", "space": " ", "pipe": "|"}


def read_tables(path: Path, data: GraphData) -> RawGraph:
    """Read nodes from `path` and edges from `data.edges`.

    Every column of nodes is a feature, except those of names, labels and splits.

    Raises:
        UserError: A column is missing, a node is there twice, a feature is no number, or an edge has a node that is not
            there, unless `data.skip_bad_rows`.
    """
    if not data.edges:
        raise UserError(
            f"expected a file of edges beside that of nodes, {named(path)}, got none; set data.edges=FILE.csv."
        )
    rows = list(_rows(path, data))
    columns = list(rows[0][1]) if rows else []
    _check_columns(path, columns, [data.node_column], "data.node_column")
    special = {data.node_column, data.label_column, data.split_column}
    names = [row[data.node_column] for _, row in rows]
    known: dict[str, int] = {}
    for (place, _), name in zip(rows, names, strict=True):
        if name in known:
            raise UserError(f"{place}: expected each node once, got {name!r} again; remove the row.")
        known[name] = len(known)
    wanted = [name for name in columns if name not in special]
    features = np.array([[_number(row[name], name, place) for name in wanted] for place, row in rows], np.float32)
    labels = [label_of(row.get(data.label_column)) for _, row in rows]
    source, target, edge_features = _edges(Path(data.edges), data, known)
    dense = Features.dense(features.reshape(len(rows), len(wanted)))
    named_splits = [(row.get(data.split_column) or "").strip() for _, row in rows]
    splits = split_nodes(named_splits, [place for place, _ in rows])
    return RawGraph(named(path), names, dense, source, target, edge_features, labels, splits)


def split_nodes(names: Sequence[str], places: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the numbers of the nodes in each split, from the split that each node names; "" for none.

    Raises:
        UserError: A node names another split.
    """
    found: dict[str, list[int]] = {}
    for number, (name, place) in enumerate(zip(names, places, strict=True)):
        if name:
            if name.lower() not in SPLIT_NAMES:
                raise UserError(f"{place}: there is no split {name!r}; {suggestion(name, SPLIT_NAMES)}")
            found.setdefault(SPLIT_NAMES[name.lower()], []).append(number)
    return {name: np.array(numbers, np.int64) for name, numbers in found.items()}


def label_of(value: Any) -> str:
    """The class that a node's attribute or cell names; empty where there is none, as for NaN."""
    text = "" if value is None else str(value).strip()
    return "" if text in ("nan", "NaN", "<NA>", "None") else text


def _edges(path: Path, data: GraphData, known: dict[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source, target, features, missing = [], [], [], 0
    wanted = data.edge_feature_columns or []
    needed = [data.source_column, data.target_column, *wanted]
    for number, (place, row) in enumerate(_rows(path, data, needed)):
        if not number:
            _check_columns(path, row, [data.source_column], "data.source_column")
            _check_columns(path, row, [data.target_column], "data.target_column")
            _check_columns(path, row, wanted, "data.edge_feature_columns")
        ends = row[data.source_column], row[data.target_column]
        lost = next((name for name in ends if name not in known), None)
        if lost is not None:
            if not data.skip_bad_rows:
                raise UserError(
                    f"{place}: expected an edge between nodes of the table, got the node {lost!r}, which it lacks; add "
                    "the node, or leave such edges out with data.skip_bad_rows=true."
                )
            missing += 1
            continue
        source.append(known[ends[0]])
        target.append(known[ends[1]])
        features.append([_number(row[name], name, place) for name in wanted])
    if missing:
        note(f"{missing:,} edges of {named(path)} are left out, as they have nodes that are not there")
    table = np.array(features, np.float32).reshape(len(source), len(wanted))
    return np.array(source, np.int64), np.array(target, np.int64), table


def _rows(path: Path, data: GraphData, needed: Sequence[str] | None = None) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place and the cells of each row. Raises UserError if a needed column (or any) is there twice."""
    delimiter = "\t" if data.delimiter == "auto" and packed_suffix(path) == ".tsv" else data.delimiter
    try:
        encoding = encoding_of(path, data.encoding)
        with open_packed(path) as raw, open_text(raw, printable(path.name), encoding, "") as file:
            reader = csv.DictReader(file, delimiter=_DELIMITERS.get(delimiter, delimiter))
            names = list(reader.fieldnames or [])
            check_once(names, names if needed is None else needed, named(path))
            for number, row in enumerate(reader, 2):
                if None in row or None in row.values():
                    raise UserError(
                        f"{row_of(path, number)}: expected {len(reader.fieldnames or [])} fields, got another number; "
                        "correct the row."
                    )
                yield row_of(path, number), row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"expected a csv file to read in {str(path)!r}, got an error ({error}); check it.") from None


def _check_columns(path: Path, columns: Sequence[str] | dict[str, str], wanted: Sequence[str], key: str) -> None:
    for name in wanted:
        if name not in columns:
            raise UserError(f"{named(path)} has no column {name!r} ({key}); {suggestion(name, list(columns))}")


def _number(cell: str, column: str, place: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if not abs(value) <= LARGEST:
        what = repr(cell) if cell.strip() else "an empty cell"
        raise UserError(f"{place}: expected a finite number in column {column!r}, got {what}; correct it.")
    return value
