"""Columns of lists as flat arrays: `Ragged`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from datasets import Dataset


@dataclass(frozen=True)
class Ragged:
    """Lists as two arrays: list `i` is `values[offsets[i] : offsets[i + 1]]`.

    Attributes:
        values: Their values, `(n,)`.
        offsets: Where the lists begin and the last one ends, `(lists + 1,)` int64.
    """

    values: np.ndarray
    offsets: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Length of each list, `(lists,)`."""
        return np.diff(self.offsets)

    @property
    def rows(self) -> np.ndarray:
        """List that each value is in, `(n,)`."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.sizes)

    @classmethod
    def joined(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """Return the lists of all parts, one after the other."""
        sizes = np.concatenate([part.sizes for part in parts])
        # Parts may be slices of longer arrays.
        values = [part.values[part.offsets[0] : part.offsets[-1]] for part in parts]
        return cls(np.concatenate(values), offsets_of(sizes))

    def take(self, numbers: np.ndarray) -> "Ragged":
        """Return some of the lists."""
        sizes = self.sizes[numbers]
        offsets = offsets_of(sizes)
        places = np.repeat(self.offsets[numbers] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return Ragged(self.values[places], offsets)


def ragged(rows: Dataset, column: str) -> Ragged:
    """Return a column of lists of numbers, without a Python object for each row."""
    chunks = rows.data.column(column).chunks
    values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in chunks]
    sizes = [np.diff(chunk.offsets.to_numpy()) for chunk in chunks]
    none = np.zeros(0, dtype=np.int64)
    found = Ragged(np.concatenate(values or [none]), offsets_of(np.concatenate(sizes or [none])))
    # Selected rows have their numbers.
    return found if rows._indices is None else found.take(rows._indices.column(0).to_numpy())


def offsets_of(sizes: np.ndarray) -> np.ndarray:
    """Return where lists of these sizes begin, and where the last one ends, `(lists + 1,)` int64."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def last(values: np.ndarray, rows: np.ndarray, lists: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the last values of each list, at most `most`, and how many each list now has; 0 keeps all.

    Args:
        values: The values, `(n,)`.
        rows: Which list each is in, in order, `(n,)`.
        lists: Number of lists.
        most: Number of values to keep of each.
    """
    sizes = np.bincount(rows, minlength=lists)
    if not most:
        return values, sizes
    from_end = np.cumsum(sizes)[rows] - np.arange(len(rows))
    return values[from_end <= most], np.minimum(sizes, most)


def as_lists(values: np.ndarray, sizes: np.ndarray, kind: pa.DataType) -> pa.ListArray:
    """Return lists of these sizes as an Arrow array."""
    offsets = pa.array(offsets_of(sizes), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values, kind))
