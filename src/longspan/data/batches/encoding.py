"""Data sets of examples as streams, computed once and kept in the cache of `datasets`: `encoded` and `mapped_once`."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value

from longspan.data.columns.files import File
from longspan.data.columns.kept import Carried
from longspan.data.processor import Encoded, Processor, Unreadable
from longspan.data.sources.files.full_disk import needing_room
from longspan.errors import UserError
from longspan.machine.environment import cores

_SLOW_ROWS = 1000
"""Number of rows from which starting processes pays off."""


def encoded(
    dataset: Dataset, processor: Processor, data: Any, description: str, *, keep: Mapping[str, Carried] | None = None
) -> Dataset:
    """Return examples as a processor's streams, with a progress bar, and only once: the result is cached.

    Args:
        dataset: The processor's columns, the columns to keep, and `where`, as from
            `longspan.data.sources.loading.load`.
        processor: What makes streams of them.
        data: The recipe's `[data]`.
        description: The label of the progress bar.
        keep: The columns to keep, by their names in the result.

    Returns:
        The streams, `length` (positions of the main one), `removed` (positions left out) and the columns of `keep`;
        with `data.skip_bad_rows`, without the examples that the processor cannot read.

    Raises:
        UserError: A value cannot be converted, the processor refuses its settings, or it cannot read an example, or
            any with `data.skip_bad_rows`.
    """
    carried, streams = dict(keep or {}), processor.streams
    features = {name: stream.feature for name, stream in streams.items() if name not in carried}
    features |= {"length": Value("int32"), "removed": Value("int64")}
    for name, column in carried.items():
        features[name] = dataset.features[column.column] if column.feature is None else column.feature
    main, columns = next(iter(streams)), [column.name for column in processor.columns(data)]

    def examples(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        both = list(each_encoded(processor, {name: batch[name] for name in columns}, data))
        for where, (_, problem) in zip(batch["where"], both, strict=True):
            if problem and not data.skip_bad_rows:
                raise UserError(or_skip(f"{where}: {problem}"))
        found = [one for one, _ in both if one is not None]
        result: dict[str, list[Any]] = {
            name: [one.streams[name] for one in found] for name in streams if name not in carried
        }
        result["length"] = [len(one.streams[main]) for one in found]
        result["removed"] = [one.removed for one in found]
        for name, column in carried.items():
            rows = zip(batch[column.column], batch["where"], both, strict=True)
            convert = column.convert or _as_it_is
            result[name] = [convert(value, where) for value, where, (one, _) in rows if one is not None]
        return result

    kept = {name: [column.column, repr(features[name]), column.facts] for name, column in carried.items()}
    facts = [processor.fingerprint(), processor.facts(data), kept, _files(dataset, processor, data)]
    facts.append(data.skip_bad_rows)
    result = mapped_once(dataset, examples, Features(features), facts, description, slow=processor.slow)
    if len(dataset) and not len(result):
        raise UserError(
            f"expected examples that can be read, got none among {len(dataset):,} (first: {dataset[0]['where']}); "
            "restore their files, or use other data."
        )
    return result


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


def or_skip(problem: str) -> str:
    """Return the message about an example that cannot be read, with how to go on without it."""
    return f"{problem.removesuffix('.')}, or set data.skip_bad_rows=true to drop and count such rows."


def _as_it_is(value: Any, where: str) -> Any:
    return value


def _files(dataset: Dataset, processor: Processor, data: Any) -> str:
    """Return a hash of the sizes and times of the files that examples name: their content is no part of the table."""
    digest = hashlib.sha256()
    for column in processor.columns(data):
        for path in filter(None, dataset[column.name][:]) if isinstance(column, File) else ():
            status = Path(path).stat()
            digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def mapped_once(
    dataset: Dataset,
    function: Callable[..., Any],
    features: Features,
    facts: list[Any],
    description: str,
    batch_size: int = 128,
    *,
    slow: bool = False,
    with_indices: bool = False,
) -> Dataset:
    """Apply a function to batches of examples, unless its result is in the cache of `datasets`.

    Args:
        dataset: The examples.
        function: Maps a batch of them, in the data set's format, to the columns of `features`.
        features: The columns of the result; no others are kept.
        facts: Everything the result depends on besides the examples, as JSON.
        description: The label of the progress bar.
        batch_size: Examples read, encoded and written at a time; they may be long.
        slow: Whether many examples are worth a process for each core.
        with_indices: Whether the function also gets the numbers of these examples.
    """
    processes = cores()
    facts = [dataset._fingerprint, *facts]
    with needing_room():
        return dataset.map(
            function,
            with_indices=with_indices,
            batched=True,
            batch_size=batch_size,
            writer_batch_size=batch_size,
            remove_columns=dataset.column_names,
            features=features,
            num_proc=processes if slow and processes > 1 and len(dataset) >= _SLOW_ROWS else None,
            new_fingerprint=hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32],
            desc=description,
        )


def truncation_table(dataset: Dataset) -> dict[str, int | float]:
    """Summarise the result of `encoded`.

    Returns:
        `documents`; `tokens`, `median_length` and `longest`, in positions before truncation; `cut_documents` and
        `removed_tokens`, the numbers of truncated examples and of positions removed.
    """
    columns = dataset.with_format("numpy")
    removed = columns["removed"][:].astype(np.int64)
    full = columns["length"][:].astype(np.int64) + removed
    return {
        "documents": len(full),
        "tokens": int(full.sum()),
        "cut_documents": int((removed > 0).sum()),
        "removed_tokens": int(removed.sum()),
        "median_length": float(np.median(full)) if len(full) else 0.0,
        "longest": int(full.max(initial=0)),
    }
