"""Documents packed into rows of equal length, one after another without padding, and masked differently in every epoch.

A row is known by its epoch and its number there: `PackedBatches` says which rows are read together in each step,
`PackedData` makes them. The order of documents, where rows begin, and what is masked depend only on the seed, the epoch
and the number. Any number of processes thus reads the same rows, and training resumes anywhere.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from datasets.utils import tqdm
from torch import Tensor
from transformers import PreTrainedModel

from longspan.data.batches.drawn import DrawnExamples, Index
from longspan.errors import UserError
from longspan.models.parts.losses import CHUNK, IGNORED
from longspan.tasks.masked_words.masking import Masking
from longspan.training.lengths import EpochSampler, in_evaluation

#: The seed of masks that do not change.
_FIXED = 0


class Packing:
    """The order of documents in each epoch, and where rows begin.

    Tokens that do not fill a step of their own are left out, at the two ends of the stream. A random share of them is
    left out at either end, so that a single document is read everywhere.

    Args:
        lengths: `(d,)` documents' lengths in tokens.
        rows: Rows in a step of all processes.
        segment_length: Tokens in a row.
        seed: Seed of the order.

    Raises:
        UserError: There are fewer tokens than one step reads.
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray, rows: int, segment_length: int, seed: int) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.rows, self.segment_length, self.seed = rows, segment_length, seed
        total, step = int(self.lengths.sum()), rows * segment_length
        self.steps, self._left = divmod(total, step)
        if not self.steps:
            raise UserError(
                f"expected at least {step:,} tokens to train on, {rows} rows (training.per_device_train_batch_size, in "
                f"all processes) of {segment_length} (training.segment_length), got {total:,}; lower one of the two, "
                "or use more text."
            )
        self._epoch: tuple[int, np.ndarray, np.ndarray, int] | None = None

    def parts(self, index: Index) -> Iterator[tuple[int, int, int]]:
        """Yield the documents in a row, each with the first of its tokens there and the one after the last."""
        epoch, number = index
        order, ends, first = self._layout(epoch)
        start = first + number * self.segment_length
        yield from cut(order, ends, start, start + self.segment_length)

    def _layout(self, epoch: int) -> tuple[np.ndarray, np.ndarray, int]:
        if self._epoch is None or self._epoch[0] != epoch:
            rng = np.random.default_rng((self.seed, epoch))
            order = rng.permutation(len(self.lengths))
            self._epoch = epoch, order, np.cumsum(self.lengths[order]), int(rng.integers(self._left + 1))
        return self._epoch[1:]


def cut(order: np.ndarray, ends: np.ndarray, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield what documents have between two places of a stream: the number of each, and from where to where in it.

    Args:
        order: `(d,)` documents in the order of the stream.
        ends: `(d,)` where each ends in it.
        start: The first place.
        stop: The one after the last.
    """
    place = int(np.searchsorted(ends, start, side="right"))
    while start < stop:
        began = int(ends[place - 1]) if place else 0
        end = min(stop, int(ends[place]))
        if end > start:
            yield int(order[place]), start - began, end - began
        start, place = end, place + 1


def packed(
    documents: Sequence[np.ndarray], parts: Iterator[tuple[int, int, int]], masking: Masking, rng: np.random.Generator
) -> dict[str, Tensor]:
    """Return the tensors of a row, each `(t,)` int64: `input_ids`, `labels`, `document_ids` and `position_ids`.

    Positions count from the beginning of what the row has of each document.
    """
    found = [documents[number][start:stop] for number, start, stop in parts]
    sizes = [len(part) for part in found]
    ids, numbers = np.concatenate(found), np.repeat(np.arange(len(found)), sizes)
    inputs, labels = masking(ids, numbers, rng)
    positions = np.arange(len(ids)) - np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    names = ("input_ids", "labels", "document_ids", "position_ids")
    return {
        name: torch.from_numpy(array) for name, array in zip(names, (inputs, labels, numbers, positions), strict=True)
    }


def fixed_rows(
    documents: Sequence[np.ndarray], scored: np.ndarray, segment_length: int, masking: Masking
) -> list[dict[str, Tensor]]:
    """Return the rows of documents in their order, the last of them shorter, with the same masks each time.

    Args:
        documents: Token ids of each document, `(n,)`.
        scored: `(d,)` how many tokens of each are read, from its beginning.
        segment_length: Tokens in a row.
        masking: Masking.
    """
    order, ends = np.arange(len(documents)), np.cumsum(scored)
    total = int(ends[-1]) if len(ends) else 0
    return [
        packed(
            documents,
            cut(order, ends, start, min(start + segment_length, total)),
            masking,
            np.random.default_rng((_FIXED, number)),
        )
        for number, start in enumerate(range(0, total, segment_length))
    ]


class PackedData(DrawnExamples[dict[str, Tensor]]):
    """Rows that are cut and masked again in each epoch; see `packed`. `attention_mask` is 1 everywhere.

    Args:
        documents: Token ids of each document, `(n,)`.
        packing: How they follow one another.
        masking: Masking.
    """

    def __init__(self, documents: Sequence[np.ndarray], packing: Packing, masking: Masking) -> None:
        super().__init__(packing.seed)
        self.documents, self.packing, self.masking = documents, packing, masking

    def __len__(self) -> int:
        return self.packing.steps * self.packing.rows

    def draw(self, index: Index, random: np.random.Generator) -> dict[str, Tensor]:
        row = packed(self.documents, self.packing.parts(index), self.masking, random)
        return {**row, "attention_mask": torch.ones_like(row["input_ids"])}


class PackedBatches(EpochSampler[list[Index]]):
    """Rows that a process reads in each step; every epoch has as many.

    Args:
        steps: Steps in an epoch.
        rows: Rows in a batch of one process.
        rank: Which process this is: of the rows of all, it reads the `rank`-th `rows`.
        world: Number of processes.
    """

    def __init__(self, steps: int, rows: int, rank: int = 0, world: int = 1) -> None:
        self.steps, self.batch_size, self.rank, self.world = steps, rows, rank, world

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[Index]]:
        for step in range(self.steps):
            first = (step * self.world + self.rank) * self.batch_size
            yield [(self.epoch, number) for number in range(first, first + self.batch_size)]


@torch.no_grad()
def masked_losses(
    model: PreTrainedModel,
    rows: Sequence[dict[str, Tensor]],
    batch_size: int,
    *,
    progress: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the loss in nats of each token to be predicted, `(n,)` float32, the likeliest token, and the right one.

    Args:
        model: A `LongspanForMaskedLM`, put into evaluation mode for the call.
        rows: Result of `longspan.tasks.masked_words.rows.fixed_rows`; the last may be shorter.
        batch_size: Rows read at a time.
        progress: Whether to show a bar on standard error.
    """
    losses, (found, right) = [np.zeros(0, dtype=np.float32)], ([np.zeros(0, dtype=np.int64)] for _ in range(2))
    with in_evaluation(model):
        # Below the bar of a training run, this one disappears when it is full.
        for batch in tqdm(_batches(rows, batch_size), desc="Scoring", unit="batch", leave=None, disable=not progress):
            for scores, wanted in _scores(
                model, {name: torch.stack([row[name] for row in batch]) for name in batch[0]}
            ):
                losses.append(torch.nn.functional.cross_entropy(scores, wanted, reduction="none").cpu().numpy())
                found.append(scores.argmax(-1).cpu().numpy())
                right.append(wanted.cpu().numpy())
    return np.concatenate(losses), np.concatenate(found), np.concatenate(right)


@torch.no_grad()
def likeliest_words(model: PreTrainedModel, ids: np.ndarray, mask_id: int, count: int) -> list[list[tuple[int, float]]]:
    """Return the `count` likeliest tokens for each mask in a document, each with its probability, the likeliest first.

    Args:
        model: A `LongspanForMaskedLM` in evaluation mode.
        ids: `(t,)` the tokens of the document.
        mask_id: The mask.
        count: How many.
    """
    inputs = torch.from_numpy(ids.astype(np.int64))
    labels = torch.where(inputs == mask_id, inputs, IGNORED)
    found: list[list[tuple[int, float]]] = []
    for scores, _ in _scores(model, {"input_ids": inputs[None], "labels": labels[None]}):
        top = scores.softmax(-1).topk(min(count, scores.shape[-1]))
        found += [
            list(zip(tokens, shares, strict=True))
            for tokens, shares in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
    return found


def _batches(rows: Sequence[dict[str, Tensor]], batch_size: int) -> list[Sequence[dict[str, Tensor]]]:
    """Group rows of equal length."""
    full = [row for row in rows if len(row["input_ids"]) == len(rows[0]["input_ids"])]
    batches = [full[first : first + batch_size] for first in range(0, len(full), batch_size)]
    return [*batches, *([row] for row in rows[len(full) :])]


def _scores(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits of some of the labelled positions, (m, v) float32, and their labels, (m,)."""
    given = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    labels = given.pop("labels")
    # Not all positions at once: their scores would be many times as large as the model.
    hidden = model.base_model(**given).last_hidden_state[labels != IGNORED]
    wanted = labels[labels != IGNORED]
    most = max(1, CHUNK // model.config.vocab_size)
    for part, targets in zip(hidden.split(most), wanted.split(most), strict=True):
        if len(part):
            yield model.scores(part).float(), targets
