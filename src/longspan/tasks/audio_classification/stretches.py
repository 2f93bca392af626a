"""Recordings cut into stretches, as they are decoded: what `longspan predict --every` predicts for."""

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from longspan.data.processor import Unreadable
from longspan.data.signals.decoding import blocks, pcm
from longspan.data.sources.formats.rows import Row


def of_rows(rows: Iterable[Row], seconds: float, rate: int) -> Iterator[Row]:
    """Yield a row for each stretch of the recordings in rows, in constant memory.

    A row that cannot be read is yielded with its problem, after the stretches before it.

    Args:
        rows: Rows with a `recording`.
        seconds: The length of a stretch; the last of a recording may be shorter.
        rate: Samples per second of the stretches.
    """
    for row in rows:
        if row.problem:
            yield row
            continue
        try:
            pieces = _cut(blocks(row.values["recording"], rate), max(1, round(seconds * rate)))
            for number, sound in enumerate(pieces):
                yield _row(f"{row.where}, ", number * seconds, sound, rate, row.values)
        except Unreadable as error:
            yield row._replace(problem=str(error).removesuffix("."))


def of_pcm(stream: BinaryIO, seconds: float, rate: int) -> Iterator[Row]:
    """Yield a row for each stretch of raw PCM, as soon as it has come: see `longspan.data.signals.decoding.pcm`."""
    for number, sound in enumerate(pcm(stream, seconds, rate)):
        yield _row("standard input, ", number * seconds, sound, rate, {})


def _cut(pieces: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yield samples in stretches of `size`, the last one perhaps shorter."""
    kept = np.zeros(0, np.float32)
    for piece in pieces:
        kept = np.concatenate([kept, piece])
        while len(kept) >= size:
            yield kept[:size]
            kept = kept[size:]
    if len(kept):
        yield kept


def _row(begin: str, start: float, sound: np.ndarray, rate: int, values: dict[str, Any]) -> Row:
    end = start + len(sound) / rate
    found = {"path": None, "bytes": None, "samples": sound, "rate": rate, "start": None, "end": None}
    return Row({**values, "recording": found}, f"{begin}{start:.2f} to {end:.2f} s")
