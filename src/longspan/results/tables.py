"""Predictions as rows of tables: in files (`write_table`), and for pandas and notebooks (`Predictions`)."""

import csv
import dataclasses
import itertools
import json
import typing
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from longspan.errors import UserError
from longspan.machine.imports import require
from longspan.machine.printing import json_text
from longspan.results import Prediction, html
from longspan.results.base import HIDDEN

#: Formats of tables by name, which is the ending of their files, too. The first three can be printed.
PRINTED = ("csv", "tsv", "jsonl")
FORMATS = (*PRINTED, "parquet", "xlsx")
#: Last columns of each table.
_LAST = ("unfamiliar", "tokens_read", "tokens_total", "error")
#: Rows of Parquet that are written together.
_GROUP = 10_000
#: Rows, columns and characters that a sheet of Excel has room for.
_MOST_ROWS, _MOST_COLUMNS, _MOST_CHARACTERS = 1_048_576, 16_384, 32_767

Row = dict[str, Any]


def table_row(prediction: Prediction) -> Row:
    """Values of a prediction by column: its fields, of which probabilities are one column for each class."""
    row: Row = {}
    for field in dataclasses.fields(prediction):
        value = getattr(prediction, field.name)
        if field.name == "probabilities" and isinstance(value, Mapping):
            row |= {f"probabilities.{name}": share for name, share in value.items()}
        elif field.name not in _LAST and field.metadata != HIDDEN:
            row[field.name] = value
    return row | {name: getattr(prediction, name) for name in _LAST}


class _Tabular(Iterable[Prediction]):
    """Predictions that can become a table."""

    #: Index of the DataFrame that was read; None for other inputs.
    rows: Any = None

    def to_dicts(self) -> list[dict[str, Any]]:
        """Each of them as JSON."""
        return [one.to_dict() for one in self]

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each input. It has the index of the DataFrame that was read, if each row was one.

        Its columns are the fields of predictions, `probabilities.NAME` for each class, and at the end `unfamiliar`,
        the numbers of tokens, and `error`.
        """
        import pandas as pd

        columns, rows = _as_table(self)
        found = pd.DataFrame(list(rows), columns=columns)
        # Impressions of recommendation have several rows.
        return found.set_axis(self.rows) if self.rows is not None and len(self.rows) == len(found) else found


class Predictions(list[Prediction], _Tabular):
    """Predictions, one for each example; a notebook shows them as a table."""

    def __init__(self, predictions: Iterable[Prediction] = (), rows: Any = None) -> None:
        super().__init__(predictions)
        self.rows = rows

    def _repr_html_(self) -> str:
        return html.records(self.to_dicts())


class PredictionStream(Iterator[Prediction], _Tabular):
    """Predictions that are computed once, as they are asked for."""

    def __init__(self, predictions: Iterable[Prediction], rows: Any = None) -> None:
        self._predictions, self.rows = _passed_on(predictions), rows

    def __next__(self) -> Prediction:
        return next(self._predictions)

    def close(self) -> None:
        """Compute no more of them."""
        self._predictions.close()


def _passed_on(predictions: Iterable[Prediction]) -> Generator[Prediction, None, None]:
    # Closing this closes what computes them.
    yield from predictions


def index_of(source: Any) -> Any:
    """Index of a DataFrame; None for anything else."""
    index = getattr(source, "index", None)
    return None if callable(index) else index


def write_table(predictions: Iterable[Prediction], kind: str, file: IO[Any]) -> None:
    """Write predictions as a table, in one of `FORMATS`, one after the other.

    Columns are those of the first prediction without an error, for which rows before it wait. What is neither a number
    nor a text is written as JSON. In a sheet of Excel, texts are texts: nothing is a formula or a link.

    Args:
        predictions: The rows.
        kind: The format.
        file: Where to; it takes text for those of `PRINTED`, and bytes for others.

    Raises:
        UserError: xlsxwriter is missing, the table is too large for a sheet, or rows have different columns.
    """
    if kind == "xlsx":
        require("xlsxwriter", "tables for Excel", instead="choose another format")
    if kind == "jsonl":
        for prediction in predictions:
            print(json_text(prediction.to_dict()), file=file, flush=True)
        return
    columns, rows = _as_table(predictions)
    cells = ({name: _cell(value) for name, value in row.items()} for row in rows)
    if kind not in PRINTED:
        (_write_parquet if kind == "parquet" else _write_sheet)(columns, cells, file)
        return
    writer = csv.DictWriter(file, columns, delimiter="\t" if kind == "tsv" else ",", lineterminator="\n")
    writer.writeheader()
    for row in cells:
        writer.writerow(row)
        file.flush()


def prediction_schema(kind: type[Prediction], labels: Sequence[str]) -> Any:
    """Arrow schema of a table of predictions, whatever their values are.

    Args:
        kind: Class of the predictions.
        labels: Names of the classes, in the order of their probabilities.
    """
    import pyarrow as pa

    hints = typing.get_type_hints(kind)
    columns: dict[str, Any] = {}
    for name in table_row(kind("")):
        if name == "probabilities" and dict[str, float] in typing.get_args(hints[name]):
            columns |= {f"probabilities.{label}": pa.float64() for label in labels}
        else:
            types = {*(typing.get_args(hints[name]) or (hints[name],))} - {type(None)}
            columns[name] = _arrow_type(types.pop() if len(types) == 1 else str)
    return pa.schema(list(columns.items()))


def _arrow_type(kind: type) -> Any:
    """Type of a column; what is neither a number nor a text becomes one."""
    import pyarrow as pa

    return {int: pa.int64(), float: pa.float64(), bool: pa.bool_()}.get(kind, pa.string())


def arrow_table(predictions: Iterable[Prediction], schema: Any) -> Any:
    """Table of Arrow with a row for each prediction.

    Args:
        predictions: The rows.
        schema: That of `prediction_schema`.

    Raises:
        UserError: Predictions have other columns, or values of other types.
    """
    _, rows = _as_table(predictions, schema.names)
    return _arrow_rows(({name: _cell(value) for name, value in row.items()} for row in rows), schema)


def _as_table(predictions: Iterable[Prediction], columns: Sequence[str] = ()) -> tuple[list[str], Iterator[Row]]:
    """Return the names of columns, by default those of the first prediction without an error, and rows."""
    left, waiting = iter(predictions), list[Prediction]()
    for prediction in () if columns else left:
        waiting.append(prediction)
        if prediction.error is None:
            break
    columns = [*(columns or (table_row(waiting[-1]) if waiting else ("where", *_LAST)))]

    def rows() -> Iterator[Row]:
        for prediction in itertools.chain(waiting, left):
            row = table_row(prediction)
            if prediction.error is not None:
                row = {name: value for name, value in row.items() if name in columns}
            if other := [name for name in row if name not in columns]:
                raise UserError(
                    f"expected the columns of the first row in {prediction.where}, got another one, {other[0]!r}; "
                    "choose the format jsonl."
                )
            yield row

    return columns, rows()


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, ensure_ascii=False)


def _write_parquet(columns: list[str], rows: Iterator[Row], file: IO[bytes]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    first = list(itertools.islice(rows, _GROUP))
    kinds: dict[str, Any] = {"unfamiliar": pa.bool_(), "tokens_read": pa.int64(), "tokens_total": pa.int64()}
    for name in columns:
        known = next((row[name] for row in first if row.get(name) is not None), None)
        kinds.setdefault(name, _arrow_type(type(known)))
    schema = pa.schema([(name, kinds[name]) for name in columns])
    with parquet.ParquetWriter(file, schema) as writer:
        while first:
            writer.write_table(_arrow_rows(first, schema))
            first = list(itertools.islice(rows, _GROUP))


def _arrow_rows(rows: Iterable[Row], schema: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.Table.from_pylist([dict.fromkeys(schema.names) | row for row in rows], schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UserError(
            f"expected values of one type in each column of Parquet, got others ({error}); choose the format jsonl."
        ) from error


def _write_sheet(columns: list[str], rows: Iterator[Row], file: IO[bytes]) -> None:
    import xlsxwriter

    if len(columns) > _MOST_COLUMNS:
        raise UserError(
            f"expected at most {_MOST_COLUMNS:,} columns for a sheet of Excel, got {len(columns):,}; choose another "
            "format."
        )
    with xlsxwriter.Workbook(file, {"constant_memory": True, "nan_inf_to_errors": True}) as book:
        sheet = book.add_worksheet("predictions")
        sheet.freeze_panes(1, 0)
        for number, row in enumerate(itertools.chain([dict(zip(columns, columns, strict=True))], rows)):
            if number == _MOST_ROWS:
                raise UserError(
                    f"expected at most {_MOST_ROWS - 1:,} rows for a sheet of Excel, got more; choose another format."
                )
            for place, name in enumerate(columns):
                value = row.get(name)
                if isinstance(value, str):
                    if len(value) > _MOST_CHARACTERS:
                        raise UserError(
                            f"expected at most {_MOST_CHARACTERS:,} characters in a cell of Excel, got {len(value):,} "
                            f"in column {name!r} of {row['where']}; choose another format."
                        )
                    sheet.write_string(number, place, value)
                elif isinstance(value, bool):
                    sheet.write_boolean(number, place, value)
                elif value is not None:
                    sheet.write_number(number, place, value)
