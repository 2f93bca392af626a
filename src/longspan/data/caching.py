"""Rows kept as Arrow files in the cache of `datasets`, and read from there: `cached`.

A file's name is a fingerprint of what the rows depend on (paths, sizes, times, columns), so a second run looks at the
files' dates only, and a changed file is read again.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, NamedSplit, Value
from datasets.exceptions import DatasetGenerationError

from longspan.data.columns import Column
from longspan.data.finding import SPLITS, Source
from longspan.data.opening import spell
from longspan.data.schema import Schema
from longspan.data.tables import MALFORMED
from longspan.errors import UserError

_ROWS_VERSION = 3
"""Raise this when the same files would give other rows, so that what is in users' caches is not used."""

_PLACES = {"where": Value("string"), "problem": Value("string")}


def read_splits(sources: dict[str, Source], schema: Schema, skip: bool) -> tuple[dict[str, Dataset], dict[str, int]]:
    """Read each split, without its bad rows; return the splits, and how many rows were left out, by reason.

    Args:
        sources: The splits.
        schema: What their rows have.
        skip: Whether bad rows are left out.

    Raises:
        UserError: Rows are bad and not to be left out, or no row of training is good.
    """
    skipped: dict[str, int] = {}
    splits: dict[str, Dataset] = {}
    for split, source in sorted(sources.items(), key=lambda item: SPLITS.index(item[0])):
        rows = _without_bad_rows(cached(source, split, schema.columns), source, schema, skip, skipped)
        if len(rows):
            splits[split] = rows
        elif split == "train":
            raise UserError(f"expected documents in {source.name}, but every row is bad: mend them or use other data.")
    return splits, skipped


def cached(source: Source, split: str, columns: Sequence[Column]) -> Dataset:
    """Write the rows to the cache unless they are there, bad ones included so that they need not be found again.

    Args:
        source: The rows.
        split: What they are.
        columns: What they have.

    Returns:
        The columns by their names, `where` and `problem`, which is empty for good rows.
    """
    # A file is found again only as the same split.
    facts = [_ROWS_VERSION, split, source.facts]
    features = {column.name: column.feature for column in columns} | _PLACES

    def examples() -> Iterator[dict[str, Any]]:
        for row in source.rows():
            values = {column.name: row.values.get(column.name) for column in columns}
            yield {**values, "where": row.where, "problem": row.problem}

    try:
        return Dataset.from_generator(
            examples,
            features=Features(features),
            split=NamedSplit(split),
            fingerprint=hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32],
            # Documents may be long: with the default of 1,000 rows, a thousand books would be in memory.
            writer_batch_size=100,
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise


def _without_bad_rows(dataset: Dataset, source: Source, schema: Schema, skip: bool, skipped: dict[str, int]) -> Dataset:
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

    # In the order of the rows. Of problems with details the first is told, the others with their number.
    for problem in filter(None, problems.unique().to_pylist()):
        if _reason(problem) != problem:
            how = MALFORMED.get(_reason(problem), "mend it")
            return f"{first(problem)}: {problem}: {how}, or set data.skip_bad_rows=true to drop and count such rows."
    found = [
        f"{reason} in {count} {'rows' if count > 1 else 'row'} (first: {first(reason)})"
        for reason, count in sorted(counts.items())
    ]
    wanted = " and ".join(column.name for column in schema.columns if column.required)
    return (
        f"expected {wanted} in every row, in {spell(schema.encoding)}, but {source.name} has {' and '.join(found)}: "
        "mend them, or set data.skip_bad_rows=true to drop and count them."
    )


def _reason(problem: str) -> str:
    """A problem without its details, which follow in brackets."""
    return problem.partition(" (")[0]
