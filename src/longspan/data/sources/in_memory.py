"""Data that are in memory: frames, data sets of `datasets`, lists and iterators.

To train on, they are copied into a file in the cache of data sets, named after its contents (`settings_for`). So they
are read, split, checked and cached like any other file, by other processes too, and a run that is continued finds them.
To predict from, they are read row by row (`rows_of`).
"""

import dataclasses
import os
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.columns.annotations import Annotated, encoded, unpaired
from longspan.data.columns.kinds import Column, TextFile
from longspan.data.columns.values import BadCell, described, listed, shown
from longspan.data.fingerprints import file_digest
from longspan.data.sources.files.addresses import IN_MEMORY
from longspan.data.sources.files.full_disk import needing_room
from longspan.data.sources.formats.folders import SPLIT_NAMES
from longspan.data.sources.formats.schema import Row, Schema, schema_of
from longspan.data.sources.locating import class_names
from longspan.errors import UserError
from longspan.machine.printing import note

if TYPE_CHECKING:
    from datasets import Dataset

Files = dict[int, tuple[str, str]]
"""For rows of a table whose texts are files, from 0, the problem or "", and the kind of document or ""."""

_ROWS = 256
"""Rows of a table that become Python objects together."""


def is_path(data: Any) -> bool:
    """Return whether data are named, by a path or an address, rather than given."""
    return isinstance(data, str | os.PathLike)


def settings_for(data: Any, columns: Sequence[Column], settings: Any) -> dict[str, str]:
    """Return the settings that name data: `path`, or `train`, `validation` and `test`.

    Args:
        data: A path, a table, or a dict of splits (or `DatasetDict`) of these. A table is a DataFrame of pandas or
            polars (anything with Arrow's C stream interface), a `datasets.Dataset`, or a dict of columns. A pair of
            inputs and targets, and a list or iterator of rows, are tables, too. Rows are dicts, pairs of input and
            target, or inputs alone.
        columns: Columns that the task reads.
        settings: The names of the columns: see `longspan.data.sources.formats.schema.schema_of`.

    Raises:
        UserError: Another type, no rows, or columns of different lengths, of mixed types or with the same name.
            Required columns are checked later, when the copy is read.
    """
    if is_path(data):
        return {"path": os.fspath(data)}
    if not isinstance(data, Mapping) or SPLIT_NAMES.keys().isdisjoint(data):
        return {"path": str(_cached_table(data, columns, settings))}
    if not _is_of(data, "datasets", "DatasetDict") and (others := [name for name in data if name not in SPLIT_NAMES]):
        raise UserError(f"expected splits called {', '.join(SPLIT_NAMES)}, got {others[0]!r} among them; rename it.")
    found: dict[str, str] = {}
    for name, part in data.items():
        if name not in SPLIT_NAMES:
            # As of a data set of the Hub.
            continue
        split = SPLIT_NAMES[name]
        if split in found:
            raise UserError(f"expected one {split} split, got two, the second called {name!r}; join them.")
        found[split] = os.fspath(part) if is_path(part) else str(_cached_table(part, columns, settings, split))
    return found


def with_data(settings: Any, columns: Sequence[Column], data: Any) -> Any:
    """Return settings with other data in place of all that they name.

    Args:
        settings: A `longspan.data.config.SourceData`.
        columns: Columns that the task reads.
        data: A path, or data in memory, as for `settings_for`.

    Raises:
        UserError: See `settings_for`.
    """
    nothing: dict[str, Any] = dict.fromkeys(("path", "train", "validation", "test"), "")
    nothing |= {"classes": 0, "files_per_class": 0}
    return dataclasses.replace(settings, **{**nothing, **settings_for(data, columns, settings)})


def rows_of(data: Any, columns: Sequence[Column], settings: Any) -> Iterator[Row]:
    """Read data row by row; of an iterator, only as many rows as are asked for.

    Args:
        data: A table, as for `settings_for`.
        columns: Columns to read.
        settings: The names of the columns.

    Raises:
        UserError: It is no table, or lacks a column: at once where that can be told.
    """
    schema, what = schema_of(columns, settings, files=False), _name_of(data)
    files: Files = {}
    if isinstance(data, Mapping) and SPLIT_NAMES.keys() & data.keys() and not set(schema.sources) & data.keys():
        splits = [name for name in data if name in SPLIT_NAMES]
        raise UserError(f"expected one table, got a dict with the splits {listed(splits)}; give one of its values.")
    if _is_rows(data):
        found: Iterator[Mapping[str, Any]] = _cells(data, what, schema)
        first = list(islice(found, 1))
        schema = _schema_of_files(schema, columns, settings, first[0] if first else ())
        if first:
            schema.check_present(f"the {what}", list(first[0]))
        found = chain(first, found)
    else:
        table = _table(data, what, schema, files)
        schema = _schema_of_files(schema, columns, settings, table.column_names)
        schema.check_present(f"the {what}", table.column_names)
        names = [name for name in schema.sources if name in table.column_names]
        found = (
            dict(zip(names, cells, strict=True))
            for batch in table.select(names).to_batches(_ROWS)
            for cells in zip(*(schema.cells(name, batch.column(name)) for name in names), strict=True)
        )
    return _rows(found, schema, what, files)


def _rows(found: Iterable[Mapping[str, Any]], schema: Schema, what: str, files: Files) -> Iterator[Row]:
    for number, cells in enumerate(found):
        given = {name: plain(schema.given(name, cell)) for name, cell in cells.items()}
        row = schema.row(given, named_row(f"the {what}", number + 1), Path.cwd())
        if number in files:
            problem, kind = files[number]
            row = row._replace(problem=problem or row.problem, extracted_from=kind)
        yield row


def _schema_of_files(schema: Schema, columns: Sequence[Column], settings: Any, names: Collection[str]) -> Schema:
    """The schema whose texts are in files, if their column is there: without names, strings are texts."""
    files = schema_of(columns, settings)
    return files if files.file_column in names else schema


def named_row(name: str, number: int) -> str:
    """Return the address of a row of data in memory, such as "row 17 of the DataFrame"."""
    return f"row {number} of {name}"


def _cached_table(data: Any, columns: Sequence[Column], settings: Any, split: str = "") -> Path:
    """Return the file with a copy of a table, writing it unless it is there."""
    what = _name_of(data)
    title = f"{split} {what}".strip()
    schema = schema_of(columns, settings)
    files: Files = {}
    table = _table(data, title, schema, files)
    if problems := Counter(problem.partition(" (")[0] for problem, _ in files.values() if problem):
        counts = ", ".join(f"{count:,} {problem}" for problem, count in problems.most_common())
        note(f"not read: {problems.total():,} of {len(files):,} files in the {title} ({counts})")
    if not table.num_rows:
        raise UserError(f"expected rows in the {title}, got none; give some.")
    return cached_copy(f"{title}.parquet", partial(pq.write_table, table))


def cached_copy(name: str, write: Callable[[Path], None]) -> Path:
    """Return the file in the cache with what `write` writes to a path, unless it is there, under its digest."""
    from datasets import config

    folder = Path(config.HF_DATASETS_CACHE, IN_MEMORY)
    part = folder / f"{uuid.uuid4().hex}.part"
    try:
        with needing_room():
            folder.mkdir(parents=True, exist_ok=True)
            write(part)
            # In a folder of its own, so that its name can say what it is.
            path = folder / file_digest(part)[:16] / name
            path.parent.mkdir(exist_ok=True)
            # Written again, it would count as changed.
            if not path.exists():
                part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _name_of(data: Any) -> str:
    """Name of data in messages."""
    kind = type(data).__name__
    return "pair" if _is_pair(data) else kind if kind in ("DataFrame", "Dataset", "Table", "list", "dict") else "data"


def _is_rows(data: Any) -> bool:
    """Return whether data are rows, one after the other, rather than columns."""
    if isinstance(data, Mapping | str | bytes) or _is_pair(data) or _is_table(data):
        return False
    return isinstance(data, Iterable)


def _is_table(data: Any) -> bool:
    return _is_of(data, "datasets", "Dataset") or hasattr(data, "columns")


def _is_pair(data: Any) -> bool:
    """Return whether data are inputs and their targets, two columns in a tuple."""
    return isinstance(data, tuple) and len(data) == 2 and not any(isinstance(one, str | Mapping) for one in data)


def _table(data: Any, what: str, schema: Schema, files: Files) -> pa.Table:
    """Return a table with the texts of the files in it, which are added to `files`."""
    if _is_of(data, "datasets", "Dataset"):
        return _of_dataset(data)
    if _is_of(data, "pandas", "DataFrame"):
        return _joined(_of_pandas(data, what), what, schema, files)
    if _is_table(data) and hasattr(data, "__arrow_c_stream__"):
        return _readable(pa.table(data))
    if isinstance(data, Mapping):
        return _joined({str(name): values for name, values in data.items()}, what, schema, files)
    if _is_pair(data):
        _check_same_index(*data)
        return _joined(dict(zip(_two_names(schema, what), data, strict=True)), what, schema, files)
    if not _is_rows(data) or isinstance(data, bytes):
        raise UserError(
            "expected a path, a DataFrame, a Dataset, lists, or a dict of splits of these, got a value of type "
            f"{type(data).__name__}; give one of them."
        )
    rows = list(_cells(data, what, schema))
    names = dict.fromkeys(name for row in rows for name in row)
    return _joined({name: [row.get(name) for row in rows] for name in names}, what, schema, files)


def _is_of(data: Any, package: str, kind: str) -> bool:
    """Return whether data are of a class of a package, which need not be installed."""
    module = sys.modules.get(package)
    return module is not None and isinstance(data, getattr(module, kind))


def _of_dataset(data: "Dataset") -> pa.Table:
    table = data.with_format("arrow")[:]
    for number, (name, kind) in enumerate(data.features.items()):
        if _has_classes(kind):
            named_cells = [class_names(cell, kind) for cell in table.column(name).to_pylist()]
            table = table.set_column(number, name, pa.array(named_cells))
    return _readable(table)


def _has_classes(kind: Any) -> bool:
    from datasets import ClassLabel, List

    return isinstance(kind, ClassLabel) or (isinstance(kind, List) and _has_classes(kind.feature))


def _readable(table: pa.Table) -> pa.Table:
    """Return a table without the metadata and the types that only some libraries write."""
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    fields = [pa.field(field.name, views.get(field.type, field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))


def _of_pandas(data: Any, what: str) -> dict[str, Any]:
    names = [str(name) for name in data.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"expected one column of each name in the {what}, got {shown(twice[0])} twice; rename one.")
    if not data.index.is_unique:
        place = data.index[data.index.duplicated()][0]
        raise UserError(
            f"expected an index that names each row of the {what} once, got {plain(place)!r} more than once, as after "
            "pandas.concat; call reset_index(drop=True) if the rows are right."
        )
    return {name: data.iloc[:, number] for number, name in enumerate(names)}


def _check_same_index(inputs: Any, targets: Any) -> None:
    """Raise UserError for two Series of different rows, which pandas would join by their index."""
    if all(_is_of(one, "pandas", "Series") for one in (inputs, targets)) and not inputs.index.equals(targets.index):
        raise UserError(
            "expected inputs and targets with the same index, got two that differ; join them into one DataFrame, or "
            "call reset_index(drop=True) on both if their rows are in the same order."
        )


def _two_names(schema: Schema, what: str) -> tuple[str, str]:
    """Return the columns that the two parts of a pair are: the only input that is needed, and the only target."""
    return _only_name(schema, what, target=False), _only_name(schema, what, target=True)


def _only_name(schema: Schema, what: str, *, target: bool) -> str:
    found = [column for column in schema.columns if column.target == target and (target or column.required)]
    if len(found) != 1 or not (found[0].alternative or len(schema.sources_of(found[0])) == 1):
        raise UserError(
            f"expected a table with the columns {listed(schema.required_names)}, got a {what} without names; give a "
            "DataFrame or a dict of columns."
        )
    return schema.names[found[0].name]


def _cells(rows: Iterable[Any], what: str, schema: Schema) -> Iterator[dict[str, Any]]:
    """Yield the cells of rows: dicts, pairs of input and target, or inputs."""
    kind: type | None = None
    annotated = bool(schema.of(Annotated))
    for number, row in _numbered(rows, what):
        row = unpaired(row) if annotated else row
        own = Mapping if isinstance(row, Mapping) else tuple if isinstance(row, tuple) and len(row) == 2 else object
        kind = kind or own
        if own is not kind:
            raise UserError(f"expected rows of one kind, got {described(row)} in {named_row(f'the {what}', number)}.")
        if isinstance(row, Mapping):
            yield {str(name): cell for name, cell in row.items()}
        elif own is tuple:
            yield dict(zip(_two_names(schema, what), row, strict=True))
        else:
            yield {_only_name(schema, what, target=False): row}


def _numbered(rows: Iterable[Any], what: str) -> Iterator[tuple[int, Any]]:
    """Yield rows with their numbers from 1. An error of their iterator gets a note with the row before it."""
    number = 0
    try:
        for number, row in enumerate(rows, 1):
            yield number, row
    except Exception as error:
        error.add_note(f"This came after {named_row(f'the {what}', number)}.")
        raise


def _joined(columns: Mapping[str, Any], what: str, schema: Schema, files: Files) -> pa.Table:
    """Return columns as a table.

    Raises:
        UserError: They differ in length, or one that the schema reads holds different types.
    """
    arrays, needed = {}, schema.sources
    if schema.of(Annotated):
        columns = encoded(columns)
    for name, values in columns.items():
        try:
            arrays[name] = _array(values, name, what, schema, files)
        except UserError:
            # A column that nobody reads may hold anything.
            if name in needed or len(columns) == 1:
                raise
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        short, long = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
        raise UserError(
            f"expected as many values in each column of the {what}, got {lengths[short]:,} of {shown(short)} and "
            f"{lengths[long]:,} of {shown(long)}; give one value per row."
        )
    return pa.table(arrays)


def _array(values: Any, name: str, what: str, schema: Schema, files: Files) -> pa.Array:
    if isinstance(values, str | bytes | Mapping) or _is_table(values) or not isinstance(values, Iterable):
        raise UserError(f"expected a list of values for {shown(name)}, got {described(values)}; give one per row.")
    try:
        if _is_of(values, "pandas", "Series") and str(getattr(values, "dtype", "")) != "object":
            made = pa.Array.from_pandas(values)
        else:
            values = _texts([plain(schema.given(name, cell)) for cell in values], schema, files)
            made = pa.array(values)
    except UnicodeEncodeError as error:
        raise UserError(
            f"expected text in column {shown(name)} of the {what}, got half a character ({error})."
        ) from None
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise UserError(_mixed(list(values), name, what, str(error))) from None
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    return made.dictionary_decode() if pa.types.is_dictionary(made.type) else made


def _texts(cells: list[Any], schema: Schema, files: Files) -> list[Any]:
    """Return cells with the texts of files, None for those that cannot be read, which are added to `files`."""
    for number, cell in enumerate(cells):
        if isinstance(cell, TextFile):
            try:
                cells[number], _, kind = schema.read(cell)
                files[number] = "", kind
            except BadCell as error:
                cells[number], files[number] = None, (str(error), "")
    return cells


def _mixed(values: list[Any], name: str, what: str, error: str) -> str:
    """Return the message for values that have no common type."""
    first: tuple[int, str] | None = None
    for number, value in enumerate(map(plain, values), 1):
        if value is None:
            continue
        kind = type(value).__name__
        if first is None:
            first = number, kind
        elif kind != first[1]:
            return (
                f"expected values of one type in column {shown(name)} of the {what}, got {first[1]} in row {first[0]} "
                f"and {kind} in row {number}; convert them to one."
            )
    told = error.splitlines()[0].rstrip(".")
    return f"expected text, numbers or lists in column {shown(name)} of the {what}, got others ({told}); convert them."


def plain(cell: Any) -> Any:
    """Return a cell as a Python object; None if it is missing."""
    if cell is None or isinstance(cell, str | int | bool):
        return cell
    if isinstance(cell, float):
        return None if cell != cell else cell
    if isinstance(cell, os.PathLike):
        return os.fspath(cell)
    convert: Callable[[], Any] | None = getattr(cell, "tolist", None)
    if convert is not None:
        return plain(convert()) if getattr(cell, "ndim", 1) == 0 else convert()
    if isinstance(cell, tuple | list):
        return [plain(item) for item in cell]
    return None if cell is getattr(sys.modules.get("pandas"), "NA", ...) else cell
