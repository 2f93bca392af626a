"""Training examples that are drawn again in each epoch, and their batches: `DrawnExamples` and `EpochBatches`."""

import abc
from collections.abc import Iterator
from typing import Any, TypeAlias, TypeVar

import numpy as np
from datasets import Dataset
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Sampler

from longspan.data.batches.by_length import LengthBatches

E = TypeVar("E", covariant=True)

Index: TypeAlias = tuple[int, int]
"""An epoch and the number of an example, both counted from 0."""


class DrawnExamples(TorchDataset[E], abc.ABC):
    """Examples that differ from epoch to epoch, by `Index`.

    An example depends on the seed and its index alone, so a resumed run reads the same ones as an uninterrupted run.

    Args:
        seed: Seed of what is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __getitem__(self, index: Index) -> E:
        return self.draw(index, np.random.default_rng((self.seed, *index)))

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of examples, the same in each epoch."""

    @abc.abstractmethod
    def draw(self, index: Index, random: np.random.Generator) -> E:
        """Return the example at an index, where `random` is seeded with the seed and the index."""


class AugmentedExamples(DrawnExamples[dict[str, Any]]):
    """Training examples of a task whose `data.augmentation` changes them at random.

    Args:
        rows: The columns that the processor reads, and `labels`.
        processor: Processor that makes streams of them.
        data: The recipe's `[data]`.
        seed: Seed of the changes.
    """

    def __init__(self, rows: Dataset, processor: Any, data: Any, seed: int) -> None:
        super().__init__(seed)
        self.rows = rows.select_columns([*(column.name for column in processor.columns(data)), "labels"])
        self.processor, self.data, self.change = processor, data, data.augmentation

    def __len__(self) -> int:
        return len(self.rows)


class EpochBatches(Sampler[list[Index]]):
    """Batches of the indices of `DrawnExamples`.

    Args:
        batches: Batches of the numbers of examples.
    """

    def __init__(self, batches: LengthBatches) -> None:
        self.batches = batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0 up."""
        self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Index]]:
        for batch in self.batches:
            yield [(self.batches.epoch, row) for row in batch]
