"""Splitting off training rows: class by class, entire documents at random, or the end of a single document."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from datasets import Dataset

from longspan.data.columns.kinds import Column, Flags, Labels, Text, WordLabels
from longspan.data.columns.values import shown
from longspan.data.fingerprints import fingerprint
from longspan.data.sources.caching import cached
from longspan.data.sources.formats.schema import Row, Schema
from longspan.data.sources.locating import Source
from longspan.errors import UserError


def splits_one(dataset: Dataset, columns: Sequence[Column]) -> bool:
    """Return whether there is a single document to cut: the only column of a single row."""
    return len(dataset) == 1 and len(columns) == 1 and isinstance(columns[0], Text)


def split_off(
    dataset: Dataset,
    documents: np.ndarray,
    fractions: dict[str, float],
    seed: int,
    columns: Sequence[Column],
    stratify: str | None,
) -> dict[str, list[int]]:
    """Return the rows of each split and the rest as "train": each fraction, rounded but at least one document.

    Rows with the same document go to the same split. Fractions are of rows, or of documents where a column keeps the
    rows of each together; what is no multiple of a document is rounded.

    Args:
        dataset: The rows.
        documents: The number of each row's document, `(rows,)`, from 0 in the order of their first rows.
        fractions: The share of each split to split off.
        seed: Seed for choosing rows.
        columns: The columns of the rows.
        stratify: The column of classes to split class by class; a document with several is of the most frequent one.
            Without it, documents are drawn at random, evenly among those with each label of a `Labels` or `Flags`
            column: see `_by_rarest_label`. The first document with any label of a `Labels`, `Flags` or `WordLabels`
            column is never drawn.

    Raises:
        UserError: There are too few documents.
    """
    units = Units(documents)
    random = np.random.default_rng(seed)
    if stratify is not None:
        return units.rows(_by_class(dataset, units, fractions, random, stratify))
    together = [column.name for column in columns if isinstance(column, Text) and column.together]
    wanted = f"expected a document for each of the splits {', '.join(('train', *fractions))}, got"
    settings = " and ".join(f"data.{split}" for split in fractions)
    if len(units) <= len(fractions):
        found = f"{len(units)} different in column {together[0]!r}" if together else units.counted()
        joining = "" if together else ", join them into one"
        raise UserError(f"{wanted} {found}; add documents{joining}, or set {settings}.")
    if together:
        return units.rows(deal(list(range(len(units))), fractions, random))
    several = [column.name for column in columns if isinstance(column, Labels | Flags)]
    first = _first_examples(dataset, [*several, *(column.name for column in columns if isinstance(column, WordLabels))])
    kept = set(documents[first].tolist())
    free = [number for number in range(len(units)) if number not in kept]
    if len(free) <= len(fractions):
        raise UserError(
            f"{wanted} {units.counted()}, of which training keeps {len(kept)} as the first with a label; add "
            f"documents, or set {settings}."
        )
    if several:
        labels = units.united(dataset[several[0]][:])
        parts = _deal_evenly(_by_rarest_label(free, labels, random), fractions, random, units.sizes)
    else:
        parts = deal(free, fractions, random, units.sizes)
    parts["train"] += sorted(kept)
    return units.rows(parts)


class Units:
    """Documents by number, each with the rows that hold it.

    Attributes:
        of: The document of each row.
        sizes: Number of rows with each document.
    """

    def __init__(self, of: np.ndarray) -> None:
        self.of, self.sizes = of, np.bincount(of)

    def __len__(self) -> int:
        return len(self.sizes)

    def counted(self) -> str:
        """Their number, in words."""
        return _counted(len(self), len(self.of))

    def rows(self, parts: dict[str, list[int]]) -> dict[str, list[int]]:
        """Return the rows of the documents of each split, in order."""
        split_of = np.empty(len(self), dtype=np.int8)
        for split, numbers in enumerate(parts.values()):
            split_of[numbers] = split
        row_split = split_of[self.of]
        return {split: np.flatnonzero(row_split == number).tolist() for number, split in enumerate(parts)}

    def united(self, labels: Sequence[list[str]]) -> Sequence[list[str]]:
        """Return the labels of each document, those of all its rows; `labels` are those of each row."""
        if len(self) == len(self.of):
            return labels
        found: list[dict[str, None]] = [{} for _ in range(len(self))]
        for number, row in zip(self.of.tolist(), labels, strict=True):
            found[number].update(dict.fromkeys(row))
        return [list(each) for each in found]


def _counted(documents: int, rows: int) -> str:
    """Number of documents in the given number of rows, in words."""
    if documents == rows:
        return str(rows)
    return f"{rows} copies of one document" if documents == 1 else f"{documents} different ones in {rows} rows"


def _by_class(
    dataset: Dataset, units: Units, fractions: dict[str, float], random: np.random.Generator, name: str
) -> dict[str, list[int]]:
    labels: list[str] = dataset[name][:]
    names = sorted(set(labels))
    numbers = {label: number for number, label in enumerate(names)}
    # The documents with each label, and the label of each document: of most of its rows, or the first of these.
    pairs = units.of * len(names) + np.array([numbers[label] for label in labels])
    pairs, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    document, label = pairs // len(names), pairs % len(names)
    order = np.lexsort((first, -counts, document))
    label_of = label[order][np.unique(document[order], return_index=True)[1]]
    parts: dict[str, list[int]] = {split: [] for split in (*fractions, "train")}
    owed: Counter[str] = Counter()
    for number, each in enumerate(names):
        having = document[label == number]
        if len(having) <= len(fractions):
            found = _counted(len(having), int(counts[label == number].sum()))
            raise UserError(
                f"expected an example of class {shown(each)} for each of the splits "
                f"{', '.join(('train', *fractions))}, got {found} (first: "
                f"{dataset[int(first[label == number].min())]['where']}); add examples, remove the class, or set "
                f"{' and '.join(f'data.{split}' for split in fractions)}."
            )
        own = np.flatnonzero(label_of == number).tolist()
        if len(own) <= len(fractions):
            # Most documents with this label are copies with another one.
            parts["train"] += own
            continue
        for split, dealt in deal(own, fractions, random, units.sizes, owed).items():
            parts[split] += dealt
    trained = np.zeros(len(units), dtype=bool)
    trained[parts["train"]] = True
    for number in sorted(set(range(len(names))) - set(label[trained[document]].tolist())):
        # Only copies with other labels: one of them goes to training, from the split with most.
        having = set(document[label == number].tolist())
        split = max(parts, key=lambda split: len(having.intersection(parts[split])))
        moved = min(having.intersection(parts[split]))
        parts[split].remove(moved)
        parts["train"].append(moved)
    return parts


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


def deal(
    units: list[int],
    fractions: dict[str, float],
    random: np.random.Generator,
    sizes: np.ndarray | None = None,
    owed: Counter[str] | None = None,
) -> dict[str, list[int]]:
    """Deal documents to splits at random: each fraction, rounded but at least one, and the rest to "train".

    Args:
        units: Their numbers.
        fractions: The share of each split.
        random: Generator of random numbers.
        sizes: Number of rows with each document, by number, which fractions are then of; one, if None.
        owed: Number of rows that each split is still to have, as it got fewer of documents dealt before; updated in
            place.
    """
    order = random.permutation(units)
    sizes = np.ones(max(units) + 1, dtype=np.int64) if sizes is None else sizes
    return _deal(order, fractions, sizes, lambda left, size: iter(left.tolist()), owed)


def _deal(
    order: np.ndarray,
    fractions: dict[str, float],
    sizes: np.ndarray,
    preferred: Callable[[np.ndarray, int], Iterator[int]],
    owed: Counter[str] | None = None,
) -> dict[str, list[int]]:
    """Deal documents; `preferred` yields the remaining documents for a split of a given size, best first."""
    rows, parts = int(sizes[order].sum()), {}
    owed = Counter() if owed is None else owed
    for done, (split, fraction) in enumerate(fractions.items()):
        # One document is left for training and one for each remaining split.
        others = len(fractions) - done
        size = min(max(1, round(fraction * rows) + owed[split]), int(sizes[order].sum()) - others)
        parts[split] = _take(preferred(order, size), sizes, size, len(order) - others)
        owed[split] = size - int(sizes[parts[split]].sum())
        order = order[~np.isin(order, parts[split])]
    return {**parts, "train": order.tolist()}


def _take(order: Iterator[int], sizes: np.ndarray, wanted: int, most: int) -> list[int]:
    """Take documents in order, skipping those that do not fit, up to `wanted` rows: at least one, and at most
    `most`."""
    taken: list[int] = []
    rows, smallest = 0, -1
    for number in order:
        size = int(sizes[number])
        if rows + size <= wanted:
            taken.append(number)
            rows += size
            if rows == wanted or len(taken) == most:
                return taken
        elif smallest < 0 or size < sizes[smallest]:
            smallest = number
    # One more where that is nearer; a split has one at least, however large.
    if smallest >= 0 and (not taken or rows + sizes[smallest] - wanted < wanted - rows):
        taken.append(smallest)
    return taken


def _by_rarest_label(rows: list[int], labels: Sequence[list[str]], random: np.random.Generator) -> list[int]:
    """Order rows by the rarest of their labels, those without labels last; among equals at random.

    Any regular sample of them then has about its share of each label, rare ones first. So does the iterative
    stratification of Sechidis et al. 2011 (https://doi.org/10.1007/978-3-642-23808-6_10), which also starts with the
    rarest label.
    """
    counts = Counter(label for row in rows for label in labels[row])
    shuffled: list[int] = random.permutation(rows).tolist()
    return sorted(shuffled, key=lambda row: min(((counts[label], label) for label in labels[row]), default=(math.inf,)))


def _deal_evenly(
    order: list[int], fractions: dict[str, float], random: np.random.Generator, sizes: np.ndarray
) -> dict[str, list[int]]:
    """Deal documents at even distances from a random start, so that each part of their order is dealt alike."""

    def preferred(left: np.ndarray, size: int) -> Iterator[int]:
        count = max(1, round(size * len(left) / int(sizes[left].sum())))
        places = ((np.arange(count) + random.random()) * len(left) / count).astype(np.int64)
        yield from left[places].tolist()
        yield from random.permutation(np.delete(left, places)).tolist()

    return _deal(np.asarray(order), fractions, sizes, preferred)


def beginning(dataset: Dataset, share: float, column: Column) -> Dataset:
    """The beginning of the only document: a share of its bytes, up to the end of a character."""
    (where,) = dataset["where"]
    text = _bytes_of(dataset, column)
    return _part(dataset, column, where, "train", 0, _character_start(text, math.ceil(len(text) * share)))


def cut(dataset: Dataset, fractions: dict[str, float], columns: Sequence[Column]) -> dict[str, Dataset]:
    """Cut the only document according to shares of its bytes, moved on to the end of a character.

    The end becomes "test", what is before it "validation", and the rest "train".

    Raises:
        UserError: It is too short.
    """
    column = columns[0]
    assert isinstance(column, Text)
    where = dataset["where"][0]
    text = _bytes_of(dataset, column)
    parts = {}
    end, share = len(text), 0.0
    for split in ("test", "validation", "train"):
        if split in fractions or split == "train":
            share = 1.0 if split == "train" else share + fractions[split]
            # So that 0.05 of a hundred million is five million, and 0.1 rounds up as in int(0.9 * length).
            start = min(end, _character_start(text, len(text) - math.ceil(len(text) * share - 1e-6)))
            parts[split] = (start, end)
            end = start
    if any(start == end for start, end in parts.values()):
        raise UserError(
            f"expected text for each of the splits {', '.join(('train', *fractions))}, got only {len(text)} bytes in "
            f"{where}; use more text, or set {' and '.join(f'data.{split}' for split in fractions)}."
        )
    return {split: _part(dataset, column, where, split, *part) for split, part in parts.items()}


def _bytes_of(dataset: Dataset, column: Column) -> memoryview:
    return memoryview(dataset.with_format("arrow")[:][column.name][0].as_buffer())


def _character_start(text: memoryview, place: int) -> int:
    """The first place from `place` on at which a character starts, or the end."""
    while place < len(text) and text[place] & 0xC0 == 0x80:
        place += 1
    return place


def _part(dataset: Dataset, column: Column, where: str, split: str, start: int, end: int) -> Dataset:
    def rows() -> Iterator[Row]:
        text = _bytes_of(dataset, column)
        yield Row({column.name: str(text[start:end], "utf-8")}, f"{where}, bytes {start} to {end}")

    source = Source(where, [fingerprint(dataset), start, end], lambda schema: rows(), Schema((column,), {}))
    return cached(source, split, [column]).remove_columns(["problem", "encoding"])
