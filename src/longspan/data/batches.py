"""Batches of documents of similar length, so that little of each batch is padding."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

CHUNK_BATCHES = 50
"""Batches' worth of shuffled rows that are sorted together: more means less padding, fewer means more randomness."""


class LengthBatches(Sampler[list[int]]):
    """Batches of row numbers whose documents have similar lengths.

    Shuffling draws a random order, sorts pieces of 50 batches by length, cuts each piece into batches and shuffles the
    batches. Without shuffling, all rows are sorted, longest first, so that a batch too large for memory fails at once.
    The order depends on `seed` and the epoch alone.

    Args:
        lengths: `(n,)` lengths in tokens.
        batch_size: Rows in a batch, at most.
        max_tokens: Rows times the longest length in a batch, at most; 0 sets no limit. A document longer than that is
            a batch of its own.
        shuffle: Whether the order is random.
        seed: Seed of the random order.
        drop_last: Leave out the last batch formed if it is smaller than the limits allow.

    Raises:
        ValueError: `batch_size` is below 1 or `max_tokens` below 0.
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
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, but is {batch_size}.")
        if max_tokens < 0:
            raise ValueError(f"max_tokens must be 0 (no limit) or more, but is {max_tokens}.")
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self._batches: list[list[int]] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the random order of this epoch (from 0 up); with `max_tokens` the number of batches may change."""
        if self.shuffle and epoch != self.epoch:
            self._batches = None
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._formed())

    def __len__(self) -> int:
        return len(self._formed())

    def _formed(self) -> list[list[int]]:
        if self._batches is None:
            self._batches = self._form()
        return self._batches

    def _form(self) -> list[list[int]]:
        if not self.shuffle:
            order = np.argsort(-self.lengths, kind="stable")
            batches, rest = self._cut(order)
            return batches + self._last(rest)
        random = np.random.default_rng((self.seed, self.epoch))
        order = random.permutation(len(self.lengths))
        size = self.batch_size * CHUNK_BATCHES
        batches = []
        rest = order[:0]
        for start in range(0, len(order), size):
            # What did not fill a batch joins the next piece, so that only the very last batch can be small.
            piece = np.concatenate([rest, order[start : start + size]])
            cut, rest = self._cut(piece[np.argsort(-self.lengths[piece], kind="stable")])
            batches += cut
        batches += self._last(rest)
        return [batches[i] for i in random.permutation(len(batches))]

    def _cut(self, order: np.ndarray) -> tuple[list[list[int]], np.ndarray]:
        """Cut rows sorted by falling length into full batches; return them and the rows left over."""
        batches, start = [], 0
        while start < len(order):
            rows = self.batch_size
            if self.max_tokens:
                rows = min(rows, max(1, self.max_tokens // max(1, int(self.lengths[order[start]]))))
            if start + rows > len(order):
                break
            batches.append(order[start : start + rows].tolist())
            start += rows
        return batches, order[start:]

    def _last(self, rest: np.ndarray) -> list[list[int]]:
        return [rest.tolist()] if len(rest) and not self.drop_last else []


def padding_fraction(batches: Iterable[Sequence[int]], lengths: Sequence[int] | np.ndarray) -> float:
    """Return the share of padding, from 0 to 1, when each batch of rows is padded to its longest document.

    Args:
        batches: Row numbers of each batch.
        lengths: `(n,)` lengths in tokens.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    real = padded = 0
    for batch in batches:
        rows = sizes[np.asarray(batch, dtype=np.int64)]
        real += int(rows.sum())
        padded += int(rows.max()) * len(rows)
    return 1 - real / padded if padded else 0.0


def pad(examples: Sequence[dict[str, Any]], pad_id: int, side: str = "right") -> dict[str, torch.Tensor]:
    """Stack examples into a batch, padding the shorter ones; columns other than those below are left out.

    Args:
        examples: Each with `input_ids`, a list of token ids, and perhaps `labels`, a class number.
        pad_id: Token id that fills the gaps.
        side: Where the gaps go, "right" or "left".

    Returns:
        `input_ids` and `attention_mask`, `(b, t)` int64 with 1 at real tokens, and `labels`, `(b,)` int64, if given.

    Raises:
        ValueError: `side` is neither "right" nor "left".
    """
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left', but is {side!r}.")
    rows = [torch.as_tensor(example["input_ids"], dtype=torch.int64) for example in examples]
    longest = max(len(row) for row in rows)
    input_ids = torch.full((len(rows), longest), pad_id, dtype=torch.int64)
    mask = torch.zeros((len(rows), longest), dtype=torch.int64)
    for i, row in enumerate(rows):
        start = longest - len(row) if side == "left" else 0
        input_ids[i, start : start + len(row)] = row
        mask[i, start : start + len(row)] = 1
    batch = {"input_ids": input_ids, "attention_mask": mask}
    if "labels" in examples[0]:
        batch["labels"] = torch.tensor([int(example["labels"]) for example in examples], dtype=torch.int64)
    return batch
