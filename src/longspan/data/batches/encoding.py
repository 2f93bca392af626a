"""Data sets of examples as streams, computed once and kept in the cache of `datasets`: `encoded` and `mapped_once`."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value

from longspan.data.batches.streams import measured
from longspan.data.batches.unreadable import each_encoded, refusal
from longspan.data.columns.files import File
from longspan.data.columns.kept import Carried
from longspan.data.fingerprints import fingerprint
from longspan.data.processor import Processor, Unreadable
from longspan.data.sources.files.full_disk import needing_room
from longspan.machine.limits import cores

#: The columns with the lengths of the `measured` streams.
LENGTHS = ("length", "second_length")

_SLOW_ROWS = 1000
"""Number of rows from which starting processes pays off."""

_ROWS, _MOST_ROWS, _BYTES = 128, 1024, 1 << 20
"""Examples encoded at a time: more than `_ROWS` only if they have few bytes."""


def encoded(
    dataset: Dataset, processor: Processor, data: Any, description: str, *, keep: Mapping[str, Carried] | None = None
) -> Dataset:
    """Return examples as a processor's streams, with a progress bar, and only once: the result is cached.

    Args:
        dataset: The processor's columns, the columns to keep, and `where`, as from
            `longspan.data.sources.loading.load`.
        processor: Processor that makes streams of them.
        data: The recipe's `[data]`.
        description: The label of the progress bar.
        keep: The columns to keep, by their names in the result.

    Returns:
        The streams, `length` (positions of the main one), `second_length` if two are `measured`, `removed` (positions
        left out of them) and the columns of `keep`.

    Raises:
        Unreadable: The processor cannot read an example.
        UserError: A value cannot be converted, or the processor refuses its settings.
    """
    carried, streams = dict(keep or {}), processor.streams
    features = {name: stream.feature for name, stream in streams.items() if name not in carried}
    sizes = dict(zip(LENGTHS, measured(streams), strict=False))
    features |= {**dict.fromkeys(sizes, Value("int32")), "removed": Value("int64")}
    for name, column in carried.items():
        features[name] = dataset.features[column.column] if column.feature is None else column.feature
    columns = [column.name for column in processor.columns(data)]

    def examples(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows = {name: batch[name] for name in columns}
        try:
            found = processor.encode(rows, data)
        except Unreadable:
            for where, (_, problem) in zip(batch["where"], each_encoded(processor, rows, data), strict=True):
                if problem:
                    raise refusal(where, problem) from None
            raise
        result: dict[str, list[Any]] = {
            name: [stream.flat(one.streams[name]) for one in found]
            for name, stream in streams.items()
            if name not in carried
        }
        for size, name in sizes.items():
            result[size] = [len(one.streams[name]) for one in found]
        result["removed"] = [one.removed for one in found]
        for name, column in carried.items():
            values, convert = batch[column.column], column.convert
            result[name] = values if convert is None else list(map(convert, values, batch["where"]))
        return result

    kept = {name: [column.column, repr(features[name]), column.facts] for name, column in carried.items()}
    facts = [processor.fingerprint(), processor.facts(data), kept, file_facts(dataset, processor, data)]
    # Files, which may be long, are not in the table.
    files = any(isinstance(column, File) for column in processor.columns(data))
    mean = dataset.data.nbytes // max(1, dataset.data.num_rows)
    rows = _ROWS if files else min(_MOST_ROWS, max(_ROWS, _BYTES // max(1, mean)))
    return mapped_once(dataset, examples, Features(features), facts, description, rows, slow=processor.slow)


def file_facts(dataset: Dataset, processor: Processor, data: Any) -> str:
    """Return a hash of the sizes and times of the files that examples name: their content is no part of the table."""
    digest = hashlib.sha256()
    for column in processor.columns(data):
        if not isinstance(column, File):
            continue
        values = dataset.select_columns([column.name]).with_format("arrow")[:][column.name]
        for path in filter(None, column.paths(values)):
            status = Path(path).stat()
            digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def mapped_once(
    dataset: Dataset,
    function: Callable[..., Any],
    features: Features,
    facts: list[Any],
    description: str,
    batch_size: int = _ROWS,
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
    facts = [fingerprint(dataset), *facts]
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


def lengths(dataset: Dataset) -> np.ndarray:
    """Return the lengths of what `encoded` returned, `(n,)` int64, or `(n, 2)` where two streams are measured."""
    found = [np.asarray(dataset[name][:], dtype=np.int64) for name in LENGTHS if name in dataset.column_names]
    return found[0] if len(found) == 1 else np.stack(found, 1)


def truncation_table(dataset: Dataset) -> dict[str, int | float]:
    """Summarise the result of `encoded`. The length of an example is the sum over the streams that are measured.

    Returns:
        `documents`; `tokens`, `median_length` and `longest`, in positions before truncation; `cut_documents` and
        `removed_tokens`, the numbers of truncated examples and of positions removed.
    """
    removed = np.asarray(dataset["removed"][:], dtype=np.int64)
    full = lengths(dataset).reshape(len(removed), -1).sum(1) + removed
    return {
        "documents": len(full),
        "tokens": int(full.sum()),
        "cut_documents": int((removed > 0).sum()),
        "removed_tokens": int(removed.sum()),
        "median_length": float(np.median(full)) if len(full) else 0.0,
        "longest": int(full.max(initial=0)),
    }
