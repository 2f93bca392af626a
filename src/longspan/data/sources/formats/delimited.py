"""Reading csv and tsv files row by row: `read_separated`."""

import csv
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from longspan.data.columns.values import is_name
from longspan.data.sources.files.decoding import LONGEST_LINE, encoding_name, is_damaged, mend, open_text
from longspan.data.sources.files.opening import open_packed, packed_suffix
from longspan.data.sources.formats.schema import Row, Schema
from longspan.errors import UserError
from longspan.machine.printing import printable

FIELDS = "wrong number of fields"
"""The beginning of `Row.problem` where a row has another number of fields than the first."""

_WORDS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars", " ": "spaces"}
_SETTINGS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
_SNIFFED = 20
"""Number of rows that suggestions are made from."""


def read_separated(path: Path, schema: Schema) -> Iterator[Row]:
    """Read a csv or tsv file row by row; a row with another number of fields than the first has a problem.

    In files with another suffix, quotation marks are characters like others.

    Raises:
        UserError: It lacks a column, is in another encoding, or has a quotation mark that is never closed.
    """
    # The default limit of 128 KiB per field catches broken files, but documents are longer.
    csv.field_size_limit(LONGEST_LINE)
    name, delimiter = printable(path.name), _delimiter(path, schema)
    with open_packed(path) as raw, open_text(raw, name, schema.encoding, "") as lines:
        reader = csv.reader(lines, delimiter=delimiter, strict=True, quoting=_quoting(path))
        indices: dict[str, int] | None = None
        width = number = 0
        while True:
            line = reader.line_num + 1
            place = f"{name}, line {line}" if indices is None else f"{name}, row {number + 1} (line {line})"
            try:
                fields = next(reader, None)
            except csv.Error as error:
                hint = _other_delimiter(path, schema, delimiter)
                raise UserError(
                    f"{place}: expected fields separated by {_WORDS.get(delimiter, repr(delimiter))}, got a "
                    f"quotation mark that is never closed or closed too early ({error}); "
                    + (hint or "quote fields that begin with one, and double those inside.")
                ) from None
            if fields is None:
                return
            if not fields:
                continue
            if indices is None:
                names = _names(fields, place, schema)
                width = len(names)
                schema.check_present(name, names, partial(_hint, path, schema, delimiter, fields))
                indices = {source: names.index(source) for source in schema.sources if source in names}
                if schema.header:
                    continue
            number += 1
            if len(fields) != width:
                first = "header" if schema.header else "first row"
                yield Row({}, place, f"{FIELDS} (expected {width} as in the {first}, got {len(fields)})")
                continue
            cells = {source: fields[index] for source, index in indices.items()}
            yield schema.row(cells, f"{name}, row {number}", path.parent)


def _quoting(path: Path) -> Literal[0, 3]:
    return csv.QUOTE_MINIMAL if packed_suffix(path) in (".csv", ".tsv") else csv.QUOTE_NONE


def _delimiter(path: Path, schema: Schema) -> str:
    if schema.delimiter != "auto":
        return schema.delimiter
    return "\t" if packed_suffix(path) == ".tsv" else ","


def _names(fields: list[str], place: str, schema: Schema) -> list[str]:
    """Return the names of the columns, from the first row."""
    names = [field.strip() for field in fields]
    if any("\x00" in field or is_damaged(field) for field in names):
        raise UserError(
            f"{place}: expected {encoding_name(schema.encoding)}, got another encoding; {mend(schema.encoding)}."
        )
    return names if schema.header else [str(number) for number in range(1, len(fields) + 1)]


def first_row(path: Path, schema: Schema) -> list[str]:
    """Return the fields of the first row: with a header, the names of the columns."""
    return _first_rows(path, schema, _delimiter(path, schema))[0]


def _hint(path: Path, schema: Schema, delimiter: str, fields: list[str]) -> str:
    """Return what to do about a file that lacks a column, as its first rows suggest; an empty text if they do not."""
    return _other_delimiter(path, schema, delimiter) or _no_header(fields, schema)


def _other_delimiter(path: Path, schema: Schema, delimiter: str) -> str:
    """Return what to do about another separator, if the first rows have one; an empty text otherwise."""
    first = _first_rows(path, schema, delimiter)[0]
    for other, setting in _SETTINGS.items():
        rows = _first_rows(path, schema, other)
        names = rows[0] if schema.header else [str(number) for number in range(1, len(rows[0]) + 1)]
        known = all(needed in names for needed in schema.needed)
        alike = len(rows[0]) > 1 and len(set(map(len, rows))) == 1
        # Without the names, a single field in all rows says that it is not the separator.
        if other != delimiter and alike and (known or len(first) < 2):
            return f"its fields seem to be separated by {_WORDS[other]}: set data.delimiter={setting}."
    return ""


def _no_header(fields: list[str], schema: Schema) -> str:
    """Return what to do about a header that looks like data, or about columns that need a header; else an empty
    text."""
    columns = [column for column in schema.columns if column.required]
    if not schema.header:
        named = [f"data.{column.setting}" for column in columns if not schema.names[column.name].isdigit()]
        return f"without a header, columns are numbered from 1: set {' and '.join(named)}." if named else ""
    if any(schema.names[column.name].isdigit() for column in columns) or not all(map(is_name, fields)):
        settings = " and ".join(f"data.{column.setting}" for column in columns)
        return (
            "if its first row is data and not the names of the columns, set data.header=false, and "
            f"{settings} to {'numbers' if len(columns) > 1 else 'the number'} of columns, counted from 1."
        )
    return ""


def _first_rows(path: Path, schema: Schema, delimiter: str) -> list[list[str]]:
    with open_packed(path) as raw, open_text(raw, printable(path.name), schema.encoding, "") as lines:
        try:
            rows = islice(csv.reader(lines, delimiter=delimiter, quoting=_quoting(path)), _SNIFFED)
            return [[field.strip() for field in row] for row in rows if row] or [[]]
        except csv.Error:
            return [[]]
