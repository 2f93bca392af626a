"""Training of models that find evidence, and what they say about documents and questions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel

from longspan.data.batches.streams import Stream
from longspan.tasks.evidence.scores import EvidenceScores, evidence_scores
from longspan.tasks.evidence.tokens import Collator, collate, truth
from longspan.training.lengths import LengthTrainer, Loader, Rows, in_batches, scoring_batches


class EvidenceTrainer(LengthTrainer[EvidenceScores]):
    """A `LengthTrainer` for documents with questions; data sets are `longspan.tasks.evidence.tokens.tokenise`'s.

    It chooses the threshold of a model whenever it scores the validation split, before a checkpoint is saved.
    """

    def get_train_dataloader(self) -> Loader:
        return Loader(
            self.with_encoder_outputs(self.train_dataset, self.train_dataset),
            batch_sampler=self._training_batches(self.args.process_index),
            collate_fn=Collator(self.streams),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.pins,
        )

    def score(self, dataset: Dataset) -> EvidenceScores:
        logits = self._logits(dataset)
        if dataset is not self.eval_dataset:
            return evidence_scores(logits, truth(dataset), self.model.config.head.thresholds[0])
        scores = evidence_scores(logits, truth(dataset))
        self.model.config.head.thresholds = [scores.threshold]
        return scores

    def per_token_columns(self) -> Sequence[str]:
        # The parts of a document would no longer add up.
        return ()

    def rehearse(self, dataset: Dataset) -> None:
        self._logits(dataset)

    def validation_scores(self) -> EvidenceScores:
        scores = super().validation_scores()
        # Those of the epoch that was kept, whose weights came back without them.
        self.model.config.head.thresholds = [scores.threshold]
        return scores

    def _logits(self, dataset: Dataset) -> list[np.ndarray]:
        return evidence_logits(
            self.model,
            self.with_encoder_outputs(dataset, dataset),
            scoring_batches(dataset["length"][:], self.args.eval_batch_size, self.batch_tokens),
            streams=self.streams,
            **self.reporting(),
        )


@torch.no_grad()
def evidence_logits(
    model: PreTrainedModel,
    examples: Rows | Sequence[dict[str, Any]],
    batches: Sequence[Sequence[int]],
    *,
    streams: Mapping[str, Stream],
    progress: bool = False,
    after_batch: Callable[[], None] | None = None,
) -> list[np.ndarray]:
    """Return a model's logits for each question, `(p,)` float32. Several processes share the batches, and get all.

    Args:
        model: The model, switched to evaluation mode for the call.
        examples: Documents as `longspan.tasks.evidence.tokens.tokenise_document` gives them.
        batches: Row numbers, each exactly once; the same in all processes.
        streams: Those of texts.
        progress: Whether to show a progress bar on standard error.
        after_batch: Called after each batch.

    Raises:
        UserError: Another process stopped.
    """
    columns = ("input_ids", "part_lengths", "question_ids", "inputs_embeds")

    def logits(batch: Sequence[int]) -> list[list[np.ndarray]]:
        rows = [{name: row[name] for name in columns if name in row} for row in map(examples.__getitem__, batch)]
        inputs = {key: tensor.to(model.device) for key, tensor in collate(rows, streams).items()}
        found = iter(model(**inputs).logits.float().cpu().numpy())
        return [[next(found)[: len(row["part_lengths"])] for _ in row["question_ids"]] for row in rows]

    found = in_batches(model, batches, logits, progress=progress, after_batch=after_batch)
    by_row = {row: own for batch, rows in found for row, own in zip(batch, rows, strict=True)}
    return [question for row in sorted(by_row) for question in by_row[row]]
