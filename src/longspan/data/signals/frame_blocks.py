"""Frames of recordings of any length, in constant memory: `frame_blocks`, and windows of them: `windows`."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from longspan.models.hub.feature_extraction import LongspanFeatureExtractor


def frame_blocks(extractor: LongspanFeatureExtractor, pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the frames of samples that come in pieces, not normalised, (t, width) at a time."""
    hop, size = extractor.hop, extractor.reach
    kept, some = np.zeros(0, np.float32), False
    for piece in pieces:
        kept = np.concatenate([kept, piece])
        count = (len(kept) - size) // hop + 1
        if count > 0:
            some = True
            yield extractor.frames(kept[: (count - 1) * hop + size])
            kept = kept[count * hop :]
    # What is left has no whole frame: of mel frames it is left out, unless there is no other.
    if not some or (extractor.features == "samples" and len(kept)):
        yield extractor.frames(kept)


class Window(NamedTuple):
    """A stretch of a recording.

    Attributes:
        frames: (t, width), not normalised.
        first: Which frame is the first that no window before has; frames before it are context.
        last: The frame after the last one of its own; frames from it on are context.
    """

    frames: np.ndarray
    first: int
    last: int


def windows(blocks: Iterable[np.ndarray], size: int, context: int) -> Iterator[Window]:
    """Yield the windows of frames that come in blocks, each as soon as it is known not to be the last.

    Each frame is the own one of one window. Windows have `size` frames, the last one perhaps fewer.

    Args:
        blocks: (t, width) each.
        size: Frames of a window; 0 for one window of all.
        context: Frames of a window, on either side that does not end the recording, that are not its own: less than
            half of its size.
    """
    kept, first = np.zeros((0, 0), np.float32), 0
    some: list[np.ndarray] = []
    for block in blocks:
        some.append(block)
        if not size or len(kept) + sum(map(len, some)) <= size:
            continue
        kept = np.concatenate([kept, *some] if len(kept) else some)
        some = []
        while len(kept) > size:
            yield Window(kept[:size], first, size - context)
            first, kept = context, kept[size - 2 * context :]
    rest = np.concatenate([kept, *some] if len(kept) else some)
    yield Window(rest, first, len(rest))
