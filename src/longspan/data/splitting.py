"""Splitting off training rows: class by class, entire rows at random, or the end of a single document."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from datasets import Dataset

from longspan.data.caching import cached
from longspan.data.cells import shown
from longspan.data.columns import Column, Flags, Labels, Text, WordLabels
from longspan.data.finding import Source
from longspan.data.schema import Row
from longspan.errors import UserError


def split_off(
    dataset: Dataset, fractions: dict[str, float], seed: int, columns: Sequence[Column], stratify: str | None
) -> dict[str, Dataset]:
    """Split off each fraction, rounded but at least one row, and leave the rest as "train".

    Args:
        dataset: The rows.
        fractions: The share of each split to split off.
        seed: Seed for choosing rows.
        columns: The columns of the rows.
        stratify: The column of classes to split class by class. Without it, a single document that is the only column
            of a single row is cut, and its end split off; from several rows, entire ones are drawn at random, but never
            the first one with any label of a `Labels`, `Flags` or `WordLabels` column, and evenly among the rows with
            each label of a `Labels` or `Flags` column: see `_by_rarest_label`. Rows with the same text in a column that
            keeps them together are one row.

    Raises:
        UserError: There are too few rows.
    """
    if stratify is not None:
        return _by_class(dataset, fractions, seed, stratify)
    if len(dataset) == 1 and len(columns) == 1 and isinstance(columns[0], Text):
        return _cut(dataset, fractions, columns[0])
    kept_together = [column.name for column in columns if isinstance(column, Text) and column.together]
    if kept_together:
        return _by_text(dataset, fractions, seed, kept_together[0])
    if len(dataset) <= len(fractions):
        raise UserError(
            f"expected a document for each of the splits {', '.join(('train', *fractions))}, got {len(dataset)}; add "
            f"documents, join them into one, or set {' and '.join(f'data.{split}' for split in fractions)}."
        )
    several = [column.name for column in columns if isinstance(column, Labels | Flags)]
    kept = _first_examples(dataset, [*several, *(column.name for column in columns if isinstance(column, WordLabels))])
    free = [number for number in range(len(dataset)) if number not in kept]
    if len(free) <= len(fractions):
        raise UserError(
            f"expected a document for each of the splits {', '.join(('train', *fractions))}, got {len(dataset)}, of "
            f"which training keeps {len(kept)} as the first with a label; add documents, or set "
            f"{' and '.join(f'data.{split}' for split in fractions)}."
        )
    random = np.random.default_rng(seed)
    if several:
        parts = _deal_evenly(_by_rarest_label(free, dataset[several[0]][:], random), fractions, random)
    else:
        parts = deal(free, fractions, random)
    parts["train"] += kept
    return _select(dataset, parts)


def _by_class(dataset: Dataset, fractions: dict[str, float], seed: int, name: str) -> dict[str, Dataset]:
    rows: dict[str, list[int]] = {}
    for number, label in enumerate(dataset[name][:]):
        rows.setdefault(label, []).append(number)
    random = np.random.default_rng(seed)
    parts: dict[str, list[int]] = {split: [] for split in (*fractions, "train")}
    for label in sorted(rows):
        count = len(rows[label])
        if count <= len(fractions):
            wanted = ", ".join(("train", *fractions))
            raise UserError(
                f"expected an example of class {shown(label)} for each of the splits {wanted}, got {count} (first: "
                f"{dataset[rows[label][0]]['where']}); add examples, remove the class, or set "
                f"{' and '.join(f'data.{split}' for split in fractions)}."
            )
        for split, numbers in deal(rows[label], fractions, random).items():
            parts[split] += numbers
    return _select(dataset, parts)


def _by_text(dataset: Dataset, fractions: dict[str, float], seed: int, name: str) -> dict[str, Dataset]:
    rows: dict[bytes, list[int]] = {}
    for number, row in enumerate(dataset.select_columns([name])):
        rows.setdefault(hashlib.sha256(row[name].encode()).digest(), []).append(number)
    if len(rows) <= len(fractions):
        raise UserError(
            f"expected a document for each of the splits {', '.join(('train', *fractions))}, got {len(rows)} different "
            f"in column {name!r}; add documents, or set {' and '.join(f'data.{split}' for split in fractions)}."
        )
    same = list(rows.values())
    parts = deal(list(range(len(same))), fractions, np.random.default_rng(seed))
    return _select(
        dataset, {split: [row for each in numbers for row in same[each]] for split, numbers in parts.items()}
    )


def _first_examples(dataset: Dataset, names: Sequence[str]) -> list[int]:
    """Return the rows that are the first with any of their labels, in order."""
    found = set()
    for name in names:
        seen: set[str] = set()
        for number, labels in enumerate(dataset[name][:]):
            if not seen.issuperset(labels or ()):
                seen.update(labels)
                found.add(number)
    return sorted(found)


def _select(dataset: Dataset, parts: dict[str, list[int]]) -> dict[str, Dataset]:
    return {split: dataset.select(sorted(numbers)) for split, numbers in parts.items()}


def deal(rows: list[int], fractions: dict[str, float], random: np.random.Generator) -> dict[str, list[int]]:
    """Deal rows to splits at random: each fraction, rounded but at least one row, and the rest to "train"."""
    order, start = random.permutation(rows), 0
    parts = {}
    for split, size in _sizes(len(rows), fractions).items():
        parts[split] = order[start : start + size].tolist()
        start += size
    return {**parts, "train": order[start:].tolist()}


def _sizes(rows: int, fractions: dict[str, float]) -> dict[str, int]:
    """Return how many of so many rows each split gets; the rest is for training."""
    sizes: dict[str, int] = {}
    for done, (split, fraction) in enumerate(fractions.items()):
        # One row is left for training and one for each remaining split.
        most = rows - sum(sizes.values()) - (len(fractions) - done)
        sizes[split] = min(max(1, round(fraction * rows)), most)
    return sizes


def _by_rarest_label(rows: list[int], labels: Sequence[list[str]], random: np.random.Generator) -> list[int]:
    """Order rows by the rarest of their labels, those without labels last; among equals at random.

    Every so-many-th of them then has about its share of each label, rare ones first, as in the iterative stratification
    of Sechidis et al. 2011 (https://doi.org/10.1007/978-3-642-23808-6_10), which starts with the rarest label too.
    """
    counts = Counter(label for row in rows for label in labels[row])
    shuffled: list[int] = random.permutation(rows).tolist()
    return sorted(shuffled, key=lambda row: min(((counts[label], label) for label in labels[row]), default=(math.inf,)))


def _deal_evenly(order: list[int], fractions: dict[str, float], random: np.random.Generator) -> dict[str, list[int]]:
    """Deal rows to splits at even distances from a random start, so that each stretch of them is dealt alike."""
    rest, parts = np.asarray(order), {}
    for split, size in _sizes(len(order), fractions).items():
        taken = ((np.arange(size) + random.random()) * len(rest) / size).astype(np.int64)
        parts[split] = rest[taken].tolist()
        rest = np.delete(rest, taken)
    return {**parts, "train": rest.tolist()}


def _cut(dataset: Dataset, fractions: dict[str, float], column: Text) -> dict[str, Dataset]:
    """Cut the only document according to shares of its bytes, moved on to the end of a character."""
    where = dataset["where"][0]
    text = memoryview(dataset.with_format("arrow")[:][column.name][0].as_buffer())
    parts = {}
    end, share = len(text), 0.0
    for split in ("test", "validation", "train"):
        if split in fractions or split == "train":
            share = 1.0 if split == "train" else share + fractions[split]
            # So that 0.05 of a hundred million is five million, and 0.1 rounds up as in int(0.9 * length).
            start = len(text) - math.ceil(len(text) * share - 1e-6)
            while start < end and text[start] & 0xC0 == 0x80:
                start += 1
            parts[split] = (start, end)
            end = start
    if any(start == end for start, end in parts.values()):
        raise UserError(
            f"expected text for each of the splits {', '.join(('train', *fractions))}, got only {len(text)} bytes in "
            f"{where}; use more text, or set {' and '.join(f'data.{split}' for split in fractions)}."
        )
    return {split: _part(dataset, column, where, split, *part) for split, part in parts.items()}


def _part(dataset: Dataset, column: Text, where: str, split: str, start: int, end: int) -> Dataset:
    def rows() -> Iterator[Row]:
        text = memoryview(dataset.with_format("arrow")[:][column.name][0].as_buffer())
        yield Row({column.name: str(text[start:end], "utf-8")}, f"{where}, bytes {start} to {end}")

    source = Source(where, [dataset._fingerprint, start, end], rows)
    return cached(source, split, [column]).remove_columns(["problem", "encoding"])
