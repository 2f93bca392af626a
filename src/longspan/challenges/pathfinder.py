"""Pathfinder: are the two circles of an image ends of the same path?

A grey image of 32 x 32 has two long paths of dashes, distractors that are shorter, and two circles: on the ends of one
of the long paths, or on one end of each. So images of both classes have the same paths, and only following a path
tells.

Sources: Linsley et al. 2018 (https://arxiv.org/abs/1805.08477), and for this size and these numbers of images Tay et
al. 2021 (https://arxiv.org/abs/2011.04006). Deviation: the images are drawn by our own code (`drawing.draw`), so scores
are comparable with published ones only roughly.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from longspan.challenges.base import Challenge, Data, Row, stream
from longspan.challenges.images import written

SIZES = {"train": 160_000, "validation": 20_000, "test": 20_000}
SIDE = 32


class Pathfinder(Challenge):
    """Images of dashed paths, generated."""

    name = "pathfinder"
    description = "Whether a dashed path connects the two circles of a grey image of 32 x 32 (2 classes)."
    length = SIDE * SIDE

    def open(self, given: Path | None, seed: int, sizes: Mapping[str, int]) -> Data:
        return _Drawings(seed, {**SIZES, **sizes})


class _Drawings(Data):
    def __init__(self, seed: int, sizes: Mapping[str, int]) -> None:
        self._seed, self._sizes = seed, sizes

    def size(self, split: str) -> int:
        return self._sizes[split]

    def rows(self, split: str) -> Iterator[Row]:
        import numpy as np

        from longspan.challenges.drawing import draw

        state = np.array([stream(self._seed, Pathfinder.name, split).getrandbits(64)], np.uint64)
        for _ in range(self._sizes[split]):
            drawn = draw(state)
            yield {"text": written(drawn.image), "label": str(int(drawn.connected))}
