"""Batches for examples that are drawn anew in each epoch: `EpochBatches`."""

from collections.abc import Iterator

from torch.utils.data import Sampler

from longspan.data.batches.by_length import LengthBatches


class EpochBatches(Sampler[list[tuple[int, int]]]):
    """Batches of pairs, the epoch and the number of a row: for examples that differ from epoch to epoch."""

    def __init__(self, batches: LengthBatches) -> None:
        self.batches = batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0 up."""
        self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for batch in self.batches:
            yield [(self.batches.epoch, row) for row in batch]
