"""Named streams, the ragged arrays that a model reads, and batches of them: `Stream`, `pad` and `nothing`."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import List, Value

from longspan.data.batches.by_length import padded_length


@dataclass(frozen=True)
class Stream:
    """One of the streams of a batch: a number, or several, at each position of each example.

    Attributes:
        type: The type of the numbers in data sets; in batches, integers are int64.
        width: Numbers at each position, as the last dimension of the batch; 0 for one without that dimension.
        fill: Value at padding.
        mask: The name of a mask that comes with it, 1 at real positions; "" for none, where another stream of the same
            lengths has one.
        joined: Whether the values are positions in the main stream, `width` at a time, such as source and target of an
            edge. They are not padded but follow each other, row after row: (1 + width, n), the row of each first.
    """

    type: str = "int32"
    width: int = 0
    fill: float = 0
    mask: str = ""
    joined: bool = False

    @property
    def feature(self) -> Any:
        """Feature type of its column in a data set: numbers one after the other, see `flat`."""
        return List(Value(self.type))

    def flat(self, values: Any) -> np.ndarray:
        """Return the stream of one example as a data set has it, (t * width,): lists of lists are read slowly."""
        return np.asarray(values, dtype=self.type).reshape(-1)

    def array(self, values: Any) -> np.ndarray:
        """Return the stream of one example, flat or not, as (t,) or (t, width), in the type of batches."""
        found = np.asarray(values, dtype=_batch_type(self.type))
        return found.reshape(-1, self.width) if self.width else found


@functools.cache
def _batch_type(kind: str) -> np.dtype[Any]:
    return np.dtype(np.int64 if np.issubdtype(kind, np.integer) else kind)


def measured(streams: Mapping[str, Stream]) -> list[str]:
    """Return the streams whose lengths batches are made by: the main one and, if there is one, the next with a mask."""
    main, *others = streams
    return [main, *[name for name in others if streams[name].mask][:1]]


def pad(examples: Sequence[Mapping[str, Any]], streams: Mapping[str, Stream]) -> dict[str, torch.Tensor]:
    """Stack examples into a batch, each stream padded on the right to `padded_length` of its longest.

    Args:
        examples: Each has the streams, those that the first one lacks excepted, and optionally `labels`, numbers of
            one type and shape, unless these are one of the streams.
        streams: The streams to read, by name, the main one first.

    Returns:
        By name, the streams (b, t) or (b, t, width), or (1 + width, n) where they are joined, their masks (b, t)
        int64, and `labels` (b, ...).
    """
    batch = {}
    for name, stream in streams.items():
        if name not in examples[0]:
            continue
        rows = [stream.array(example[name]) for example in examples]
        if stream.joined:
            numbers = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
            batch[name] = torch.from_numpy(np.concatenate([numbers[:, None], np.concatenate(rows)], 1).T.copy())
            continue
        longest = padded_length(max(map(len, rows)))
        values = np.full((len(rows), longest, *rows[0].shape[1:]), stream.fill, dtype=rows[0].dtype)
        for number, row in enumerate(rows):
            values[number, : len(row)] = row
        batch[name] = torch.from_numpy(values)
        if stream.mask:
            real = np.arange(longest) < np.array([[len(row)] for row in rows])
            batch[stream.mask] = torch.from_numpy(real.astype(np.int64))
    if "labels" in examples[0] and "labels" not in streams:
        batch["labels"] = torch.from_numpy(np.stack([np.asarray(example["labels"]) for example in examples]))
    return batch


def nothing(example: Mapping[str, Any], streams: Mapping[str, Stream]) -> dict[str, torch.Tensor]:
    """Return a batch like that of an example, with one position of padding in each stream.

    It is no token: of tables, a token would count as read (`longspan.training.optimizers`).
    """
    empty = {
        name: np.full((int(not stream.joined), *stream.array(example[name]).shape[1:]), stream.fill)
        for name, stream in streams.items()
        if name in example
    }
    batch = pad([{**example, **empty}], streams)
    return batch | {
        stream.mask: torch.zeros_like(batch[stream.mask]) for stream in streams.values() if stream.mask in batch
    }
