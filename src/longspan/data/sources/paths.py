"""Reading whatever training reads, for prediction: any files, folders and data sets, one after the other."""

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from longspan.data.columns.kinds import Column
from longspan.data.sources.announcements import noting_encodings
from longspan.data.sources.files.opening import expand
from longspan.data.sources.formats.packages import list_packages, read_packages, site_folders
from longspan.data.sources.formats.rows import Row, open_rows
from longspan.data.sources.formats.schema import Schema, schema_of
from longspan.errors import UserError
from longspan.machine.printing import printable


def read_paths(
    paths: Sequence[Path | str], columns: Sequence[Column], config: Any, *, stdin: BinaryIO | None = None
) -> Iterator[Row]:
    """Read the rows of each path in constant memory, apart from the documents themselves; all paths are looked at
    before any is read.

    Unusable rows have a `problem`: a required column without a value, damaged text, or a malformed line. Which
    encodings "auto" found, and which files of a folder are no documents, is said on standard error. With several paths,
    places begin with the path that was given.

    Args:
        paths: Csv, tsv, jsonl (ndjson) or parquet files of rows, and "-" for `stdin`. A text file is one document, a
            folder of text files one document each. With a `Label` among the columns, a folder has one sub-folder of
            text files per class. Text formats may be compressed: .gz, .xz, .zst or .zip (with one file). Of HTML pages
            the text is read. Also "hub:NAME" for all splits of a data set, and "packages".
        columns: The columns to read. Text files have one `Text` and, in folders of classes, one `Label`.
        config: The settings: the name of each column in the source, `encoding`, `delimiter` and `header`.
        stdin: Standard input, as bytes: one document per line; the keys of a line that is a JSON object are columns.

    Raises:
        UserError: A path does not exist or cannot be read. It has an unknown suffix, is empty or damaged, or lacks a
            column. A quotation mark is never closed, or standard input is named twice. Errors in the contents are
            raised while reading.
    """
    schema = schema_of(columns, config)
    if sum(str(path) == "-" for path in paths) > 1:
        raise UserError("expected standard input at most once, got '-' several times; leave out all but one.")
    opened = [(path, _open(path, schema, config, stdin)) for path in paths]
    if len(opened) == 1:
        rows = opened[0][1]
    else:
        rows = chain.from_iterable(_placed(str(path), found) for path, found in opened)
    return noting_encodings(rows)


def example_path(config: Any, columns: Sequence[Column]) -> str | None:
    """Return a path of a run's data that `longspan predict` reads: of test data, validation data or all; None if none.

    Data sets of the Hub and "packages" have no path.

    Args:
        config: The settings of the run's data.
        columns: The columns that prediction reads.
    """
    named = [config.test, config.validation, *_parts(config.path), config.path, config.train]
    for path in filter(None, named):
        if path == "packages" or path.startswith("hub:") or not expand(path).exists():
            continue
        # Not an option, and not a setting of how data are read.
        given = f"./{path}" if path.startswith(("-", "data.")) else path
        try:
            first = next(read_paths([given], columns, config), None)
        except UserError:
            # Not everything that has splits can be read as one: a folder of tables, for example.
            continue
        if first is not None:
            return given
    return None


def _parts(path: str) -> list[str]:
    """Return the files and folders of a folder that are test or validation data by name."""
    folder = expand(path)
    if not path or not folder.is_dir():
        return []
    names = sorted(entry.name for entry in folder.iterdir())
    splits = ("test", "valid", "validation", "val", "dev")
    return [str(Path(path, name)) for split in splits for name in names if name.split(".")[0].lower() == split]


def _open(path: Path | str, schema: Schema, config: Any, stdin: BinaryIO | None) -> Iterator[Row]:
    name = str(path)
    if name == "packages":
        return read_packages(list_packages(site_folders(), config.classes), schema, config.files_per_class)
    if name.startswith("hub:"):
        from longspan.data.sources.locating import find_hub

        splits = find_hub(name.removeprefix("hub:"), schema)
        return chain.from_iterable(source.rows() for source in splits.values())
    return open_rows(path, schema, stdin)


def _placed(path: str, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield rows whose places begin with the path that was given."""
    shown = printable(path)
    if path in ("-", "packages") or path.startswith("hub:"):
        begin = ""
    elif expand(path).is_dir():
        begin = shown.rstrip("/") + "/"
    else:
        begin = os.path.join(os.path.dirname(shown), "")  # noqa: PTH118, PTH120
    try:
        for row in rows:
            yield row._replace(where=f"{begin}{row.where}")
    except UserError as error:
        raise UserError(str(error) if shown in str(error) else f"{shown}: {error}") from None
