"""Batches that a sampler has shared among processes: `Loader`."""

from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader


class Loader(DataLoader[dict[str, Tensor]]):
    """A loader of batches that a batch sampler has already shared among processes.

    It tells the sampler about epochs, which the Trainer tells only to loaders. Accelerate, which usually prepares
    loaders, is not involved. It would deal entire batches to processes, the longest documents to one and the shortest
    to another, and fill the last round with repeated rows.
    """

    batch_sampler: Any

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)
