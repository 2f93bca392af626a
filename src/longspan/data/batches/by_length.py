"""Batches of documents of similar length, so that little of each batch is padding."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

BUCKETS = 40
"""Approximate number of buckets per data set: more buckets mean less padding, fewer mean more randomness."""


def padded_length(longest: int) -> int:
    """Return the length to which a batch is padded: one of eight per doubling, from 16 up, at most an eighth more.

    Batches of recurring shapes reuse memory. If every length had a shape of its own, a CPU's heap would fragment and
    training would hold several times the memory it needs.
    """
    step = max(1, (1 << longest.bit_length() >> 1) // 8)
    return -(-longest // step) * step


class LengthBatches(Sampler[list[int]]):
    """Batches of row numbers whose documents have similar lengths.

    Rows are sorted by length, longest first, and cut into buckets of full batches. Shuffling mixes the rows of equal
    length, those within each bucket, then the batches of all buckets. So every epoch has the same number of batches of
    the same sizes: `len` is right for every epoch, and training can resume in the middle of one. The order depends only
    on `seed` and the epoch. Without shuffling, the longest come first, so that a batch too large for memory fails at
    once.

    Several processes share each batch, which then has `world` times as many rows. In each step all processes read
    documents of similar length. All take the same number of steps, and each row is read by one process. When fewer rows
    than processes are left, some processes get an empty batch.

    Rows with two lengths, such as those of a text and its translation, are sorted by the padded first one, and among
    equals by the second, so that both are similar in a batch. Both count for `max_tokens`.

    Args:
        lengths: `(n,)` lengths in tokens, or `(n, 2)`.
        batch_size: Maximum number of rows per batch and process.
        max_tokens: Maximum number of rows times the padded length, per batch and process; 0 sets no limit. A longer
            document forms a batch of its own.
        shuffle: Whether to shuffle.
        seed: Seed for shuffling.
        drop_last: Leave out the batch of the shortest documents if it is smaller than the others of its bucket.
        rank: Number of this process, from 0.
        world: Number of processes.

    Raises:
        ValueError: `batch_size` is below 1, `max_tokens` is below 0, or `rank` is not below `world`.
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
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        if max_tokens < 0:
            raise ValueError(f"max_tokens must be at least 0 (no limit), got {max_tokens}.")
        if not 0 <= rank < world:
            raise ValueError(f"rank must be from 0 to {world - 1} with {world} processes, got {rank}.")
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.rank = rank
        self.world = world
        self.epoch = 0
        self._order = self._sorted(np.arange(len(self.lengths)))
        self._buckets = self._cut()

    def set_epoch(self, epoch: int) -> None:
        """Shuffle as for this epoch, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(len(starts) for starts, _ in self._buckets)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng((self.seed, self.epoch))
        # Rows of the same length are mixed across buckets, too: sources often have one class after the other.
        sorted_rows = self._sorted(random.permutation(len(self.lengths))) if self.shuffle else self._order
        batches = []
        for starts, end in self._buckets:
            rows = sorted_rows[starts[0] : end]
            rows = random.permutation(rows) if self.shuffle else rows
            batches += [part.tolist() for part in np.split(rows, np.subtract(starts[1:], starts[0]))]
        order = random.permutation(len(batches)) if self.shuffle else range(len(batches))
        return (batches[number][self.rank :: self.world] for number in order)

    def positions(self, batch: Sequence[int]) -> int:
        """Number of positions of a batch of rows, padding included."""
        return padded_positions(self.lengths[np.asarray(batch, dtype=np.int64)])

    def _sorted(self, rows: np.ndarray) -> np.ndarray:
        """Return these rows sorted by length, longest first; those of equal lengths stay in their order."""
        lengths = self.lengths[rows]
        order: np.ndarray = np.argsort(-lengths, kind="stable") if lengths.ndim == 1 else _in_two(lengths)
        return rows[order]

    def _cut(self) -> list[tuple[list[int], int]]:
        """Return, for each bucket, where its batches start in the sorted order and where the last one ends."""
        lengths = self.lengths[self._order].reshape(-1, *self.lengths.shape[1:] or (1,))
        first = lengths[:, 0] if self.lengths.ndim == 1 else _padded(lengths[:, 0])
        buckets, start = [], 0
        while start < len(lengths):
            # At least two batches, so that there is something to shuffle; none that begins far below the longest,
            # which would waste memory and time; and full ones, so that only the very last can be small.
            comparable = int(np.searchsorted(-first, -0.9 * max(1, first[start]))) - start
            rows = self._rows(lengths[start : start + 1])
            count = max(1, min(max(2, len(lengths) // BUCKETS // rows), comparable // rows))
            if lengths.shape[1] > 1:
                # The second length may grow within a bucket. Fewer rows have no longer ones.
                rows = self._rows(lengths[start : start + count * rows])
            end = min(len(lengths), start + count * rows)
            starts = list(range(start, end, rows))
            if self.drop_last and end - starts[-1] < rows:
                end = starts.pop()
            if starts:
                buckets.append((starts, end))
            start = max(end, start + count * rows)
        return buckets

    def _rows(self, lengths: np.ndarray) -> int:
        """Number of rows in a batch of all processes, if none is longer than the longest of these."""
        rows = self.batch_size
        if self.max_tokens:
            rows = min(rows, max(1, self.max_tokens // max(1, padded_positions(lengths, 1))))
        return rows * self.world


def _in_two(lengths: np.ndarray) -> np.ndarray:
    """Return the order of rows with two lengths: by the padded first one, longest first, then by the second.

    The second one rises and falls in turns, so that neighbours are similar where the first one changes.
    """
    first = _padded(lengths[:, 0])
    turn = np.unique(first, return_inverse=True)[1] % 2
    order: np.ndarray = np.lexsort((np.where(turn == 0, -lengths[:, 1], lengths[:, 1]), -first))
    return order


def _padded(lengths: np.ndarray) -> np.ndarray:
    return np.array([padded_length(int(one)) for one in lengths], dtype=np.int64)


def padded_positions(lengths: np.ndarray, rows: int | None = None) -> int:
    """Number of positions of a batch, padding included.

    Args:
        lengths: `(n,)` or `(n, k)` lengths of its rows.
        rows: Number of its rows, if not n.
    """
    longest = lengths.reshape(len(lengths), -1).max(0)
    return (len(lengths) if rows is None else rows) * sum(padded_length(int(one)) for one in longest)


def padding_fraction(batches: Iterable[Sequence[int]], lengths: Sequence[int] | np.ndarray) -> float:
    """Return the share of padding, from 0 to 1, when `pad` pads each batch of rows.

    Args:
        batches: The row numbers of each batch.
        lengths: `(n,)` lengths in tokens, or `(n, k)`.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    real = padded = 0
    for batch in batches:
        rows = sizes[np.asarray(batch, dtype=np.int64)]
        real += int(rows.sum())
        padded += padded_positions(rows)
    return 1 - real / padded if padded else 0.0
