"""Training on whole documents, in batches of similar length."""

from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from longspan.data.batches import LengthBatches, pad, padding_fraction
from longspan.errors import UserError
from longspan.training.base import LongspanTrainer


class LengthTrainer(LongspanTrainer):
    """A `Trainer` that batches by length.

    Args:
        batch_tokens: most padded tokens in one batch (a longer document goes alone); 0 for no limit.

    Raises:
        UserError: when there are several processes, which batches of no fixed size cannot be dealt out to evenly.
    """

    def __init__(self, *args: Any, batch_tokens: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.world_size > 1:
            raise UserError(
                f"training in batches by length takes one process, got {self.args.world_size}: start it without "
                "torchrun."
            )
        self.batch_tokens = batch_tokens

    def get_train_dataloader(self) -> DataLoader:
        return self._by_length(self.train_dataset, self._train_batch_size, shuffle=True)

    def get_eval_dataloader(self, eval_dataset: Dataset | None = None) -> DataLoader:
        return self._by_length(
            self.eval_dataset if eval_dataset is None else eval_dataset, self.args.eval_batch_size, shuffle=False
        )

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        return self.get_eval_dataloader(test_dataset)

    def padding_fraction(self) -> float:
        """Return the share of padding in an epoch's training batches, from 0 to 1."""
        return padding_fraction(
            self._batches(self.train_dataset, self._train_batch_size, shuffle=True), self.train_dataset["length"][:]
        )

    def _batches(self, dataset: Dataset, batch_size: int, *, shuffle: bool) -> LengthBatches:
        return LengthBatches(
            dataset["length"],
            batch_size,
            max_tokens=self.batch_tokens,
            shuffle=shuffle,
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
            drop_last=self.args.dataloader_drop_last and shuffle,
        )

    def _by_length(self, dataset: Dataset, batch_size: int, *, shuffle: bool) -> DataLoader:
        batches = self._batches(dataset, batch_size, shuffle=shuffle)
        loader = DataLoader(
            dataset.select_columns(["input_ids", "labels"]).with_format("numpy"),
            batch_sampler=batches,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type == "cuda",
        )
        prepared: DataLoader = self.accelerator.prepare(loader)
        return prepared


class Collator:
    """Pads a batch of examples on the right."""

    def __init__(self, pad_id: int) -> None:
        self.pad_id = pad_id

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return pad(examples, self.pad_id)
