"""Reading tables from files row by row: csv and tsv, JSON lines, parquet."""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.opening import (
    LONGEST_LINE,
    broken,
    encoding_name,
    is_damaged,
    open_packed,
    open_text,
    packed_suffix,
    printable,
)
from longspan.data.schema import Row, Schema
from longspan.errors import UserError

FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
NOT_JSON, FIELDS = "not a JSON object", "wrong number of fields"
MALFORMED = {
    NOT_JSON: 'write one such as {"text": "...", "label": "..."} per line',
    FIELDS: "quote fields that contain the separator or line breaks",
}
"""The beginning of `Row.problem` for malformed rows, and how to fix them."""


def read_table(path: Path, schema: Schema) -> Iterator[Row]:
    """Read a csv, tsv, jsonl (ndjson) or parquet file row by row, in constant memory.

    The suffix decides the format; the text formats may be compressed (.csv.gz, .jsonl.zst). A row that is not text in
    the encoding, a line that is not a JSON object, and a csv row with the wrong number of fields have a `problem` and
    no values. The text in a parquet file is UTF-8, regardless of the encoding.

    Raises:
        UserError: The file has an unknown suffix, is empty or damaged, or lacks a column, or a quotation mark is never
            closed. Errors in the contents are raised while reading.
    """
    kind = packed_suffix(path)
    if kind not in FORMATS or (kind == ".parquet" and path.suffix.lower() != kind):
        raise UserError(
            f"expected a file with suffix {', '.join(FORMATS)} (or .csv.gz and the like), got {path.name!r}; "
            "rename or convert it."
        )
    if kind == ".parquet":
        return _not_empty(path, _read_parquet(path, replace(schema, encoding="utf-8")))
    return _not_empty(path, (_read_csv if kind in (".csv", ".tsv") else _read_json)(path, schema))


def _not_empty(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    count = 0
    for row in rows:
        count += 1
        yield row
    if not count:
        raise UserError(f"expected rows in {str(path)!r}, got an empty file; choose a file with data.")


def _read_csv(path: Path, schema: Schema) -> Iterator[Row]:
    # The default limit of 128 KiB per field catches broken files, but documents are longer.
    csv.field_size_limit(LONGEST_LINE)
    delimiter = "\t" if packed_suffix(path) == ".tsv" else ","
    with open_packed(path) as raw, open_text(raw, path.name, schema.encoding, "") as lines:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        number = 0
        while True:
            line = reader.line_num + 1
            place = f"{path.name}, row {number + 1} (line {line})" if header else f"{path.name}, line {line}"
            try:
                fields = next(reader, None)
            except csv.Error as error:
                raise UserError(
                    f"{place}: expected fields separated by {'tabs' if delimiter != ',' else 'commas'}, got a "
                    f"quotation mark that is never closed or closed too early ({error}); quote fields that begin with "
                    "one, and double those inside."
                ) from None
            if fields is None:
                return
            if not fields:
                continue
            if header is None:
                header = [field.strip() for field in fields]
                if any("\x00" in field or is_damaged(field) for field in header):
                    name = encoding_name(schema.encoding)
                    raise UserError(
                        f"{place}: expected {name}, got another encoding; save the file as {name}, or set "
                        "data.encoding to the file's encoding."
                    )
                schema.check_present(path.name, header)
                indices = {name: header.index(name) for name in schema.sources if name in header}
                continue
            number += 1
            if len(fields) != len(header):
                problem = f"{FIELDS} (expected {len(header)} as in the header, got {len(fields)})"
                yield Row({}, place, problem)
                continue
            cells = {name: fields[index] for name, index in indices.items()}
            yield schema.row(cells, f"{path.name}, row {number}", path.parent)


def _read_json(path: Path, schema: Schema) -> Iterator[Row]:
    with open_packed(path) as raw, open_text(raw, path.name, schema.encoding, "\n") as lines:
        checked = False
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path.name}, line {number}"
            value, problem = json_object(line, schema.encoding)
            if value is None:
                yield Row({}, where, problem)
                continue
            if not checked and not all(name in value for name in schema.needed):
                # Only the first row reveals a wrong name; later ones may leave out a column.
                schema.check_present(path.name, _json_columns(path, schema.encoding))
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
    with open_packed(path) as raw, open_text(raw, path.name, encoding, "\n") as lines:
        for line in lines:
            value, _ = json_object(printable(line), encoding)
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
    with file:
        present = file.schema_arrow.names
        schema.check_present(path.name, present)
        names = [name for name in schema.sources if name in present]
        number = 0
        try:
            for batch in file.iter_batches(batch_size=64, columns=names):
                values = [_undecoded(batch.column(name)).to_pylist() for name in names]
                for cells in zip(*values, strict=True):
                    number += 1
                    cells_by_name = dict(zip(names, cells, strict=True))
                    yield schema.row(cells_by_name, f"{path.name}, row {number}", path.parent)
        except (pa.ArrowException, OSError) as error:
            problem = str(error).splitlines()[0]
            raise UserError(f"{path.name} is damaged after row {number} ({problem}); write it again.") from None


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
    return kind
