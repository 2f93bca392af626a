"""Documents as streams of segments, for models whose states carry over from one step to the next.

A document of tokens t₁ … tₙ has the inputs `[end] t₁ … tₙ` and the targets `t₁ … tₙ [end]`: n + 1 positions, in which
every token and the end are predicted once. The positions are cut into segments of equal length; only a document's last
one is shorter, and padded on the right. `SegmentBatches` says which segments are read together in each step,
`SegmentData` turns them into tensors; `torch.utils.data.DataLoader(data, batch_sampler=batches)` joins the two. The
batch sampler knows its rank itself: Accelerate must not shard it again.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from longspan.errors import UserError
from longspan.training.lengths import EpochSampler
from longspan.training.streams import BlockStream

IGNORED = -100
"""The target of padding, which torch and transformers leave out of losses."""


class Segment(NamedTuple):
    """Positions of one document that a row reads in one step.

    Attributes:
        document: The document's number.
        start: The first of the positions, from 0.
        length: Number of positions; 0 in a row that has ended, where only padding is left.
        reset: Whether the row first forgets its state: a document begins, or an epoch.
    """

    document: int
    start: int
    length: int
    reset: bool


def count_segments(lengths: Sequence[int] | np.ndarray, segment_length: int) -> np.ndarray:
    """Number of segments of each document, `(d,)`, given its length in tokens without the end."""
    return np.asarray(lengths, dtype=np.int64) // segment_length + 1


def check_enough(lengths: Sequence[int] | np.ndarray, rows: int, segment_length: int, world: int = 1) -> None:
    """Raise UserError if there is less to train on than one batch of full segments.

    Args:
        lengths: `(d,)` documents' lengths in tokens without the end, which adds one to each.
        rows: Rows of one process.
        segment_length: Positions in a segment.
        world: Processes.
    """
    for name, value in (("per_device_train_batch_size", rows), ("segment_length", segment_length)):
        if value < 1:
            raise UserError(f"training.{name} must be at least 1, got {value}; choose a larger one.")
    tokens = int(np.sum(lengths, dtype=np.int64)) + len(lengths)
    needed = rows * world * segment_length
    if tokens < needed:
        processes = f" in each of {world} processes" if world > 1 else ""
        raise UserError(
            f"expected at least {needed:,} tokens to train on, {rows} rows (training.per_device_train_batch_size)"
            f"{processes} of {segment_length} (training.segment_length), got {tokens:,}; lower one of the two, or use "
            "more text."
        )


class SegmentData(Dataset[dict[str, Tensor]]):
    """The tensors of segments.

    An item is indexed by its `Segment` and has `input_ids` (segment_length,) and `attention_mask` (segment_length,)
    int64, `shift_labels` (segment_length,) int64, the targets, -100 at padding, and `reset` () bool. PyTorch's own
    collation makes batches of them.

    Args:
        documents: Token ids of each document, `(n,)`, without the end.
        segment_length: Positions in a segment.
        end_id: The token before the first and after the last of each document.
        pad_id: The token at padding.
    """

    def __init__(self, documents: Sequence[np.ndarray], segment_length: int, *, end_id: int, pad_id: int) -> None:
        self.documents = documents
        self.segment_length = segment_length
        self.end_id = end_id
        self.pad_id = pad_id

    def __len__(self) -> int:
        return int(count_segments([len(document) for document in self.documents], self.segment_length).sum())

    def __getitem__(self, segment: Segment) -> dict[str, Tensor]:
        document, (_, start, length, reset) = self.documents[segment.document], segment
        input_ids = torch.full((self.segment_length,), self.pad_id)
        targets = torch.full((self.segment_length,), IGNORED)
        mask = torch.zeros(self.segment_length, dtype=torch.int64)
        if length:
            # The document with the end on either side: inputs leave out the last of it, targets the first.
            around = np.full(length + 1, self.end_id, dtype=np.int64)
            tokens = document[max(0, start - 1) : start + length]
            first = int(start == 0)
            around[first : first + len(tokens)] = tokens
            input_ids[:length] = torch.from_numpy(around[:-1])
            targets[:length] = torch.from_numpy(around[1:])
            mask[:length] = 1
        return {
            "input_ids": input_ids,
            "attention_mask": mask,
            "shift_labels": targets,
            "reset": torch.tensor(reset),
        }


class SegmentBatches(EpochSampler[list[Segment]]):
    """Segments that the rows of a batch read at each step.

    All segments, in document order, are dealt out to the rows in runs, as evenly as possible, so that only the last
    step has rows without text. Each row reads its run from step to step; where a document begins, and at its very first
    step, it forgets. With shuffling, documents (not segments) come in an order that depends on `seed` and the epoch.
    Every epoch has the same number of steps, and skipping steps reads no text, so training can resume at any of them.

    Args:
        lengths: `(d,)` documents' lengths in tokens, without the end.
        rows: Rows in a batch of one process.
        segment_length: Positions in a segment.
        shuffle: Whether the order of documents is random.
        seed: Seed of the random order.
        rank: Which process this is: of the rows of all, it reads the `rank`-th `rows`.
        world: Number of processes.

    Raises:
        UserError: There are fewer tokens than one batch of all processes holds.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        rows: int,
        segment_length: int,
        *,
        shuffle: bool,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        check_enough(lengths, rows, segment_length, world)
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.batch_size = rows
        self.segment_length = segment_length
        self.shuffle = shuffle
        self.seed = seed
        self._counts = count_segments(self.lengths, segment_length)
        shortest, longer = divmod(int(self._counts.sum()), rows * world)
        self._steps = shortest + bool(longer)
        row = np.arange(rank * rows, (rank + 1) * rows)
        self._starts = row * shortest + np.minimum(row, longer)
        self._ends = self._starts + shortest + (row < longer)

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[Segment]]:
        order = np.arange(len(self.lengths))
        if self.shuffle:
            order = np.random.default_rng((self.seed, self.epoch)).permutation(order)
        # The number of each document's first segment, and of the one after the last.
        firsts = np.concatenate([[0], np.cumsum(self._counts[order])])
        for step in range(self._steps):
            numbers = self._starts + step
            places = np.searchsorted(firsts, np.minimum(numbers, firsts[-1] - 1), side="right") - 1
            documents = order[places]
            starts = (numbers - firsts[places]) * self.segment_length
            lengths = np.minimum(self.segment_length, self.lengths[documents] + 1 - starts)
            resets = (starts == 0) | (step == 0)
            over = numbers >= self._ends
            starts[over], lengths[over], resets[over] = 0, 0, False
            columns = (documents.tolist(), starts.tolist(), lengths.tolist(), resets.tolist())
            yield [Segment(*values) for values in zip(*columns, strict=True)]


class StreamedSegments:
    """Segments of documents that are streamed: a row that has read one reads the next of the stream.

    Args:
        documents: Token ids of documents, `(n,)`, one after the other.
        data: Makes the tensors of segments. Its documents are those that the rows read.
        rows: Rows in a batch.
    """

    def __init__(self, documents: BlockStream[np.ndarray], data: SegmentData, rows: int) -> None:
        self.documents, self.data = documents, data
        self.data.documents = [np.zeros(0, dtype=np.int32)] * rows
        # As if each had read an empty document.
        self._starts = [1] * rows

    def __next__(self) -> list[dict[str, Tensor]]:
        batch, reading = [], list(self.data.documents)
        for row, start in enumerate(self._starts):
            if start > len(reading[row]):
                reading[row], start = next(self.documents), 0
            self.data.documents = reading
            length = min(self.data.segment_length, len(reading[row]) + 1 - start)
            batch.append(self.data[Segment(row, start, length, start == 0)])
            self._starts[row] = start + length
        return batch

    def state(self) -> dict[str, Any]:
        """Where the next segments are, and the documents that rows read, as JSON."""
        reading = [ids.tolist() for ids in self.data.documents]
        return {"documents": self.documents.state(), "starts": self._starts, "reading": reading}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.documents.restore(state["documents"])
        self._starts = list(state["starts"])
        self.data.documents = [np.array(ids, dtype=np.int32) for ids in state["reading"]]
