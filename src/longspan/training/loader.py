"""Batches that a sampler has shared among processes: `Loader`; and the seed of their order: `data_seed`."""

from typing import Any

from torch.utils.data import DataLoader
from transformers import TrainingArguments


class Loader(DataLoader[Any]):
    """A loader of batches that a batch sampler has already shared among processes.

    It tells the sampler about epochs, which the Trainer tells only to loaders. Accelerate, which usually prepares
    loaders, is not involved. It would deal entire batches to processes, the longest documents to one and the shortest
    to another, and fill the last round with repeated rows.
    """

    batch_sampler: Any

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)


def data_seed(arguments: TrainingArguments) -> int:
    """Return the seed of the order of training examples, and of what is drawn for them."""
    return arguments.seed if arguments.data_seed is None else arguments.data_seed
