"""Training on rows of packed documents with masks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from longspan.data.text.long_documents import token_arrays
from longspan.tasks.excerpts import excerpt
from longspan.tasks.masked_words.likelihood import masked_losses
from longspan.tasks.masked_words.masking import Masking
from longspan.tasks.masked_words.rows import PackedBatches, PackedData, Packing, fixed_rows
from longspan.tasks.masked_words.scores import MaskedScores, masked_scores
from longspan.training import processes
from longspan.training.base import LongspanTrainer
from longspan.training.loader import Loader, data_seed


class MaskedTrainer(LongspanTrainer[MaskedScores]):
    """A `Trainer` that predicts the masked tokens in rows of packed documents, masked differently in every epoch.

    The loss is the mean over the masked tokens of all rows, processes and accumulated batches. Validation masks the
    same tokens each time, whatever the seed.

    Args:
        segment_length: tokens in a row.
        masking: what is masked.
        max_eval_tokens: maximum number of tokens that `score` reads; 0 means all.
        kwargs: what `Trainer` takes. Data sets are those of `longspan.data.text.long_documents.tokenize_documents`.

    Raises:
        UserError: when there are fewer tokens than one step reads.
    """

    def __init__(
        self, *args: Any, segment_length: int, masking: Masking, max_eval_tokens: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.masking, self.max_eval_tokens = masking, max_eval_tokens
        rows = self._train_batch_size * self.args.world_size
        self.packing = Packing(self.train_dataset["length"][:], rows, segment_length, data_seed(self.args))

    def get_train_dataloader(self) -> Loader:
        # No workers: there is little to wait for.
        data = PackedData(token_arrays(self.train_dataset), self.packing, self.masking)
        rank, world = self.args.process_index, self.args.world_size
        return Loader(data, batch_sampler=PackedBatches(self.packing.steps, self._train_batch_size, rank, world))

    def per_token_columns(self) -> Sequence[str]:
        return ("input_ids",)

    def batch_positions(self, epoch: int) -> list[int]:
        return [self._train_batch_size * self.packing.segment_length] * self.packing.steps

    def padding_fraction(self) -> float:
        return 0.0

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return this batch's share of the mean loss in nats per masked token; see `Trainer`."""
        # Without padding there is nothing to mask, and mixers take a shorter path.
        given = {name: tensor for name, tensor in inputs.items() if name != "attention_mask"}
        return super().compute_loss(model, given, return_outputs, num_items_in_batch)

    def validation_sizes(self) -> np.ndarray:
        lengths = np.asarray(self.eval_dataset["length"][:])
        return np.minimum(lengths, excerpt(lengths, self.max_eval_tokens))

    def score(self, dataset: Dataset) -> MaskedScores:
        """Return the scores of documents, or of an `excerpt` of `max_eval_tokens`. All processes share the work."""
        lengths = np.asarray(dataset["length"][:])
        scored = np.minimum(lengths, excerpt(lengths, self.max_eval_tokens))
        rows = fixed_rows(token_arrays(dataset), scored, self.packing.segment_length, self.masking)
        losses, found, wanted = masked_losses(
            self.model,
            rows[self.args.process_index :: self.args.world_size],
            self.args.per_device_eval_batch_size,
            progress=not self.args.disable_tqdm and self.is_world_process_zero(),
        )
        right = int((found == wanted).sum())
        return masked_scores(*processes.total([float(losses.sum(dtype=np.float64)), float(right), len(losses)]))
