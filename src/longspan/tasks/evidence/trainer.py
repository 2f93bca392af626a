"""Training of models that find evidence, and what they say about documents and questions."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from datasets.utils import tqdm
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from longspan.data.batches.streams import Stream
from longspan.models.parts.losses import IGNORED
from longspan.results.parts import Parts
from longspan.tasks.base.mixing import best_scales, ratio_of_sums
from longspan.tasks.evidence.scores import EvidenceScores, evidence_scores, recall
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
        outputs, gold, wide = self._logits(dataset), truth(dataset), self.model.wide
        validation = dataset is self.eval_dataset
        if wide is not None:
            if validation:
                wide.scales.copy_(_scales(outputs, gold))
            self.remember_parts(dataset, functools.partial(compare_recall, self.model, outputs, gold))
        logits = combined(self.model, outputs)
        if not validation:
            return evidence_scores(logits, gold, self.model.config.head.thresholds[0])
        scores = evidence_scores(logits, gold)
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


def combined(model: Any, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Logits of each question, `(p,)`, from those of both parts, `(p, 2)`; of a model of one part, as they are."""
    wide = model.wide
    if wide is None:
        return [*outputs]
    return [wide.combined(*torch.from_numpy(each).unbind(1)).numpy() for each in outputs]


def compare_recall(model: Any, outputs: Sequence[np.ndarray], gold: Sequence[np.ndarray]) -> Parts:
    """Recall at a sixth of BM25, network and both, with intervals over questions."""
    sums = []
    for logits in (*([row[:, part] for row in outputs] for part in range(2)), combined(model, outputs)):
        pairs = zip(logits, gold, strict=True)
        sums.append(torch.tensor([(recall(row, right), 1.0) for row, right in pairs if right.any()]))
    return ratio_of_sums(EvidenceScores, "recall_at_sixth", sums)


def _scales(outputs: Sequence[np.ndarray], gold: Sequence[np.ndarray]) -> Tensor:
    """Factors of BM25 and network, `(2,)`, by their logits for the validation split, `(p, 2)` for each question."""
    pairs = [(row, right) for row, right in zip(outputs, gold, strict=True) if right.any()]
    parts = pad_sequence([torch.from_numpy(row) for row, _ in pairs], batch_first=True).mT
    labels = pad_sequence([torch.from_numpy(right).double() for _, right in pairs], True, IGNORED)

    def losses(logits: Tensor, labels: Tensor) -> Tensor:
        real = labels != IGNORED
        return (binary_cross_entropy_with_logits(logits, labels, reduction="none") * real).sum(1) / real.sum(1)

    def recalls(logits: Tensor, labels: Tensor) -> Tensor:
        rows = zip(logits.numpy(), labels.numpy(), strict=True)
        return torch.tensor([recall(row[right != IGNORED], right[right != IGNORED] > 0) for row, right in rows])

    return best_scales(parts, labels, losses, recalls, torch.tensor([0.0, 1.0]))


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

    Of a model with BM25 as a part of its own, they are those of both parts, `(p, 2)`.

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
        name, tail = ("logits", ()) if model.wide is None else ("parts", (2,))
        result = torch.zeros(int(starts[-1]), *tail)
        mine = batches[processes.rank() :: processes.count()]
        for batch in tqdm(mine, desc="Scoring", unit="batch", leave=None, disable=not progress):
            rows = [{name: row[name] for name in columns if name in row} for row in map(examples.__getitem__, batch)]
            inputs = {key: tensor.to(model.device) for key, tensor in collate(rows, streams).items()}
            found, first = model(**inputs)[name].float().cpu(), 0
            for row in batch:
                parts, questions = sizes[row]
                result[starts[row] : starts[row + 1]] = found[first : first + questions, :parts].flatten(0, 1)
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
