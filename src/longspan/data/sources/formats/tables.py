"""Reading tables from files row by row: csv and tsv, JSON lines, nested JSON, parquet."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.columns.annotations import Annotated, json_row, rows_in
from longspan.data.columns.kinds import Text, Words
from longspan.data.columns.media import Media
from longspan.data.columns.parts import Document
from longspan.data.columns.values import is_name
from longspan.data.sources.files.addresses import is_copy, named, row_of
from longspan.data.sources.files.decoding import (
    LONGEST_LINE,
    NotText,
    broken,
    detected_encoding,
    encoding_name,
    is_damaged,
    mend,
    open_text,
)
from longspan.data.sources.files.encodings import AUTO
from longspan.data.sources.files.opening import check_text, encoding_of, open_packed, packed_suffix, read_document
from longspan.data.sources.formats.conll import RAGGED, read_conll
from longspan.data.sources.formats.folders import DocumentFile, Listed, list_files
from longspan.data.sources.formats.schema import Row, Schema
from longspan.data.sources.formats.tmx import SUFFIX as TMX
from longspan.data.sources.formats.tmx import read_tmx
from longspan.errors import UserError
from longspan.machine.printing import note, printable

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
    quoting = _quoting(path, schema, delimiter)
    if quoting == csv.QUOTE_MINIMAL and schema.quoting == "auto" and (line := _joined_rows(path, schema, delimiter)):
        note(
            f"{name} is read without quotation marks around fields, as those from line {line} on would join rows; set "
            "data.quoting=quotes if they should"
        )
        quoting = csv.QUOTE_NONE
    with open_packed(path) as raw, open_text(raw, name, schema.encoding, "") as lines:
        row = _RowLines(lines, name)
        reader = csv.reader(row, delimiter=delimiter, strict=True, quoting=quoting)
        indices: dict[str, int] | None = None
        width = number = 0
        while True:
            line = reader.line_num + 1
            row.begin(line)
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
                check_once(names, schema.sources, name)
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


class _RowLines:
    """The lines of a table, of which those of one row have a limit in all: line breaks in quotation marks have none.

    Args:
        lines: The lines.
        name: The name of the file in messages.
    """

    def __init__(self, lines: Iterator[str], name: str) -> None:
        self.lines, self.name = lines, name
        self.begin(1)

    def begin(self, line: int) -> None:
        """Begin the next row, at this line."""
        self.first, self.characters = line, 0

    def __iter__(self) -> "_RowLines":
        return self

    def __next__(self) -> str:
        line = next(self.lines)
        self.characters += len(line)
        if self.characters >= LONGEST_LINE:
            raise UserError(
                f"expected fewer than {LONGEST_LINE:,} characters in a row, got more in {self.name}, from line "
                f"{self.first}; close its quotation marks, or split it into several rows."
            )
        return line


def _quoting(path: Path, schema: Schema, delimiter: str) -> Literal[0, 3]:
    if schema.quoting == "auto":
        return csv.QUOTE_MINIMAL if packed_suffix(path) in (".csv", ".tsv") else csv.QUOTE_NONE
    return csv.QUOTE_MINIMAL if schema.quoting == "quotes" else csv.QUOTE_NONE


def _joined_rows(path: Path, schema: Schema, delimiter: str) -> int:
    """Line from which quotation marks join rows of a file with tabs; 0 if they join none.

    Of a row that they join, each line has as many fields as the first row: nobody quotes those.
    """
    if delimiter != "\t":
        return 0
    with open_packed(path) as raw, open_text(raw, printable(path.name), schema.encoding, "") as lines:
        if not any(line.startswith('"') or '\t"' in line for line in lines):
            return 0
    with open_packed(path) as raw, open_text(raw, printable(path.name), schema.encoding, "") as lines:
        row = _RowLines(lines, printable(path.name))
        reader, width = csv.reader(row, delimiter=delimiter), 0
        line = 1
        for fields in reader:
            width = width or len(fields)
            if any("\t" in field and "\n" in field for field in fields):
                joined = delimiter.join(fields).rstrip("\r\n").split("\n")
                if all(part.count(delimiter) + 1 == width for part in joined):
                    return line
            line = reader.line_num + 1
            row.begin(line)
    return 0


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


def check_once(names: Sequence[str], sources: Sequence[str], file: str) -> None:
    """Raise UserError if a column that is read has the name of another one."""
    for source in sources:
        if (times := names.count(source)) > 1:
            raise UserError(f"{file}: expected one column {source!r}, got {times}; rename or remove the others.")


def _hint(path: Path, schema: Schema, delimiter: str, fields: list[str]) -> str:
    """Remedy for a file that lacks a column, as its first rows suggest; an empty text if they do not."""
    if fields[0].lower().startswith("sep="):
        separator = "".join(fields)[len("sep=") :] or delimiter
        setting = f", and set data.delimiter={_SETTINGS.get(separator, separator)}" if separator != "," else ""
        return f"its first line is for Excel and names no columns: remove it{setting}."
    return _other_delimiter(path, schema, delimiter) or _no_header(fields, schema)


def _other_delimiter(path: Path, schema: Schema, delimiter: str) -> str:
    """Remedy for another separator, if the first rows have one; an empty text otherwise."""
    first = _first_rows(path, schema, delimiter)[0]
    for separator, setting in _SETTINGS.items():
        rows = _first_rows(path, schema, separator)
        names = rows[0] if schema.header else [str(number) for number in range(1, len(rows[0]) + 1)]
        known = all(needed in names for needed in schema.required_names)
        alike = len(rows[0]) > 1 and len(set(map(len, rows))) == 1
        # Without the names, a single field in all rows says that it is not the separator.
        if separator != delimiter and alike and (known or len(first) < 2):
            return f"its fields seem to be separated by {_WORDS[separator]}: set data.delimiter={setting}."
    return ""


def _no_header(fields: list[str], schema: Schema) -> str:
    """Remedy for a header that looks like data, or for columns that need a header; else an empty text."""
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
            bounded = _RowLines(lines, printable(path.name))
            rows = islice(csv.reader(bounded, delimiter=delimiter, quoting=_quoting(path, schema, delimiter)), _SNIFFED)
            return [[field.strip() for field in row] for row in rows if row] or [[]]
        except csv.Error:
            return [[]]


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
    So is a .txt file by `longspan.data.sources.formats.tables.read_separated`, if the schema says what separates its
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
        # With a header, the names of the columns.
        return _first_rows(path, schema, _delimiter(path, schema))[0]
    with open_packed(path) as raw, open_text(raw, printable(path.name), schema.encoding, "\n") as lines:
        line = next((line for line in lines if line.strip()), "")
    return list(json_object(line, schema.encoding)[0] or ())


def _read_text(path: Path, schema: Schema, read: Callable[[Path, Schema], Iterator[Row]]) -> Iterator[Row]:
    check_text(path, schema.encoding)
    if schema.encoding != AUTO:
        yield from read(path, schema)
        return
    found = encoding_of(path, schema.encoding)
    encoding = detected_encoding(found)
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
            if value is None and line.lstrip().startswith("[") and schema.of(Annotated):
                value = json_row(line)
            if value is None:
                yield Row({}, where, problem)
                continue
            if not checked and not all(needed in value for needed in schema.required_names):
                # Only the first row reveals a wrong name; later ones may leave out a column.
                schema.check_present(name, _json_columns(path, schema.encoding))
            if not checked:
                check_once(_keys(line), schema.sources, name)
            checked = True
            yield schema.row(value, where, path.parent)


def _keys(line: str) -> list[str]:
    """The keys of an object, those that are there twice among them; Python's dict has the last one."""
    found: list[str] = []

    def pairs(given: list[tuple[str, Any]]) -> dict[str, Any]:
        # The outermost object comes last.
        found[:] = [key for key, _ in given]
        return dict(given)

    json.loads(line, object_pairs_hook=pairs)
    return found


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
        check_once(present, schema.sources, name)
        names = [source for source in schema.sources if source in present]
        media = {schema.names[column.name] for column in schema.of(Media)}
        number = 0
        # Data in memory are in no folder.
        folder = Path.cwd() if is_copy(path) else path.parent
        try:
            for batch in file.iter_batches(batch_size=64, columns=names):
                columns = {source: batch.column(source) for source in names}
                # A path and the bytes of a file are told apart by their types.
                columns |= {source: _undecoded(columns[source]) for source in names if source not in media}
                values = [schema.cells(source, column) for source, column in columns.items()]
                for cells in zip(*values, strict=True):
                    number += 1
                    cells_by_name = dict(zip(names, cells, strict=True))
                    yield schema.row(cells_by_name, row_of(path, number), folder)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
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


def is_object(path: Path, schema: Schema) -> bool:
    """Return whether a file is a row by itself: JSON, for a task that reads something other than plain texts."""
    return _reads_objects(schema) and not schema.of(Annotated) and packed_suffix(path) == NESTED


def list_objects(folder: Path, schema: Schema) -> list[Listed]:
    """Return the files of a folder and its sub-folders that are a row each, in order of names.

    Raises:
        UserError: A folder cannot be read.
    """
    reads = _reads_objects(schema)
    return [file for file in list_files(folder) if packed_suffix(Path(file.path)) == NESTED] if reads else []


def read_objects(files: Sequence[DocumentFile], schema: Schema) -> Iterator[Row]:
    """Read each file as one JSON object, whose keys are columns.

    A file that is not text, or not a JSON object, has a problem.

    Raises:
        UserError: A file cannot be read or decompressed.
    """
    for file in files:
        path = Path(file.path)
        try:
            found = read_document(path, schema.encoding)
        except NotText as error:
            yield Row({}, error.place(file.where), error.problem)
            continue
        cells, problem = json_object(found.text, schema.encoding)
        if cells is None:
            yield Row({}, file.where, problem)
        else:
            yield schema.row(cells, file.where, path.parent)._replace(encoding=found.encoding)


def _reads_objects(schema: Schema) -> bool:
    return all(isinstance(column, Document) for column in schema.of(Text))


def read_nested(path: Path, schema: Schema) -> Iterator[Row]:
    """Read the rows of a JSON file: its innermost objects that have the first of the columns, in order.

    They inherit texts and numbers of the objects that they are in: in {"data": [{"paragraphs": [{"context": "...",
    "qas": [{"question": "..."}]}]}]} each question has the context of its paragraph. The whole file is held in memory.

    Raises:
        UserError: It is not JSON, not in the encoding, has no such object, or a column is in none of them.
    """
    name = printable(path.name)
    with open_packed(path) as raw, open_text(raw, name, schema.encoding, "\n") as lines:
        text = "".join(lines)
    if is_damaged(text):
        raise UserError(
            f"{name}: expected text in the encoding of the file, got bytes that are not; {mend(schema.encoding)}."
        )
    if not text.strip():
        return
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"expected JSON in {name}, got an error at line {error.lineno}, column {error.colno} "
            f"({error.msg.removesuffix(' at')}); correct it, or name the file .jsonl if each line is an object."
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"expected JSON in {name}, got an error ({error}); write it again.") from None
    first = schema.sources[0]
    annotated = rows_in(value) if schema.of(Annotated) else None
    rows = list(_rows(value, {}, first)) if annotated is None else annotated
    known: dict[str, None] = {}
    for row in rows or _objects(value):
        known.update(dict.fromkeys(row))
    schema.check_present(name, list(known))
    for number, row in enumerate(rows, 1):
        yield schema.row(row, f"{name}, row {number}", path.parent)


def _rows(value: Any, inherited: dict[str, Any], first: str) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _rows(item, inherited, first)
    elif isinstance(value, dict):
        if first in value:
            yield {**inherited, **value}
            return
        own = {key: item for key, item in value.items() if not isinstance(item, list | dict)}
        for item in value.values():
            yield from _rows(item, {**inherited, **own}, first)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects, for the names of what there is."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(item)
