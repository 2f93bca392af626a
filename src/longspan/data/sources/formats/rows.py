"""Reading rows from files, folders and standard input one at a time, each with its exact place: `open_rows`."""

import io
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from longspan.data.columns.kinds import Text, Words
from longspan.data.columns.media import Media
from longspan.data.sources.announcements import note_left_out
from longspan.data.sources.files.decoding import LONGEST_LINE, NotText, broken, decode, is_damaged, open_text
from longspan.data.sources.files.documents import NEEDS, SHEETS, needs_reader
from longspan.data.sources.files.encodings import AUTO
from longspan.data.sources.files.opening import encoding_of, examine, expand, packed_suffix, text_of
from longspan.data.sources.formats.conll import looks_like_columns
from longspan.data.sources.formats.folders import (
    document_file,
    list_classes,
    list_files,
    list_texts,
    media_of,
    read_files,
)
from longspan.data.sources.formats.parallel import parallel_files, read_parallel
from longspan.data.sources.formats.schema import Row, Schema
from longspan.data.sources.formats.tables import (
    FORMATS,
    NESTED,
    PLAIN,
    is_object,
    json_object,
    list_objects,
    read_objects,
    read_table,
)
from longspan.data.sources.formats.tmx import SUFFIX as TMX
from longspan.machine.printing import note, printable

__all__ = ["Row", "open_rows"]


def open_rows(path: Path | str, schema: Schema, stdin: BinaryIO | None) -> Iterator[Row]:
    """Read the rows of one path, as `longspan.data.sources.paths.read_paths` does, which also says encodings."""
    if str(path) == "-" and stdin is not None:
        return _read_standard_input(stdin, schema)
    path = expand(path)
    if files := parallel_files(path, schema):
        return read_parallel(files, schema)
    if stat.S_ISDIR(examine(path).st_mode):
        if objects := list_objects(path, schema):
            return read_objects([document_file(*file) for file in objects], schema)
        document, label = schema.document_columns(f"the folder {str(path)!r}")
        if label is not None:
            found = list_classes(path, schema.names[label.name], media=media_of(document))
        else:
            found = list_texts(path, list_files(path), media_of(document))
        note_left_out(found.others, found.remarks)
        return read_files(found.files, schema)
    if is_object(path, schema):
        return read_objects([document_file(path, printable(path.name))], schema)
    words = schema.of(Words)
    kind = packed_suffix(path)
    raw = bool(words) and isinstance(words[0], Words) and words[0].raw and kind not in (*FORMATS, NESTED)
    if raw and (kind in NEEDS or not looks_like_columns(path, encoding_of(path, schema.encoding))):
        return read_files([document_file(path, printable(path.name))], schema, words[0])
    if is_lines(path, schema):
        return read_parallel([path], schema)
    if is_document(path, schema):
        if kind in SHEETS:
            note(f"{printable(path.name)} is read as one document; save it as .csv to read each of its rows")
        return read_files([document_file(path, printable(path.name))], schema)
    return read_table(path, schema)


def is_lines(path: Path, schema: Schema) -> bool:
    """Return whether each line of a file is a row: its suffix is not that of a table, and one text of it is read."""
    if len(schema.lines) != 1 or len(schema.columns) != 1:
        return False
    kind = packed_suffix(path)
    return kind not in (*FORMATS, TMX, NESTED) and not (kind == PLAIN and schema.delimiter != "auto")


def is_document(path: Path, schema: Schema) -> bool:
    """Return whether a file is one document: its suffix is not that of a table, and only its text is required."""
    needed = [column for column in schema.columns if column.required]
    if len(needed) == 1 and isinstance(needed[0], Media):
        return path.suffix.lower() in needed[0].suffixes
    return len(needed) == 1 and not schema.lines and isinstance(needed[0], Text) and packed_suffix(path) not in FORMATS


def _read_standard_input(stdin: BinaryIO, schema: Schema) -> Iterator[Row]:
    """Yield the only row of a document of another program, or else a row for each line."""
    stream = stdin if isinstance(stdin, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, stdin))
    column = next((column for column in schema.of(Text) if column.required), None)
    if column is None or not needs_reader(stream.peek(8), ""):
        yield from _read_lines(stream, schema)
        return
    where = "standard input"
    try:
        found = text_of(stream.read(), "", schema.encoding)
    except NotText as error:
        yield Row({}, where, error.problem)
    else:
        row = schema.row({schema.names[column.name]: found.text}, where, Path())
        yield row._replace(extracted_from=found.extracted_from)


def _read_lines(stdin: BinaryIO, schema: Schema) -> Iterator[Row]:
    needed = [column for column in schema.columns if column.required]
    line_column = needed[0] if len(needed) == 1 and isinstance(needed[0], Text | Words) else None
    for number, (text, encoding, undecoded) in enumerate(_lines(stdin, schema.encoding), 1):
        where = f"standard input, line {number}"
        if undecoded:
            yield Row({}, where, undecoded)
            continue
        # Not every text that starts with a brace is JSON.
        may_be_json = line_column is None or text.lstrip().startswith("{")
        cells, problem = json_object(text, schema.encoding) if may_be_json else (None, "")
        if cells is not None:
            for column in schema.of(Text):
                found = cells.get(schema.names[column.name])
                cells[schema.names[column.name]] = found if found is None or isinstance(found, str) else str(found)
            yield schema.row(cells, where, Path())._replace(encoding=encoding)
        elif line_column is not None:
            yield schema.row({schema.names[line_column.name]: text}, where, Path())._replace(encoding=encoding)
        else:
            yield Row({}, where, problem)


def _lines(stdin: BinaryIO, encoding: str) -> Iterator[tuple[str, str, str]]:
    """Yield each line as it comes, the encoding found, and the problem if it is not text."""
    if encoding != AUTO:
        with open_text(stdin, "standard input", encoding, "\n") as lines:
            for line in lines:
                text = line.rstrip("\r\n")
                yield text, "", broken(encoding) if is_damaged(text) else ""
        return
    # What comes later is not known yet, so each line is judged by itself.
    while content := stdin.readline(LONGEST_LINE):
        try:
            text, found = decode(content.rstrip(b"\r\n"), encoding)
        except NotText as error:
            yield "", "", error.problem
        else:
            yield text, found, ""
