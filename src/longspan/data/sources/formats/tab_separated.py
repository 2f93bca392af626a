"""Reading fields separated by tabs, without header and quotation marks, many rows at a time: `read_unquoted`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from longspan.data.sources.files.decoding import broken, encoding_name, mend, open_text
from longspan.data.sources.files.opening import encoding_of, open_packed
from longspan.errors import UserError
from longspan.machine.printing import printable

TABS = "wrong number of fields between tabs"
"""The beginning of a row's problem where its line has more or fewer fields than there are columns."""

_BLOCK = 1 << 24
"""Bytes that are read at a time, and the maximum of a line."""


class Fields(NamedTuple):
    """Some rows of a file.

    Attributes:
        columns: The fields of each column by name, strings.
        where: The place of each row, strings.
        problem: Problem of each row, empty if there is none; a row with a problem has empty fields.
    """

    columns: dict[str, pa.Array]
    where: pa.Array
    problem: pa.Array


def read_unquoted(path: Path, names: Sequence[str], encoding: str) -> Iterator[Fields]:
    """Yield the rows of a file, a line each, in order; those with another number of fields come last.

    Quotation marks are characters like others, as in the files of MIND. Empty lines are left out.

    Args:
        path: The file, which may be compressed.
        names: The columns.
        encoding: The encoding, or "auto".

    Raises:
        UserError: The file is empty, cannot be read, is in another encoding, or has too long a line.
    """
    name, encoding = printable(path.name), encoding_of(path, encoding)
    bad: list[pa_csv.InvalidRow] = []

    def note(row: pa_csv.InvalidRow) -> str:
        bad.append(row)
        return "skip"

    done = found = 0
    try:
        with open_packed(path) as raw:
            for batch in _batches(raw, names, encoding, note):
                # Rows that are left out come between the others: how many did so far says on which line each is.
                before = np.array([row.number - number for number, row in enumerate(bad, 1)], dtype=np.int64)
                places = np.arange(done, done + len(batch))
                lines = places + 1 + np.searchsorted(before, places, side="right")
                done += len(batch)
                columns, problem = _decoded(batch, encoding)
                some = pa.array(np.any([pc.binary_length(column).to_numpy() > 0 for column in columns], axis=0))
                kept = pc.or_(some, pc.not_equal(problem, ""))
                fields = Fields(dict(zip(names, columns, strict=True)), _line_names(name, lines), problem)
                found += kept.true_count
                yield _filter(fields, kept)
    except pa.ArrowInvalid as error:
        if "Empty CSV" not in str(error):
            raise UserError(
                f"expected lines of less than {_BLOCK:,} bytes in {name}, got an error ({str(error).splitlines()[0]}); "
                "split them."
            ) from None
    except UnicodeError as error:
        raise UserError(
            f"{name}: expected {encoding_name(encoding)}, got another encoding ({error}); {mend(encoding)}."
        ) from None
    rest = [row for row in bad if row.text.strip()]
    if rest:
        problems = [f"{TABS} (expected {len(names)}, got {row.actual_columns})" for row in rest]
        empty = {column: pa.array([""] * len(rest), pa.string()) for column in names}
        yield Fields(empty, _line_names(name, np.array([row.number for row in rest])), pa.array(problems))
    elif not found:
        raise UserError(f"expected rows in {str(path)!r}, got an empty file; choose a file with data.")


def first_fields(path: Path, encoding: str) -> list[str]:
    """Return the fields of the first line that is not empty; none of an empty file.

    Raises:
        UserError: It cannot be read.
    """
    found = encoding_of(path, encoding)
    with open_packed(path) as raw, open_text(raw, printable(path.name), found, "\n") as lines:
        for line in lines:
            if line.strip():
                return line.rstrip("\r\n").split("\t")
    return []


def _batches(raw: Any, names: Sequence[str], encoding: str, note: Any) -> pa_csv.CSVStreamingReader:
    return pa_csv.open_csv(
        raw,
        # With threads, rows that are left out have no numbers.
        read_options=pa_csv.ReadOptions(
            column_names=list(names), use_threads=False, block_size=_BLOCK, encoding=encoding
        ),
        parse_options=pa_csv.ParseOptions(
            delimiter="\t",
            quote_char=False,
            escape_char=False,
            newlines_in_values=False,
            ignore_empty_lines=False,
            invalid_row_handler=note,
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types={name: pa.binary() for name in names}, strings_can_be_null=False
        ),
    )


def _decoded(batch: pa.RecordBatch, encoding: str) -> tuple[list[pa.Array], pa.Array]:
    """Return the columns as text, and the problem of each row."""
    try:
        return [column.cast(pa.string()) for column in batch.columns], pa.array([""] * len(batch), pa.string())
    except pa.ArrowInvalid:
        rows = [[_text(cell) for cell in row] for row in zip(*(column.to_pylist() for column in batch), strict=True)]
    damaged = [None in row for row in rows]
    texts = [[""] * len(row) if bad else row for row, bad in zip(rows, damaged, strict=True)]
    columns = [pa.array([row[index] for row in texts], pa.string()) for index in range(batch.num_columns)]
    return columns, pa.array([broken(encoding) if bad else "" for bad in damaged], pa.string())


def _text(cell: bytes) -> str | None:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return None


def _line_names(name: str, lines: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise(f"{name}, line", pa.array(lines).cast(pa.string()), " ")


def _filter(fields: Fields, kept: pa.Array) -> Fields:
    columns = {name: column.filter(kept) for name, column in fields.columns.items()}
    return Fields(columns, fields.where.filter(kept), fields.problem.filter(kept))
