"""Cells to rows: `Schema`, what is to be read from a source, makes a `Row` of raw cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from longspan.data.cells import BadCell, WrongColumn
from longspan.data.columns import Column, Label, Text, source_names
from longspan.data.opening import broken, nearest
from longspan.errors import UserError


class Row(NamedTuple):
    """One row.

    Attributes:
        values: The value of each column by its name, None where there is none; empty if the row could not be read.
        where: Its place, such as "reviews.csv, row 17" (the header is not counted).
        problem: Why the row cannot be used, such as "no label" or "broken UTF-8", details in brackets; else empty.
    """

    values: dict[str, Any]
    where: str
    problem: str = ""


@dataclass(frozen=True)
class Schema:
    """What is to be read from a source.

    Attributes:
        columns: The columns.
        names: What the source calls them, by their names.
        encoding: Of text files.
    """

    columns: tuple[Column, ...]
    names: dict[str, str]
    encoding: str = "utf-8"

    @property
    def facts(self) -> list[Any]:
        """What rows depend on besides the source, as JSON."""
        return [self.names, [column.facts for column in self.columns], self.encoding]

    @property
    def sources(self) -> list[str]:
        """What the source calls the columns, in their order."""
        return [self.names[column.name] for column in self.columns]

    @property
    def needed(self) -> list[str]:
        """What the source calls the columns that it must have."""
        return [self.names[column.name] for column in self.columns if column.required]

    def of(self, kind: type[Column]) -> list[Column]:
        """Return the columns of a kind."""
        return [column for column in self.columns if isinstance(column, kind)]

    def check_present(self, name: str, present: Sequence[str]) -> None:
        """Raise UserError unless all needed columns are present.

        Args:
            name: The file or data set, for the message.
            present: The columns there are.
        """
        for column in self.columns:
            source = self.names[column.name]
            if column.required and source not in present:
                shown = ", ".join(map(repr, present))
                hint = nearest(source, present) or f"set data.{column.setting} to one of them."
                raise UserError(f"{name} has no column {source!r} but {shown or 'none at all'}: {hint}")

    def row(self, cells: Mapping[str, Any], where: str, folder: Path) -> Row:
        """Make a row of raw cells.

        Args:
            cells: Values by the source's columns; text in which a lone surrogate stands for damage, or bytes of UTF-8.
            where: Its place.
            folder: What relative paths are relative to.

        Raises:
            UserError: The type of a cell shows that another column is meant.
        """
        try:
            decoded = [_decoded(cells.get(self.names[column.name])) for column in self.columns]
        except UnicodeError:
            return Row({}, where, broken(self.encoding))
        values: dict[str, Any] = {}
        problem = ""
        for column, cell in zip(self.columns, decoded, strict=True):
            try:
                value = None if cell is None else column.parse(cell, folder)
            except BadCell as error:
                values[column.name] = None
                problem = problem or str(error)
                continue
            except WrongColumn:
                raise UserError(
                    f"{where}: expected {column.kind} in column {self.names[column.name]!r}, but got a value of type "
                    f"{type(cell).__name__}: mend the row, or set data.{column.setting} to another column."
                ) from None
            values[column.name] = value
            if column.required and column.is_missing(value):
                problem = problem or f"no {column.name}"
        for column in self.columns:
            problem = problem or column.check(values)
        return Row(values, where, problem)

    def documents(self, what: str) -> tuple[Text, Label | None]:
        """Return the columns of text and, if there is one, label, of a source that is not a table.

        Raises:
            UserError: Other columns are needed, or none with text.
        """
        texts, labels = self.of(Text), self.of(Label)
        text, label = texts[:1], labels[:1]
        for column in self.columns:
            if column.required and column not in (*text, *label):
                known = " and ".join(repr(found.name) for found in (*text, *label))
                raise UserError(
                    f"{what} has no column {self.names[column.name]!r} (data.{column.setting}) but "
                    f"{known or 'text'}: give a csv, tsv, jsonl or parquet file, or 'hub:./FOLDER'."
                )
        if not texts:
            raise UserError(f"{what} has text, which is not asked for: give a csv, tsv, jsonl or parquet file.")
        return texts[0], labels[0] if labels else None  # type: ignore[return-value]


def schema_of(columns: Sequence[Column], config: Any) -> Schema:
    """Return what is to be read, as the settings name it.

    Raises:
        UserError: A setting is empty, or two name one column.
    """
    return Schema(tuple(columns), source_names(columns, config), config.encoding)


def _decoded(cell: Any) -> Any:
    """Return text for bytes; raise UnicodeError for what is not text."""
    if isinstance(cell, bytes):
        return cell.decode("utf-8")
    if isinstance(cell, str) and not cell.isascii():
        cell.encode("utf-8")
    if isinstance(cell, list):
        return [_decoded(item) for item in cell]
    return cell
