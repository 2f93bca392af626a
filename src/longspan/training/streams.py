"""Batches of training data that are streamed: `BlockStream`, which reads ahead, and `StreamBatches`."""

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Sampler

from longspan.data.sources.formats.schema import Row
from longspan.data.sources.shards import Place, ShardReader
from longspan.errors import UserError
from longspan.results.outputs import json_object, write_json

T = TypeVar("T")


class BlockStream(Generic[T]):
    """Items made of blocks of rows, without an end.

    A thread reads and tokenises the next block while the last one is trained on, so two are in memory at most.

    Args:
        reader: Reads the blocks.
        make: Makes the items of a block, given its number.
    """

    def __init__(self, reader: ShardReader, make: Callable[[Sequence[Row], int], Sequence[T]]) -> None:
        self.reader, self.make = reader, make
        self._pool = ThreadPoolExecutor(1, "longspan-stream")
        self._ahead: Future[tuple[Place, Sequence[T]]] | None = None
        self._begun: Place = copy.deepcopy(reader.place)
        self._items: Sequence[T] = ()
        self._block, self._taken = -1, 0

    def __next__(self) -> T:
        while self._taken >= len(self._items):
            self._advance()
        self._taken += 1
        return self._items[self._taken - 1]

    def state(self) -> dict[str, Any]:
        """Where the next item is, as JSON."""
        return {"begun": self._begun, "block": self._block, "taken": self._taken}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        if self._ahead is not None:
            self._ahead.result()
            self._ahead = None
        self.reader.seek(state["begun"])
        self._items, self._block, self._taken = (), state["block"], 0
        if self._block >= 0:
            self._block -= 1
            self._advance()
            self._taken = state["taken"]

    def _advance(self) -> None:
        self._block, self._taken = self._block + 1, 0
        ahead = self._ahead or self._pool.submit(self._next_block, self._block)
        self._begun, self._items = ahead.result()
        self._ahead = self._pool.submit(self._next_block, self._block + 1)

    def _next_block(self, number: int) -> tuple[Place, Sequence[T]]:
        begun = copy.deepcopy(self.reader.place)
        return begun, self.make(self.reader.block(), number)


class StreamBatches(Sampler[list[Any]]):
    """Batches of an endless stream, cut into epochs of equally many: about one pass each.

    They hold examples, not their numbers (`Examples`). A resumed run continues in the middle of a shard.

    Args:
        batches: The batches: a `BlockStream`, or what has its methods.
        count: Number of batches of an epoch.
        rank: Number of this process.
        world: Number of processes.
        data: Digest of the shards.
    """

    def __init__(self, batches: Any, count: int, rank: int, world: int, data: str) -> None:
        self.batches, self.count, self.rank, self.world, self.data = batches, count, rank, world, data
        self.epoch = self.number = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0 up."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[Any]]:
        for number in range(self.epoch * self.count, (self.epoch + 1) * self.count):
            if number < self.number:
                # The Trainer skips what a resumed run has read before.
                yield []
                continue
            self.number += 1
            yield next(self.batches)

    def save(self, checkpoint: Path) -> None:
        """Write the place of this process into a checkpoint."""
        state = {"number": self.number, "world": self.world, "batches": self.batches.state()}
        state["data"] = self.data
        write_json(checkpoint / f"stream-{self.rank}.json", state)

    def restore(self, checkpoint: Path) -> None:
        """Continue from the place in a checkpoint.

        Raises:
            UserError: It has that of another number of processes, or of other shards.
        """
        path = checkpoint / f"stream-{self.rank}.json"
        state = json_object(path) if path.is_file() else {}
        if state.get("world") != self.world:
            raise UserError(
                f"expected {path} to say where one of {self.world} processes was in its shards, got that of "
                f"{state.get('world', 'none')}; resume with as many processes as before, or start again with "
                "--overwrite."
            )
        if state.get("data") != self.data:
            raise UserError(
                "expected the shards that this run began with (data.streaming), got others: files were added, removed "
                "or changed; restore them, or start again with --overwrite."
            )
        self.batches.restore(state["batches"])
        self.number = state["number"]


class Examples(TorchDataset[Any]):
    """What a loader reads where its batches are examples, not their numbers: the same."""

    def __getitem__(self, example: Any) -> Any:
        return example
