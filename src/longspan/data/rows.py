"""Rows from wherever they are, one at a time and each with its exact place: `read_rows`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from longspan.data.columns import Column


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


def read_rows(
    path: Path | str, columns: Sequence[Column], config: Any, *, stdin: BinaryIO | None = None
) -> Iterator[Row]:
    """Read rows, in constant memory but for the documents themselves.

    Args:
        path: A csv, tsv, jsonl (ndjson) or parquet file, one row each; a text file, which is one document; a folder of
            text files, each one document, or, with a `Label` among the columns, with one sub-folder of text files per
            class; or "-" for `stdin`. Text formats also as .gz, .xz, .zst or .zip (with one member).
        columns: What to read. Text files have one `Text` and, in folders of classes, one `Label`.
        config: The settings: what the source calls each column, and `encoding`.
        stdin: Standard input, as bytes: one document per line, where a line that is a JSON object gives its columns.

    Raises:
        UserError: Nothing there, or not readable; an unknown suffix, an empty or damaged file, no such column, or a
            quotation mark that is never closed. What is in the file is found out while reading.
    """
    raise NotImplementedError
