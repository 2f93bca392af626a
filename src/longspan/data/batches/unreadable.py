"""Bad rows that only a processor finds, such as damaged recordings: named, or left out and counted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from datasets import Dataset, DatasetDict

from longspan.data.columns.kinds import Column
from longspan.data.processor import Encoded, Processor, Unreadable
from longspan.data.sources.duplicates import count_duplicates, documents
from longspan.data.sources.loading import Splits, check_labels
from longspan.errors import UserError

#: How tables count them.
UNREADABLE = "unreadable"
_AT_ONCE = 128

Learn = Callable[[Dataset], Processor]


def each_encoded(
    processor: Processor, rows: Mapping[str, Sequence[Any]], data: Any
) -> Iterator[tuple[Encoded | None, str]]:
    """Yield each row's streams, or None and why it cannot be read; `rows` has a list for each column."""
    count = len(next(iter(rows.values())))
    try:
        together = processor.encode(rows, data) if count else []
    except Unreadable:
        together = None
    for number in range(count):
        try:
            one = {name: [values[number]] for name, values in rows.items()}
            yield (processor.encode(one, data) if together is None else together[number : number + 1])[0], ""
        except Unreadable as error:
            yield None, str(error)


def refusal(where: str, problem: str) -> Unreadable:
    """Return the error about a row that cannot be read, with how to go on without it."""
    rest = "or set data.skip_bad_rows=true to drop and count such rows."
    return Unreadable(f"{where}: {problem.removesuffix('.')}, {rest}")


def unreadable(processor: Processor, rows: Dataset, data: Any) -> Iterator[tuple[int, str]]:
    """Yield the number of each row that a processor cannot read, and why."""
    columns = [column.name for column in processor.columns(data)]
    number = 0
    for batch in rows.select_columns(columns).iter(_AT_ONCE):
        for _, problem in each_encoded(processor, batch, data):
            if problem:
                yield number, problem
            number += 1


def misfits(learn: Learn, rows: Dataset, data: Any) -> Iterator[tuple[int, str]]:
    """Yield the number of each row that `learn` cannot read, and why; if it reads all, of those that fit few others.

    Rows fit each other if the processor of one alone reads the other, such as recordings with the same sensors.
    """
    read_all = True
    for number in range(len(rows)):
        if isinstance(one := _of_one(learn, rows, number), Unreadable):
            read_all = False
            yield number, str(one)
    if read_all:
        yield from _minority(learn, rows, data).items()


def _minority(learn: Learn, rows: Dataset, data: Any) -> dict[int, str]:
    """Return the rows outside the largest group of those that fit each other, and why they do not fit."""
    fewest: dict[int, str] | None = None
    seen: set[int] = set()
    for number in range(len(rows)):
        if number in seen or not isinstance(one := _of_one(learn, rows, number), Processor):
            continue
        others = dict(unreadable(one, rows, data))
        seen |= {number, *range(len(rows))} - (others.keys() - {number})
        if fewest is None or len(others) < len(fewest):
            fewest = others
        if 2 * len(others) <= len(rows):
            # No other group is larger.
            break
    return fewest or {}


def _of_one(learn: Learn, rows: Dataset, number: int) -> Processor | Exception:
    try:
        return learn(rows.select([number]))
    except Exception as error:
        return error


def readable(loaded: Splits, learn: Learn, data: Any, columns: Sequence[Column]) -> Splits:
    """Return splits without the rows that a processor learned from the training split cannot read, counted.

    Raises:
        UserError: No training row is left, or labels of other splits are not among those that are.
    """
    while True:
        try:
            processor = learn(loaded.splits["train"])
        except Exception:
            bad = {"train": dict(misfits(learn, loaded.splits["train"], data))}
        else:
            bad = {name: dict(unreadable(processor, rows, data)) for name, rows in loaded.splits.items()}
        if not any(bad.values()):
            break
        loaded = _without(loaded, bad)
    check_labels(loaded.splits, columns, training=True)
    # Files that are empty are not copies of a document.
    duplicates = count_duplicates(documents(loaded.splits, columns)) if loaded.duplicates else {}
    return replace(loaded, duplicates=duplicates)


def _without(loaded: Splits, bad: Mapping[str, Mapping[int, str]]) -> Splits:
    splits = {name: good_rows(rows, bad.get(name, {}), name) for name, rows in loaded.splits.items()}
    count = loaded.skipped.get(UNREADABLE, 0) + sum(map(len, bad.values()))
    left = DatasetDict({name: rows for name, rows in splits.items() if len(rows)})
    return replace(loaded, splits=left, skipped={**loaded.skipped, UNREADABLE: count})


def good_rows(rows: Dataset, bad: Mapping[int, str], split: str) -> Dataset:
    """Return the rows that are not bad. Raises UserError if no row is left, unless the rows validate or test a
    model."""
    good = [number for number in range(len(rows)) if number not in bad]
    if not good and split not in ("validation", "test"):
        number, problem = next(iter(bad.items()))
        why = problem.rpartition("; ")[0] or problem
        raise UserError(
            f"expected examples that can be read, got only bad rows (first: {rows[number]['where']}: {why}); restore "
            "their files, or use other data."
        )
    return rows.select(good) if bad else rows
