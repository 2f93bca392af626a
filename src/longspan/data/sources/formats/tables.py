"""Reading tables from files row by row: csv and tsv, JSON lines, nested JSON, parquet."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.columns.kinds import Words
from longspan.data.sources.files.addresses import is_copy, named, row_of
from longspan.data.sources.files.decoding import broken, is_damaged, open_text, other
from longspan.data.sources.files.encodings import AUTO
from longspan.data.sources.files.opening import encoding_of, open_packed, packed_suffix
from longspan.data.sources.formats.conll import RAGGED, read_conll
from longspan.data.sources.formats.delimited import FIELDS, first_row, read_separated
from longspan.data.sources.formats.nested_json import read_nested
from longspan.data.sources.formats.schema import Row, Schema
from longspan.data.sources.formats.tmx import SUFFIX as TMX
from longspan.data.sources.formats.tmx import read_tmx
from longspan.errors import UserError
from longspan.machine.printing import printable

FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
NESTED = ".json"
"""One JSON text, which may be a document too: tables of several columns alone are read from it."""
PLAIN = ".txt"
"""A document, or fields whose separator is known."""
NOT_JSON = "not a JSON object"
MALFORMED = {
    NOT_JSON: 'write one such as {"text": "...", "label": "..."} per line',
    RAGGED: "give each word a line with the same columns",
    FIELDS: "quote fields that contain the separator or line breaks",
}
"""The beginning of `Row.problem` for malformed rows, and how to fix them."""


def read_table(path: Path, schema: Schema) -> Iterator[Row]:
    """Read a csv, tsv, jsonl (ndjson), parquet or tmx file row by row, in constant memory, or a whole json file.

    If the schema has words, a file with any other suffix is read by `longspan.data.sources.formats.conll.read_conll`.
    So is a .txt file by `longspan.data.sources.formats.delimited.read_separated`, if the schema says what separates its
    fields.

    The suffix decides the format; the text formats may be compressed (.csv.gz, .jsonl.zst). A malformed row has a
    `problem` and no values: broken text, a line that is not a JSON object, or the wrong number of csv fields. The text
    in a parquet file is UTF-8, regardless of the encoding.

    Raises:
        UserError: The file has an unknown suffix, is empty or damaged, or lacks a column, or a quotation mark is never
            closed. Errors in the contents are raised while reading.
    """
    kind, name = packed_suffix(path), printable(path.name)
    if kind == NESTED:
        return _not_empty(path, _read_text(path, schema, read_nested))
    if kind == TMX and schema.lines:
        return _not_empty(path, read_tmx(path, schema))
    if kind not in FORMATS and schema.of(Words):
        return _not_empty(path, _read_text(path, schema, read_conll))
    if kind == PLAIN and schema.delimiter != "auto":
        return _not_empty(path, _read_text(path, schema, read_separated))
    if kind not in FORMATS or (kind == ".parquet" and path.suffix.lower() != kind):
        if len(schema.lines) > 1:
            raise UserError(
                f"expected a csv, tsv, jsonl, parquet or tmx file, or parallel files, got {name!r} alone; name one "
                f"file for each of {', '.join(schema.lines)}, separated by commas."
            )
        raise UserError(
            f"expected a file with suffix {', '.join(FORMATS)} (or .csv.gz and the like), got {name!r}; "
            "rename or convert it."
        )
    if kind == ".parquet":
        return _not_empty(path, _read_parquet(path, replace(schema, encoding="utf-8")))
    return _not_empty(path, _read_text(path, schema, read_separated if kind in (".csv", ".tsv") else _read_json))


def column_names(path: Path, schema: Schema) -> list[str]:
    """Return the names of a table's columns, of JSON lines those in the first line; none where they cannot be told.

    What is wrong with the file is for those to say who read it.
    """
    kind = packed_suffix(path)
    if kind == ".parquet":
        try:
            return list(pq.read_schema(path).names)
        except (pa.ArrowException, OSError):
            return []
    schema = replace(schema, encoding=encoding_of(path, schema.encoding))
    if kind in (".csv", ".tsv"):
        return first_row(path, schema)
    with open_packed(path) as raw, open_text(raw, printable(path.name), schema.encoding, "\n") as lines:
        line = next((line for line in lines if line.strip()), "")
    return list(json_object(line, schema.encoding)[0] or ())


def _read_text(path: Path, schema: Schema, read: Callable[[Path, Schema], Iterator[Row]]) -> Iterator[Row]:
    if schema.encoding != AUTO:
        yield from read(path, schema)
        return
    found = encoding_of(path, schema.encoding)
    encoding = other(found)
    for row in read(path, replace(schema, encoding=found)):
        yield row._replace(encoding=encoding)


def _not_empty(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    count = 0
    for row in rows:
        count += 1
        yield row
    if not count:
        raise UserError(f"expected rows in {str(path)!r}, got an empty file; choose a file with data.")


def _read_json(path: Path, schema: Schema) -> Iterator[Row]:
    name = printable(path.name)
    with open_packed(path) as raw, open_text(raw, name, schema.encoding, "\n") as lines:
        checked = False
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{name}, line {number}"
            value, problem = json_object(line, schema.encoding)
            if value is None:
                yield Row({}, where, problem)
                continue
            if not checked and not all(needed in value for needed in schema.needed):
                # Only the first row reveals a wrong name; later ones may leave out a column.
                schema.check_present(name, _json_columns(path, schema.encoding))
            checked = True
            yield schema.row(value, where, path.parent)


def json_object(line: str, encoding: str) -> tuple[dict[str, Any] | None, str]:
    """Return the object in a line, or None and the problem."""
    if is_damaged(line):
        return None, broken(encoding)
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        return None, f"{NOT_JSON} ({error.msg.removesuffix(' at')} at column {error.colno})"
    except (ValueError, RecursionError) as error:
        # A number with thousands of digits, or brackets nested thousands deep.
        return None, f"{NOT_JSON} ({error})"
    if not isinstance(value, dict):
        return None, f"{NOT_JSON} (got a value of type {type(value).__name__})"
    return value, ""


def _json_columns(path: Path, encoding: str) -> list[str]:
    """Return the names of the columns in all lines."""
    names: dict[str, None] = {}
    with open_packed(path) as raw, open_text(raw, printable(path.name), encoding, "\n") as lines:
        for line in lines:
            value, _ = json_object(line, encoding)
            names.update(dict.fromkeys(value or ()))
    return list(names)


def _read_parquet(path: Path, schema: Schema) -> Iterator[Row]:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        problem = str(error).splitlines()[0]
        raise UserError(
            f"expected a parquet file, got an error for {str(path)!r} ({problem}); write it again."
        ) from None
    name = named(path)
    with file:
        present = file.schema_arrow.names
        schema.check_present(name, present)
        names = [source for source in schema.sources if source in present]
        number = 0
        # Data in memory are in no folder.
        folder = Path.cwd() if is_copy(path) else path.parent
        try:
            for batch in file.iter_batches(batch_size=64, columns=names):
                values = [_undecoded(batch.column(source)).to_pylist() for source in names]
                for cells in zip(*values, strict=True):
                    number += 1
                    cells_by_name = dict(zip(names, cells, strict=True))
                    yield schema.row(cells_by_name, row_of(path, number), folder)
        except (pa.ArrowException, OSError) as error:
            problem = str(error).splitlines()[0]
            raise UserError(f"{name} is damaged after row {number} ({problem}); write it again.") from None


def _undecoded(array: pa.Array) -> pa.Array:
    """Return text as bytes, as arrow does not check that it is UTF-8."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = _bytes(array.type)
    return array if kind == array.type else array.cast(kind)


def _bytes(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.list_(_bytes(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_bytes(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _bytes(part.type)) for part in kind])
    return kind
