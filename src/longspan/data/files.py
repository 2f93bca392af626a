"""The reader of documents as callers know it that have not moved to `longspan.data.rows` yet."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from longspan.data.columns import Column, Label, Text
from longspan.data.opening import examine, missing
from longspan.data.schema import schema_of
from longspan.data.tables import read_table

__all__ = ["BROKEN", "Row", "missing", "read_rows"]

BROKEN = "broken UTF-8"


class Row(NamedTuple):
    """One document: its text and label, None where there are none; its place; what is wrong with it."""

    text: str | None
    label: str | None
    where: str
    problem: str = ""


def read_rows(path: Path, *, text_column: str, label_column: str | None) -> Iterator[Row]:
    """Read a table row by row, as `longspan.data.rows.read_rows` does."""
    columns: list[Column] = [Text("text", "text_column")]
    if label_column is not None:
        columns.append(Label("label", "label_column"))
    config = SimpleNamespace(text_column=text_column, label_column=label_column, encoding="utf-8")
    examine(Path(path))
    for row in read_table(Path(path), schema_of(columns, config)):
        problem = "" if row.problem in ("no text", "no label") else row.problem
        yield Row(row.values.get("text"), row.values.get("label"), row.where, problem)
