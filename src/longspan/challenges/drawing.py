"""Images of dashed paths, for the challenge Pathfinder: `draw`.

Lengths are in pixels, places are (row, column) from the upper left corner, so that pixel i reaches from i to i + 1.
"""

from dataclasses import dataclass

import numpy as np

from longspan.ops.compiled import compiled

SIDE = 32
#: Dashes of the two long paths, and of the distractors, of which there are so many.
DASHES, SHORT, DISTRACTORS = 14, 4, 5
#: Length of a dash, length of a gap where the path is straight, and width of a dash.
DASH, GAP, WIDTH = 2.0, 2.0, 0.5
#: Distance between the beginnings of the two long paths, and radius of the circles.
APART, RADIUS = 7.0, 1.5
#: Brightness of long paths, distractors and circles, before anti-aliasing.
LONG_LIGHT, SHORT_LIGHT, CIRCLE_LIGHT = 1.5, 2.0, 1.0
#: Least distance between dashes that do not follow each other, and between dashes and the edges of the image.
_CLEAR, _EDGE = 2 * 1.0 + WIDTH, 2.0 + WIDTH / 2
#: The half side of the square in the middle in which the first path begins.
_MIDDLE = 2.0
#: How often the next dash, and a distractor, is tried.
_TRIES, _SHORT_TRIES = 4, 60
_TOTAL = 2 * DASHES + DISTRACTORS * SHORT


@dataclass(frozen=True)
class Drawing:
    """An image with what is drawn in it.

    Attributes:
        image: (32, 32) uint8, grey levels.
        paths: The dashes of each path, (dashes, 2, 2): beginning and end of each, in order. The long ones come first.
        circles: (2, 2) the centres of the circles.
        connected: Whether one path connects the circles.
    """

    image: np.ndarray
    paths: tuple[np.ndarray, ...]
    circles: np.ndarray
    connected: bool


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the distance between two line segments that do not cross, (2, 2) each."""
    least = np.inf
    for one, other in ((a, b), (b, a)):
        dy, dx = other[1, 0] - other[0, 0], other[1, 1] - other[0, 1]
        square = dy * dy + dx * dx
        for end in range(2):
            y, x = one[end, 0] - other[0, 0], one[end, 1] - other[0, 1]
            along = min(1.0, max(0.0, (y * dy + x * dx) / square))
            least = min(least, (y - along * dy) ** 2 + (x - along * dx) ** 2)
    return np.sqrt(least)


_distance = compiled(_distance, fastmath=False)


def _fits(dashes: np.ndarray, number: int, before: int) -> bool:
    """Return whether dash `number` is clear of the edges and of all earlier dashes but `before`, which it follows."""
    own = dashes[number]
    if own.min() < _EDGE or own.max() > SIDE - _EDGE:
        return False
    for other in range(number):
        if other != before and _distance(own, dashes[other]) < _CLEAR:
            return False
    return True


_fits = compiled(_fits, fastmath=False)


def _put(dash: np.ndarray, y: float, x: float, angle: float) -> None:
    dy, dx = np.sin(angle), np.cos(angle)
    dash[0, 0], dash[0, 1] = y, x
    dash[1, 0], dash[1, 1] = y + DASH * dy, x + DASH * dx


_put = compiled(_put, fastmath=False)


def _turn(source: np.random.Generator) -> float:
    """Draw an angle between -90 and 90 degrees, with a density that is the square of its cosine."""
    while True:
        angle = (source.random() - 0.5) * np.pi
        if source.random() < np.cos(angle) ** 2:
            return angle


_turn = compiled(_turn, fastmath=False)


def _extend(source: np.random.Generator, dashes: np.ndarray, number: int, before: int, angle: float) -> float:
    """Add dash `number`, which follows `before` in the direction `angle`; return its direction, NaN if none fits."""
    # The middle of the gap, where the path turns.
    y = dashes[before, 1, 0] + GAP / 2 * np.sin(angle)
    x = dashes[before, 1, 1] + GAP / 2 * np.cos(angle)
    for _ in range(_TRIES):
        turned = angle + _turn(source)
        _put(dashes[number], y + GAP / 2 * np.sin(turned), x + GAP / 2 * np.cos(turned), turned)
        if _fits(dashes, number, before):
            return turned
    return np.nan


_extend = compiled(_extend, fastmath=False)


def _long(source: np.random.Generator, dashes: np.ndarray) -> bool:
    """Draw the two long paths, whose dashes alternate; return whether it succeeded."""
    y = SIDE / 2 + _MIDDLE * (2 * source.random() - 1)
    x = SIDE / 2 + _MIDDLE * (2 * source.random() - 1)
    aside = 2 * np.pi * source.random()
    first, second = 2 * np.pi * source.random(), 2 * np.pi * source.random()
    _put(dashes[0], y, x, first)
    _put(dashes[1], y + APART * np.sin(aside), x + APART * np.cos(aside), second)
    if not _fits(dashes, 1, -1):
        return False
    for number in range(2, 2 * DASHES, 2):
        first = _extend(source, dashes, number, number - 2, first)
        if np.isnan(first):
            return False
        second = _extend(source, dashes, number + 1, number - 1, second)
        if np.isnan(second):
            return False
    return True


_long = compiled(_long, fastmath=False)


def _short(source: np.random.Generator, dashes: np.ndarray, number: int) -> bool:
    """Draw a distractor, whose first dash is `number`; return whether it succeeded."""
    for _ in range(_SHORT_TRIES):
        angle = 2 * np.pi * source.random()
        _put(dashes[number], SIDE * source.random(), SIDE * source.random(), angle)
        if not _fits(dashes, number, -1):
            continue
        for more in range(1, SHORT):
            angle = _extend(source, dashes, number + more, number + more - 1, angle)
            if np.isnan(angle):
                break
        else:
            return True
    return False


_short = compiled(_short, fastmath=False)


def _layout(source: np.random.Generator, dashes: np.ndarray) -> int:
    tries = 0
    while True:
        tries += 1
        if not _long(source, dashes):
            continue
        for path in range(DISTRACTORS):
            if not _short(source, dashes, 2 * DASHES + SHORT * path):
                break
        else:
            return tries


_layout = compiled(_layout, fastmath=False)
