"""Impressions that repeat one another: `numbered`, and `draw`, which keeps them in one split."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
from datasets import Dataset

from longspan.data.config import DataConfig
from longspan.data.sources.splitting import Units, deal
from longspan.errors import UserError
from longspan.tasks.recommendation.ragged import Ragged, ragged


def shares(data: DataConfig, given: Collection[str]) -> dict[str, float]:
    """Return the share of each split that is drawn from the training split, as it is not among those given."""
    wanted = {"validation": data.validation_fraction, "test": data.test_fraction}
    return {split: share for split, share in wanted.items() if share and split not in given and "train" in given}


def documents(splits: Mapping[str, Dataset], *, histories: bool) -> dict[str, np.ndarray]:
    """Return a number for each impression of each split, `(n,)` int64: copies of one another have the same.

    Copies have the same user, time and candidates, whatever was clicked.

    Args:
        splits: Impressions with the columns of `longspan.tasks.recommendation.impressions.FEATURES`.
        histories: Whether they also have the same history. Those of click logs depend on the split.
    """
    tables = {split: rows.select_columns(["user", "time"]).with_format("arrow")[:] for split, rows in splits.items()}
    both = pa.concat_tables(tables.values())
    lists = ["candidates", *(["history"] if histories else [])]
    columns: list[np.ndarray | Ragged] = [codes(both["user"]), both["time"].cast(pa.float64()).to_numpy()]
    columns += [Ragged.joined([ragged(rows, name) for rows in splits.values()]) for name in lists]
    ends = np.cumsum([len(rows) for rows in splits.values()])
    return dict(zip(splits, np.split(numbered(columns), ends[:-1]), strict=True))


def numbered(columns: Sequence[np.ndarray | Ragged]) -> np.ndarray:
    """Return a number for each row, `(n,)` int64, from 0 in the order of first rows: equal rows have the same one.

    Args:
        columns: What makes rows equal: numbers `(n,)`, where NaN equals NaN, and lists of integers.
    """
    found: np.ndarray | np.uint64 = np.uint64(0)
    for column in columns:
        if isinstance(column, Ragged):
            places = np.arange(len(column.values)) - column.offsets[:-1][column.rows]
            items = _mixed(_mixed(places) + column.values.astype(np.uint64))
            # Sums of consecutive items, modulo 2^64.
            sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(items)])
            part = np.diff(sums[column.offsets]) + column.sizes.astype(np.uint64)
        else:
            part = np.unique(column, return_inverse=True)[1]
        found = _mixed(found + part.astype(np.uint64))
    # Hashes of 64 bits: two of 10^7 different rows are taken for copies with a probability of about 10^-6.
    first, same = np.unique(found, return_index=True, return_inverse=True)[1:]
    place = np.empty(len(first), np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    numbers: np.ndarray = place[same]
    return numbers


def draw(documents: np.ndarray, fractions: dict[str, float], seed: int) -> dict[str, list[int]]:
    """Draw impressions for other splits at random; the rest is for training. Copies go to the same split.

    Args:
        documents: The number of each impression, `(n,)`, as `numbered` gives it.
        fractions: The share of each split.
        seed: Seed for choosing them.

    Returns:
        The impressions of each split, in order.

    Raises:
        UserError: There are too few.
    """
    units = Units(documents)
    if len(units) <= len(fractions):
        raise UserError(
            f"expected an impression for each of the splits {', '.join(('train', *fractions))}, got {units.counted()}; "
            f"add some, or set {' and '.join(f'data.{split}' for split in fractions)}."
        )
    return units.rows(deal(list(range(len(units))), fractions, np.random.default_rng(seed), units.sizes))


def codes(texts: pa.ChunkedArray) -> np.ndarray:
    """Return a number for each text, `(n,)` int64, the same for the same; -1 for none."""
    found = texts.combine_chunks().dictionary_encode()
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    numbers: np.ndarray = found.indices.fill_null(-1).to_numpy().astype(np.int64)
    return numbers


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return well mixed bits of 64-bit numbers (splitmix64, https://prng.di.unimi.it/splitmix64.c)."""
    with np.errstate(over="ignore"):
        mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
