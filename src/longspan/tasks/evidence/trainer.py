"""Training of models that find evidence, and what they say about documents and questions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from datasets.utils import tqdm
from transformers import PreTrainedModel

from longspan.data.batches.streams import Stream
from longspan.tasks.evidence.scores import EvidenceScores, evidence_scores
from longspan.tasks.evidence.tokens import Collator, collate, truth
from longspan.training import processes
from longspan.training.encoder_outputs import WithOutputs
from longspan.training.lengths import LengthTrainer, Loader, Rows, computed_together, scoring_batches


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
            progress=not self.args.disable_tqdm and self.is_world_process_zero(),
            after_batch=self._scored_a_batch,
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
    columns = ["input_ids", "part_lengths", "question_ids", "inputs_embeds"]
    dataset = examples.rows if isinstance(examples, WithOutputs) else examples
    if isinstance(dataset, Dataset):
        lengths, asked = dataset["part_lengths"][:], dataset["question_ids"][:]
    else:
        lengths, asked = ([row[name] for row in dataset] for name in columns[1:3])
    sizes = [(len(parts), len(questions)) for parts, questions in zip(lengths, asked, strict=True)]
    starts = np.concatenate([[0], np.cumsum([parts * questions for parts, questions in sizes])]).astype(int)

    def own_logits() -> torch.Tensor:
        result = torch.zeros(int(starts[-1]))
        mine = batches[processes.rank() :: processes.count()]
        for batch in tqdm(mine, desc="Scoring", unit="batch", leave=None, disable=not progress):
            rows = [{name: row[name] for name in columns if name in row} for row in map(examples.__getitem__, batch)]
            inputs = {key: tensor.to(model.device) for key, tensor in collate(rows, streams).items()}
            found, first = model(**inputs).logits.float().cpu(), 0
            for row in batch:
                parts, questions = sizes[row]
                result[starts[row] : starts[row + 1]] = found[first : first + questions, :parts].flatten()
                first += questions
            if after_batch is not None:
                after_batch()
        return result

    flat = computed_together(model, own_logits).numpy()
    return [
        flat[starts[row] + number * parts : starts[row] + (number + 1) * parts]
        for row, (parts, questions) in enumerate(sizes)
        for number in range(questions)
    ]
