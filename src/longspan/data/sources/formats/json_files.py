"""JSON files that are one row each, and folders of such: a meeting, a page, a form per file."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from longspan.data.columns.kinds import Text
from longspan.data.columns.parts import Document
from longspan.data.sources.files.decoding import NotText
from longspan.data.sources.files.opening import packed_suffix, read_document
from longspan.data.sources.formats.folders import DocumentFile, Listed, list_files
from longspan.data.sources.formats.schema import Row, Schema
from longspan.data.sources.formats.tables import json_object


def is_object(path: Path, schema: Schema) -> bool:
    """Return whether a file is a row by itself: JSON, for a task that reads something other than plain texts."""
    return _reads_objects(schema) and packed_suffix(path) == ".json"


def list_objects(folder: Path, schema: Schema) -> list[Listed]:
    """Return the files of a folder and its sub-folders that are a row each, in order of names.

    Raises:
        UserError: A folder cannot be read.
    """
    return [file for file in list_files(folder) if is_object(Path(file.path), schema)] if _reads_objects(schema) else []


def read_objects(files: Sequence[DocumentFile], schema: Schema) -> Iterator[Row]:
    """Read each file as one JSON object, whose keys are columns.

    A file that is not text, or not a JSON object, has a problem.

    Raises:
        UserError: A file cannot be read or decompressed.
    """
    for file in files:
        path = Path(file.path)
        try:
            content, encoding = read_document(path, schema.encoding)
        except NotText as error:
            yield Row({}, f"{file.where}, byte {error.byte}", error.problem)
            continue
        cells, problem = json_object(content, schema.encoding)
        if cells is None:
            yield Row({}, file.where, problem)
        else:
            yield schema.row(cells, file.where, path.parent)._replace(encoding=encoding)


def _reads_objects(schema: Schema) -> bool:
    return all(isinstance(column, Document) for column in schema.of(Text))
