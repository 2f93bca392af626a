"""Parallel text files: line N of one file belongs to line N of the others, such as a text and its translation."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path

from longspan.data.sources.files.decoding import detected_encoding, open_text
from longspan.data.sources.files.encodings import AUTO
from longspan.data.sources.files.opening import COMPRESSED, check_text, encoding_of, examine, expand, open_packed
from longspan.data.sources.formats.schema import Row, Schema
from longspan.errors import UserError
from longspan.machine.printing import printable

SEPARATOR = ","
"""What separates the names of parallel files: "corpus.en,corpus.de"."""


def parallel_files(path: Path, schema: Schema, setting: str = "") -> list[Path]:
    """Return the files that a path names together, one for each column of lines; none if it is a file or folder.

    A path names them by their beginning, "train" for train.en and train.de with columns called "en" and "de", or all of
    them, "train.en,train.de". They may be compressed.

    Args:
        path: Path in the settings.
        schema: Columns to read.
        setting: The beginning of messages.

    Raises:
        UserError: Some of the files are there and others not, or other than one for each column are named.
    """
    names = schema.lines
    if not names or path.exists():
        return []
    begin = f"{setting}: " if setting else ""
    if SEPARATOR in str(path):
        files = [expand(part.strip()) for part in str(path).split(SEPARATOR)]
        if len(files) != len(names):
            raise UserError(
                f"{begin}expected a file for each of the columns {', '.join(names)}, got {len(files)}; name "
                f"{len(names)}, separated by commas."
            )
        for file in files:
            examine(file, setting)
        return files
    found = [_with_suffix(path, name) for name in names]
    if all(found):
        return [file for file in found if file is not None]
    if any(found):
        there = next(file for file in found if file is not None)
        absent = next(name for name, file in zip(names, found, strict=True) if file is None)
        raise UserError(
            f"{begin}expected the parallel files {' and '.join(f'{path.name}.{name}' for name in names)}, got only "
            f"{there.name!r}; add {f'{path.name}.{absent}'!r}, or name both as FILE{SEPARATOR}FILE."
        )
    return []


def _with_suffix(path: Path, name: str) -> Path | None:
    candidates = (path.with_name(f"{path.name}.{name}{packed}") for packed in ("", *COMPRESSED))
    return next((file for file in candidates if file.is_file()), None)


def read_parallel(files: Sequence[Path], schema: Schema) -> Iterator[Row]:
    """Read parallel text files line by line; places are lines of the first file.

    Raises:
        UserError: A file cannot be read, all are empty, or they have different numbers of lines.
    """
    for file in files:
        check_text(file, schema.encoding)
    names = [printable(file.name) for file in files]
    encodings = [encoding_of(file, schema.encoding) for file in files]
    found = next(filter(None, map(detected_encoding, encodings)), "") if schema.encoding == AUTO else ""
    counts = [0] * len(files)
    with ExitStack() as stack:
        streams = [
            stack.enter_context(open_text(stack.enter_context(open_packed(file)), name, encoding, "\n"))
            for file, name, encoding in zip(files, names, encodings, strict=True)
        ]
        for lines in zip_longest(*streams):
            counts = [count + (line is not None) for count, line in zip(counts, lines, strict=True)]
            if None in lines or len(set(counts)) > 1:
                # What is left only needs to be counted.
                continue
            cells = {name: line.rstrip("\r\n") for name, line in zip(schema.lines, lines, strict=True)}
            yield schema.row(cells, f"{names[0]}, line {counts[0]}", files[0].parent)._replace(encoding=found)
    if len(set(counts)) > 1:
        raise UserError(
            f"expected as many lines in {' as in '.join(map(repr, names))}, got "
            f"{' and '.join(f'{count:,}' for count in counts)}; line N of each must belong to line N of the others."
        )
    if not counts[0]:
        raise UserError(f"expected lines in {' and '.join(map(repr, names))}, got empty files; choose others.")
