"""Pathfinder: whether one dashed path connects the two circles of an image.

An image has 32 x 32 grey levels. It shows two long paths of 14 dashes, five distractors of 4 dashes, and two circles.
One circle is where a long path begins. The other is where the same path ends (label "1") or where the other one ends
(label "0"). The text of an image is its 1,024 levels from 0 to 255, row by row, separated by spaces.

Sources: Linsley et al. 2018 (https://arxiv.org/abs/1805.08477) and Tay et al. 2021 (https://arxiv.org/abs/2011.04006).
The images are drawn by code of our own, with the Arena's settings for "hard" images of this size. These are the number
and the shape of the dashes, the distance of the beginnings and the radius of the circles. They are also the brightness:
distractors are brighter than long paths.

Deviations:

- The published generator leaves the distances between the circles to chance. In images drawn here that way, circles
  of one path are farther apart, and this distance alone tells 54 % of the labels. So each positive image is paired with
  a negative one. Their circles have the same distance from each other (rounded to 1 pixel) and from the middle of the
  image (rounded to 2 pixels).
- All images have five distractors. The published generator leaves out those that do not fit.
- Dashes have any place and angle. Those of the published generator begin at whole pixels.
- Where no dash fits, a few are taken back. The published generator starts again.
"""

import random
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from longspan.challenges.base import Challenge, Data, Drawn, Row, stream

if TYPE_CHECKING:
    from longspan.challenges.drawing import Drawing

SIZES = {"train": 160_000, "validation": 20_000, "test": 20_000}
_LEVELS = tuple(map(str, range(256)))


class Pathfinder(Challenge):
    """Images of dashed paths, generated."""

    name = "pathfinder"
    description = "Whether one dashed path connects the two circles of an image of 32 x 32 pixels (2 classes)."
    length = 32 * 32

    def open(self, given: Path | None, seed: int, sizes: Mapping[str, int]) -> Data:
        return _Images(seed, {**SIZES, **sizes})


class _Images(Drawn):
    def rows(self, split: str) -> Iterator[Row]:
        pairs = matched(stream(self.seed, Pathfinder.name, split))
        for _ in range(self.sizes[split] // 2):
            yield from map(_row, next(pairs))
        if self.sizes[split] % 2:
            yield _row(next(pairs)[0])


def _row(drawing: "Drawing") -> Row:
    return {
        "text": " ".join(map(_LEVELS.__getitem__, drawing.image.ravel().tolist())),
        "label": str(int(drawing.connected)),
    }


def matched(source: random.Random) -> Iterator[tuple["Drawing", "Drawing"]]:
    """Yield images without end: a positive and a negative one, in random order, with circles at the same distances."""
    import numpy as np

    from longspan.challenges.drawing import draw

    state = np.array([source.getrandbits(64)], np.uint64)
    waiting: dict[tuple[int, ...], deque[Drawing]] = {}
    while True:
        drawing = draw(state)
        places = _distances(drawing)
        others = waiting.get((*places, not drawing.connected))
        if not others:
            waiting.setdefault((*places, drawing.connected), deque()).append(drawing)
        elif source.random() < 0.5:
            yield drawing, others.popleft()
        else:
            yield others.popleft(), drawing


def _distances(drawing: "Drawing") -> tuple[int, ...]:
    """Distances of the circles from each other and from the middle, rounded."""
    import numpy as np

    begins, ends = drawing.circles - drawing.image.shape[0] / 2
    return round(np.hypot(*(ends - begins))), round(np.hypot(*begins) / 2), round(np.hypot(*ends) / 2)
