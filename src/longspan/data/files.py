"""Rows from files of one table each, and from folders of classes, one at a time and with their exact place."""

import csv
import gzip
import io
import json
import lzma
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq

from longspan.errors import UserError, suggestion

BROKEN = "broken UTF-8"
_NOT_JSON, _FIELDS = "not a JSON object", "wrong number of fields"
MALFORMED = {
    _NOT_JSON: 'write one such as {"text": "...", "label": "..."} per line',
    _FIELDS: "quote fields that contain the separator or line breaks",
}
"""What else `Row.problem` may begin with, and how to mend it."""

FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_PACKED: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
_RATING = re.compile(r"\d+_(\d+)\.txt")
_BOM = b"\xef\xbb\xbf"


class Row(NamedTuple):
    """One document.

    Attributes:
        text: The document; None where there is none or it could not be decoded.
        label: Its class; None where there is none, or where none was asked for.
        where: Its place, such as "reviews.csv, row 17" (the header is not counted).
        problem: `BROKEN` if the row could not be decoded, a key of `MALFORMED` and details in brackets if it is no
            row, otherwise empty.
    """

    text: str | None
    label: str | None
    where: str
    problem: str = ""


def read_rows(path: Path, *, text_column: str, label_column: str | None) -> Iterator[Row]:
    """Read a csv, tsv, jsonl (ndjson) or parquet file row by row, in constant memory.

    The suffix decides the format; the text formats may be compressed (.csv.gz, .csv.xz). Labels are text: numbers
    become their shortest form ("1" for 1.0) and white space around them is dropped. A row that is not UTF-8, a line
    that is no JSON object and a csv row with the wrong number of fields are returned without text and label, and with
    `problem` set.

    Args:
        path: The file.
        text_column: Column of the documents.
        label_column: Column of the labels; None reads no labels.

    Raises:
        UserError: No such file, an unknown suffix, an empty or damaged file, no such column, or a quotation mark that
            is never closed. What is in the file is found out while reading.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(missing(path))
    if path.is_dir():
        raise UserError(f"expected a file with suffix {', '.join(FORMATS)}, but {str(path)!r} is a folder.")
    kind = suffix(path)
    if kind not in FORMATS or (kind == ".parquet" and path.suffix.lower() != kind):
        raise UserError(
            f"expected a file with suffix {', '.join(FORMATS)} (or .csv.gz and the like), but got {path.name!r}: "
            "rename or convert it."
        )
    columns = {"data.text_column": text_column}
    if label_column is not None:
        columns["data.label_column"] = label_column
    reader = {".csv": _read_csv, ".tsv": _read_csv, ".parquet": _read_parquet}.get(kind, _read_json)
    return _not_empty(path, reader(path, columns))


def missing(path: Path) -> str:
    """Return the message for a path that does not exist, with the nearest name in its folder if there is one."""
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    return f"there is no file or folder {str(path)!r}: {_nearest(path.name, siblings) or 'check the path.'}"


def _nearest(word: str, known: Sequence[str]) -> str:
    """Return `did you mean 'x'?`, or nothing if no known name is near."""
    hint = suggestion(word, known)
    return hint if hint.startswith("did") else ""


def _not_empty(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    count = 0
    for row in rows:
        count += 1
        yield row
    if not count:
        raise UserError(f"expected rows in {str(path)!r}, but it is empty: give a file with data.")


def suffix(path: Path) -> str:
    """Return the suffix in small letters; of a compressed file, the one before .gz or .xz."""
    return (path.with_suffix("") if path.suffix.lower() in _PACKED else path).suffix.lower()


@contextmanager
def open_packed(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes, unpacked where its name ends in .gz or .xz.

    Raises:
        UserError: What is read turns out not to be compressed, or not to be complete.
    """
    kind = path.suffix.lower()
    opened = _PACKED[kind](path) if kind in _PACKED else path.open("rb")
    try:
        with cast(BinaryIO, opened) as file:
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        name = "xz" if kind == ".xz" else "gzip"
        raise UserError(f"{path.name} is no complete {name} file ({error}): compress it again.") from None


def check_columns(name: str, columns: dict[str, str], present: Sequence[str]) -> None:
    """Raise UserError unless all columns are present.

    Args:
        name: The file or data set, for the message.
        columns: The wanted columns by the setting that names them.
        present: The columns there are.
    """
    for setting, column in columns.items():
        if column not in present:
            shown = ", ".join(map(repr, present))
            hint = _nearest(column, present) or f"set {setting} to one of them."
            raise UserError(f"{name} has no column {column!r} but {shown or 'none at all'}: {hint}")


def _printable(name: str) -> str:
    """Return a name in UTF-8, also where bytes of it are in another encoding."""
    return name.encode("utf-8", "backslashreplace").decode()


def _read_csv(path: Path, columns: dict[str, str]) -> Iterator[Row]:
    # The limit of 128 KiB per field is meant for broken files; documents are longer.
    csv.field_size_limit(2**31 - 1)
    delimiter = "\t" if ".tsv" in path.name.lower() else ","
    # Bytes that are not UTF-8 become lone surrogates, so that reading goes on and the row can be named.
    with open_packed(path) as raw, io.TextIOWrapper(raw, "utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        number = 0
        while True:
            line = reader.line_num + 1
            place = f"{path.name}, row {number + 1} (line {line})" if header else f"{path.name}, line {line}"
            try:
                fields = next(reader, None)
            except csv.Error as error:
                raise UserError(
                    f"{place}: expected fields separated by {'tabs' if delimiter != ',' else 'commas'}, but got a "
                    f"quotation mark that is never closed or closed too early ({error}): quote fields that begin with "
                    "one and double those inside."
                ) from None
            if fields is None:
                return
            if not fields:
                continue
            if header is None:
                header = [field.strip() for field in fields]
                if any("\x00" in field or _printable(field) != field for field in header):
                    raise UserError(f"{place}: expected UTF-8, but got another encoding: save the file as UTF-8.")
                check_columns(path.name, columns, header)
                indices = [header.index(column) for column in columns.values()]
                continue
            number += 1
            if len(fields) != len(header):
                problem = f"{_FIELDS} (expected {len(header)} as in the header, but got {len(fields)})"
                yield Row(None, None, place, problem)
                continue
            yield _row([fields[i] for i in indices], f"{path.name}, row {number}", columns)


def _read_json(path: Path, columns: dict[str, str]) -> Iterator[Row]:
    with open_packed(path) as file:
        checked = False
        for number, line in enumerate(file, 1):
            where = f"{path.name}, line {number}"
            if number == 1:
                line = line.removeprefix(_BOM)
            if not line.strip():
                continue
            value, problem = _json_object(line)
            if value is None:
                yield Row(None, None, where, problem)
                continue
            if not checked and not all(column in value for column in columns.values()):
                # Only the first row may show a wrong name; later ones may leave out a column.
                check_columns(path.name, columns, _json_columns(path))
            checked = True
            yield _row([value.get(column) for column in columns.values()], where, columns)


def _json_object(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """Return the object, or None and what is wrong."""
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return None, BROKEN
    except json.JSONDecodeError as error:
        return None, f"{_NOT_JSON} ({error.msg.removesuffix(' at')} at column {error.colno})"
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or brackets inside thousands of brackets.
        return None, f"{_NOT_JSON} ({error})"
    if not isinstance(value, dict):
        return None, f"{_NOT_JSON} (but of type {type(value).__name__})"
    return value, ""


def _json_columns(path: Path) -> list[str]:
    """Return the names used in any line."""
    names: dict[str, None] = {}
    with open_packed(path) as file:
        for line in file:
            value, _ = _json_object(line.removeprefix(_BOM).decode("utf-8", "replace").encode())
            names.update(dict.fromkeys(value or ()))
    return list(names)


def _read_parquet(path: Path, columns: dict[str, str]) -> Iterator[Row]:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        problem = str(error).splitlines()[0]
        raise UserError(f"expected a parquet file, but {str(path)!r} cannot be read as one ({problem}).") from None
    with file:
        check_columns(path.name, columns, file.schema_arrow.names)
        number = 0
        for batch in file.iter_batches(batch_size=64, columns=list(columns.values())):
            values = [_undecoded(batch.column(column)).to_pylist() for column in columns.values()]
            for row in zip(*values, strict=True):
                number += 1
                yield _row(list(row), f"{path.name}, row {number}", columns)


def _undecoded(array: pa.Array) -> pa.Array:
    """Text as bytes: arrow does not check that it is UTF-8."""
    if pa.types.is_string(array.type):
        return array.cast(pa.binary())
    return array.cast(pa.large_binary()) if pa.types.is_large_string(array.type) else array


def _row(values: list[Any], where: str, columns: dict[str, str]) -> Row:
    try:
        decoded = [value.decode("utf-8") if isinstance(value, bytes) else value for value in values]
        for value in decoded:
            if isinstance(value, str) and not value.isascii():
                value.encode("utf-8")
    except UnicodeError:
        return Row(None, None, where, BROKEN)
    text = decoded[0]
    if text is not None and not isinstance(text, str):
        raise UserError(
            f"{where}: expected text in column {columns['data.text_column']!r}, but got a value of type "
            f"{type(text).__name__}: set data.text_column to the column with the documents."
        )
    return Row(text, label_text(decoded[1], where) if len(decoded) > 1 else None, where)


def label_text(value: Any, where: str) -> str | None:
    """Return a label as text, None if there is none; raise UserError if it is a list or a table."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (list, dict)):
        raise UserError(
            f"{where}: expected one label, but got a {type(value).__name__}: keep rows with one label each, or set "
            "data.label_column to another column."
        )
    return str(value).strip() or None


class ClassFile(NamedTuple):
    """A file in a folder of classes: its path, its label, its place for messages, its size in bytes and its time."""

    path: str
    label: str
    where: str
    size: int
    mtime_ns: int


def list_classes(root: Path, label_column: str, prefix: str = "") -> list[ClassFile]:
    """List the files of a folder with one sub-folder per class, in order of their names, without opening them.

    Hidden files and folders are passed over, and so is unsup/, where aclImdb keeps documents without label.

    Args:
        root: The folder.
        label_column: "label" for the sub-folder's name, "rating" for the number in file names like 12_9.txt.
        prefix: What `where` begins with, such as "train/".

    Raises:
        UserError: No sub-folders, no files in them, another `label_column`, or a file name without a rating.
    """
    if label_column not in ("label", "rating"):
        raise UserError(
            f"a folder of classes has the columns 'text', 'label' and 'rating', but data.label_column is "
            f"{label_column!r}: {_nearest(label_column, ['label', 'rating']) or 'leave it out.'}"
        )
    classes = [entry for entry in visible(root) if entry.is_dir() and entry.name != "unsup"]
    if not classes:
        raise UserError(
            f"expected one sub-folder of text files per class in {str(root)!r}, but it has no sub-folders: sort the "
            "files into folders, or give a csv, tsv, jsonl or parquet file."
        )
    found = [
        file
        for folder in classes
        for file in list_files(folder, _printable(folder.name), f"{prefix}{_printable(folder.name)}/")
    ]
    if not found:
        raise UserError(f"expected text files in the sub-folders of {str(root)!r}, but they are empty.")
    return [_rated(file) for file in found] if label_column == "rating" else found


def list_files(folder: str | Path | os.DirEntry[str], label: str = "", prefix: str = "") -> list[ClassFile]:
    """List the files of a folder and the folders in it, in order of their names, but for hidden ones.

    Args:
        folder: The folder.
        label: What every file's label is.
        prefix: What `where` begins with.
    """
    found: list[ClassFile] = []
    for entry in visible(folder):
        where = prefix + _printable(entry.name)
        if entry.is_dir():
            found += list_files(entry, label, f"{where}/")
        else:
            facts = entry.stat()
            found.append(ClassFile(entry.path, label, where, facts.st_size, facts.st_mtime_ns))
    return found


def visible(folder: str | Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    """Return what is in a folder, in order of names, but for what is hidden."""
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _rated(file: ClassFile) -> ClassFile:
    match = _RATING.fullmatch(Path(file.path).name)
    if match is None:
        raise UserError(
            f"data.label_column='rating' expects file names like 12_9.txt (ID_RATING.txt), but got {file.where!r}: "
            "use data.label_column=label, the folder's name."
        )
    return file._replace(label=match[1])


def read_classes(files: Sequence[ClassFile]) -> Iterator[Row]:
    """Read the files one at a time."""
    for file in files:
        content = Path(file.path).read_bytes()
        try:
            yield Row(content.decode("utf-8-sig"), file.label, file.where)
        except UnicodeDecodeError as error:
            yield Row(None, file.label, f"{file.where}, byte {error.start}", BROKEN)
