"""Batches of documents of similar length, so that little of each batch is padding."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

BUCKETS = 40
"""Buckets a data set is cut into, about: more mean less padding, fewer mean more randomness."""


def padded_length(longest: int) -> int:
    """Return the length a batch is padded to: one of eight per doubling, from 16 up, and at most an eighth more.

    Batches whose shapes recur can use the memory of those before them; with every length its own shape, a CPU's heap
    falls to pieces and training holds several times what it needs.
    """
    step = max(1, (1 << longest.bit_length() >> 1) // 8)
    return -(-longest // step) * step


class LengthBatches(Sampler[list[int]]):
    """Batches of row numbers whose documents have similar lengths.

    Rows are sorted by length, longest first, and cut into buckets, which are whole batches. Shuffling mixes the rows
    of each bucket, then the batches of all buckets, so every epoch has the same number of batches of the same sizes:
    what `len` says holds for all, and training can be resumed in the middle of any. The order depends on `seed` and
    the epoch alone. Without shuffling the longest come first, so that a batch too large for memory fails at once.

    Several processes share each batch, which then has `world` times the rows: all read documents of similar length in
    the same step, all make as many steps, and each row is read by one of them. Where fewer rows than processes are
    left, some get an empty batch.

    Args:
        lengths: `(n,)` lengths in tokens.
        batch_size: Rows in a batch of one process, at most.
        max_tokens: Rows times the padded length of a batch of one process, at most; 0 sets no limit. A document longer
            than that is a batch of its own.
        shuffle: Whether the order is random.
        seed: Seed of the random order.
        drop_last: Leave out the batch of the shortest documents if it is smaller than the others of its bucket.
        rank: Which process this is, from 0.
        world: How many processes there are.

    Raises:
        ValueError: `batch_size` is below 1, `max_tokens` below 0, or `rank` not one of `world`.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        batch_size: int,
        *,
        max_tokens: int = 0,
        shuffle: bool,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, but is {batch_size}.")
        if max_tokens < 0:
            raise ValueError(f"max_tokens must be 0 (no limit) or more, but is {max_tokens}.")
        if not 0 <= rank < world:
            raise ValueError(f"rank must be from 0 to {world - 1}, one of {world} processes, but is {rank}.")
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.most_rows = batch_size
        self.max_tokens = max_tokens
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.rank = rank
        self.world = world
        self.epoch = 0
        self._order = np.argsort(-self.lengths, kind="stable")
        self._buckets = self._cut()

    def set_epoch(self, epoch: int) -> None:
        """Choose the random order of this epoch, from 0 up."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(len(starts) for starts, _ in self._buckets)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng((self.seed, self.epoch))
        batches = []
        for starts, end in self._buckets:
            rows = self._order[starts[0] : end]
            rows = random.permutation(rows) if self.shuffle else rows
            batches += [part.tolist() for part in np.split(rows, np.subtract(starts[1:], starts[0]))]
        order = random.permutation(len(batches)) if self.shuffle else range(len(batches))
        return (batches[number][self.rank :: self.world] for number in order)

    def _cut(self) -> list[tuple[list[int], int]]:
        """Return, for each bucket, where its batches start in the sorted order and where the last one ends."""
        buckets, start, lengths = [], 0, self.lengths[self._order]
        while start < len(lengths):
            longest = max(1, int(lengths[start]))
            rows = self.most_rows
            if self.max_tokens:
                rows = min(rows, max(1, self.max_tokens // padded_length(longest)))
            rows *= self.world
            # Two batches at least, so that there is something to shuffle; none that begins far below the longest,
            # which would waste memory and time; and whole ones, so that only the very last can be small.
            comparable = int(np.searchsorted(-lengths, -0.9 * longest)) - start
            count = max(1, min(max(2, len(lengths) // BUCKETS // rows), comparable // rows))
            end = min(len(lengths), start + count * rows)
            starts = list(range(start, end, rows))
            if self.drop_last and end - starts[-1] < rows:
                end = starts.pop()
            if starts:
                buckets.append((starts, end))
            start = max(end, start + count * rows)
        return buckets


def padding_fraction(batches: Iterable[Sequence[int]], lengths: Sequence[int] | np.ndarray) -> float:
    """Return the share of padding, from 0 to 1, when each batch of rows is padded as `pad` does.

    Args:
        batches: Row numbers of each batch.
        lengths: `(n,)` lengths in tokens.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    real = padded = 0
    for batch in batches:
        rows = sizes[np.asarray(batch, dtype=np.int64)]
        real += int(rows.sum())
        padded += padded_length(int(rows.max())) * len(rows)
    return 1 - real / padded if padded else 0.0


def pad(examples: Sequence[dict[str, Any]], pad_id: int, side: str = "right") -> dict[str, torch.Tensor]:
    """Stack examples into a batch, padded to `padded_length`; columns other than those below are left out.

    Args:
        examples: Each with `input_ids`, a list of token ids, and perhaps `labels`, numbers of one type and shape.
        pad_id: Token id that fills the gaps.
        side: Where the gaps go, "right" or "left".

    Returns:
        `input_ids` and `attention_mask`, `(b, t)` int64 with 1 at real tokens, and `labels`, `(b, ...)`, if given.

    Raises:
        ValueError: `side` is neither "right" nor "left".
    """
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left', but is {side!r}.")
    rows = [torch.as_tensor(example["input_ids"], dtype=torch.int64) for example in examples]
    longest = padded_length(max(len(row) for row in rows))
    input_ids = torch.full((len(rows), longest), pad_id, dtype=torch.int64)
    mask = torch.zeros((len(rows), longest), dtype=torch.int64)
    for i, row in enumerate(rows):
        start = longest - len(row) if side == "left" else 0
        input_ids[i, start : start + len(row)] = row
        mask[i, start : start + len(row)] = 1
    batch = {"input_ids": input_ids, "attention_mask": mask}
    if "labels" in examples[0]:
        batch["labels"] = torch.from_numpy(np.stack([np.asarray(example["labels"]) for example in examples]))
    return batch
