"""Rows cached as Arrow files: `cached`, and `cached_tables` for what is read many rows at a time.

A cache file is named after a fingerprint of everything the rows depend on (paths, sizes, times, columns). So a second
run looks only at the dates of the source files, and reads a file again only if it has changed.
"""

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetInfo, Features, NamedSplit, Value, config
from datasets.exceptions import DatasetGenerationError
from datasets.table import MemoryMappedTable
from filelock import FileLock

import longspan
from longspan.data.columns.kinds import Column
from longspan.data.sources.files.decoding import broken, encoding_name
from longspan.data.sources.files.documents import readers
from longspan.data.sources.files.encodings import AUTO, detector
from longspan.data.sources.files.full_disk import needing_room
from longspan.data.sources.formats.schema import Schema
from longspan.data.sources.formats.tables import MALFORMED
from longspan.data.sources.locating import SPLITS, Source
from longspan.errors import UserError

_PLACES = {"where": Value("string"), "problem": Value("string"), "encoding": Value("string")}


@functools.cache
def _rows_version(*packages: str) -> str:
    """Return a hash of the code that reads rows, that of more packages included: other code may give other rows or
    problems for the same files."""
    digest = hashlib.sha256(f"{longspan.__version__} {detector()} {readers()}".encode())
    for package in ("longspan.data.sources", "longspan.data.columns", *packages):
        for file in sorted(Path(str(resources.files(package))).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


class SmallSample(UserError):
    """A sample lacks rows, classes or documents that all of the data may have."""


class ReadSplits(NamedTuple):
    """The good rows of each split. Also two counts for all splits together: rows left out, by reason, and, if
    `data.encoding` is "auto", rows in other encodings than UTF-8, by encoding."""

    splits: dict[str, Dataset]
    skipped: dict[str, int]
    encodings: dict[str, int]


def read_splits(sources: dict[str, Source], schema: Schema, skip: bool) -> ReadSplits:
    """Read each split without its bad rows.

    Args:
        sources: The source of each split.
        schema: The columns of their rows.
        skip: Whether to leave out bad rows.

    Raises:
        UserError: There are bad rows and `skip` is False, or every training row is bad.
    """
    skipped: dict[str, int] = {}
    splits: dict[str, Dataset] = {}
    encodings: Counter[str] = Counter()
    for split, source in sorted(sources.items(), key=lambda item: SPLITS.index(item[0])):
        rows = without_bad_rows(cached(source, split, schema.columns), source, schema, skip, skipped)
        if schema.encoding == AUTO:
            encodings.update(rows["encoding"])
        rows = rows.remove_columns("encoding")
        if len(rows):
            splits[split] = rows
        elif split == "train":
            raise UserError(f"expected documents in {source.name}, got only bad rows; fix them or use other data.")
    return ReadSplits(splits, skipped, {name: count for name, count in encodings.most_common() if name})


def cached(source: Source, split: str, columns: Sequence[Column]) -> Dataset:
    """Return the rows from the cache, writing them there first if necessary.

    Bad rows are cached too, so that they need not be found again.

    Args:
        source: The rows.
        split: The split they form.
        columns: Their columns.

    Returns:
        The columns by name, and `where`, `problem` (empty for good rows) and `encoding` (where "auto" found another
        than UTF-8).
    """
    # The same file as another split is cached separately.
    facts = [_rows_version(), split, source.facts]
    features = {column.name: column.feature for column in columns} | _PLACES

    try:
        with needing_room():
            return Dataset.from_generator(
                _Examples(source, columns, json.dumps(facts)),
                features=Features(features),
                split=NamedSplit(split),
                # Documents may be long: the default of 1,000 rows could hold a thousand books in memory.
                writer_batch_size=100,
            )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise


class _Examples:
    """Rows as dicts by column. Datasets names its cache by what is pickled of them: the facts they depend on."""

    def __init__(self, source: Source, columns: Sequence[Column], facts: str) -> None:
        self.source, self.columns, self.facts = source, columns, facts

    def __call__(self) -> Iterator[dict[str, Any]]:
        share, drawn = self.source.schema.sample, False
        for row in self.source.rows():
            if not self.source.schema.draws(row.where):
                continue
            drawn = True
            values = {column.name: row.values.get(column.name) for column in self.columns}
            yield {**values, "where": row.where, "problem": row.problem, "encoding": row.encoding}
        if share < 1 and not drawn:
            raise SmallSample(
                f"expected rows in a sample of {share:g} of those in {self.source.name}, got none; raise data.sample."
            )

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.facts,)


def cached_tables(
    tables: Callable[[], Iterable[pa.Table]], features: Features, facts: Sequence[Any], package: str
) -> Dataset:
    """Return tables, one below the other, from the cache, writing them there first if necessary.

    Args:
        tables: Makes them.
        features: Their columns.
        facts: Everything they depend on besides code, as JSON.
        package: The package with the code that makes them, besides that which reads files.

    Raises:
        UserError: The cache cannot be written; or what `tables` raises.
    """
    name = hashlib.sha256(json.dumps([_rows_version(package), str(features), *facts]).encode()).hexdigest()[:32]
    file = Path(config.HF_DATASETS_CACHE, "longspan_tables", f"{name}.arrow")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # One of several processes makes them, and the others find them.
        with FileLock(f"{file}.lock"):
            if not file.exists():
                part = file.with_suffix(".part")
                schema = features.arrow_schema
                with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
                    for table in tables():
                        writer.write_table(table.cast(schema))
                part.replace(file)
    except OSError as error:
        raise UserError(
            f"expected to write what was read to {str(file.parent)!r}, but writing failed ({error.strerror or error}); "
            "free some space, or set HF_DATASETS_CACHE to a folder on another disk."
        ) from error
    return Dataset(MemoryMappedTable.from_file(str(file)), DatasetInfo(features=features), fingerprint=name)


def without_bad_rows(dataset: Dataset, source: Source, schema: Schema, skip: bool, skipped: dict[str, int]) -> Dataset:
    """Return the rows without a problem, and count the others in `skipped`, by reason.

    Raises:
        UserError: There are others, and `skip` is False.
    """
    problems = dataset.data.column("problem")
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(problems).to_pylist() if entry["values"]}
    if not counts:
        return dataset.remove_columns("problem")
    if not skip:
        raise UserError(_refusal(dataset, source, schema, counts))
    for problem, count in counts.items():
        skipped[_reason(problem)] = skipped.get(_reason(problem), 0) + count
    good = np.flatnonzero(pc.equal(problems, "").to_numpy())
    return dataset.select(good).remove_columns("problem")


def _refusal(dataset: Dataset, source: Source, schema: Schema, counts: dict[str, int]) -> str:
    problems = dataset.data.column("problem")

    def first(problem: str) -> str:
        return str(dataset[pc.index(problems, problem).as_py()]["where"])

    # In row order. Problems with details are reported one at a time, the others with counts.
    for problem in filter(None, problems.unique().to_pylist()):
        if _reason(problem) != problem:
            how = MALFORMED.get(_reason(problem), "fix it")
            return f"{first(problem)}: {problem}; {how}, or set data.skip_bad_rows=true to drop and count such rows."
    found = [
        f"{reason} in {count} {'rows' if count > 1 else 'row'} (first: {first(reason)})"
        for reason, count in sorted(counts.items())
    ]
    wanted = " and ".join(column.name for column in schema.columns if column.required)
    encoding = "" if schema.encoding == AUTO else f", in {encoding_name(schema.encoding)}"
    undecoded = broken(schema.encoding) in counts
    hint = "data.encoding=auto to have each file's encoding found out" if encoding else "data.encoding to its name"
    return (
        f"expected {wanted} in every row{encoding}, got {source.name} with {' and '.join(found)}; fix them, "
        f"{f'set {hint}, ' if undecoded else ''}or set data.skip_bad_rows=true to drop and count them."
    )


def _reason(problem: str) -> str:
    """Return a problem without its details in brackets."""
    return problem.partition(" (")[0]
