"""Images of dashed paths, for the challenge Pathfinder: `draw`.

Lengths are in pixels. Places are (row, column) from the upper left corner, so that pixel i reaches from i to i + 1.
"""

import functools
from dataclasses import dataclass

import numpy as np

from longspan.ops.compiled import compiled

SIDE = 32
#: Dashes of a long path, of which there are two, and of a distractor.
DASHES, SHORT = 14, 4
DISTRACTORS = 5
#: Length of a dash, length of a gap where the path is straight, and width of a dash.
DASH, GAP, WIDTH = 2.0, 2.0, 0.5
#: Distance between the beginnings of the long paths, and radius of the circles.
APART, RADIUS = 7.0, 1.5
#: Brightness of long paths, distractors and circles, before anti-aliasing.
LONG_LIGHT, SHORT_LIGHT, CIRCLE_LIGHT = 1.5, 2.0, 1.0
#: Least distance between dashes that do not follow each other, and between dashes and the edges of the image.
CLEAR, EDGE = 2.5, 1.5
# Half the side of the square in the middle in which the first path begins.
_MIDDLE = 2.0
# Angles tried for the next dash, places tried for a distractor, and steps of drawing the long paths.
_ANGLES, _PLACES, _STEPS = 4, 1_000, 500
# The most dashes that are taken back where none fits.
_BACK = 4
_FIRST_SHORT = 2 * DASHES
_TOTAL = _FIRST_SHORT + DISTRACTORS * SHORT


@dataclass(frozen=True)
class Drawing:
    """An image and what is drawn in it.

    Attributes:
        image: (32, 32) uint8, grey levels.
        paths: The dashes of each path, (dashes, 2, 2): the ends of each, in order. The two long paths come first.
        circles: (2, 2) the centres of the circles.
        connected: Whether one path connects the circles.
    """

    image: np.ndarray
    paths: tuple[np.ndarray, ...]
    circles: np.ndarray
    connected: bool


def draw(state: np.ndarray) -> Drawing:
    """Draw one image; the circles are on one path or on two, with equal probability.

    Args:
        state: (1,) uint64, the state of the random numbers, which is changed.
    """
    dashes = np.empty((_TOTAL, 2, 2))
    _draw_paths(state, dashes)
    paths = (dashes[0:_FIRST_SHORT:2], dashes[1:_FIRST_SHORT:2], *dashes[_FIRST_SHORT:].reshape(-1, SHORT, 2, 2))
    connected, begins = _uniform(state) < 0.5, int(_uniform(state) * 2)
    ends = begins if connected else 1 - begins
    circles = np.stack([paths[begins][0, 0], paths[ends][-1, 1]])
    image = np.zeros((SIDE, SIDE))
    _paint(dashes, circles, image)
    return Drawing(np.rint(image * 255).astype(np.uint8), paths, circles, connected)


# From here on: compiled. Every function is rounded the same way on all machines.
_exactly = functools.partial(compiled, fastmath=False)


@_exactly
def _uniform(state: np.ndarray) -> float:
    """Draw a number from 0 to below 1 by SplitMix64, of Steele et al. (OOPSLA 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    mixed = state[0]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@_exactly
def _off(y: float, x: float, dash: np.ndarray) -> float:
    """Return the square of the distance of a point from a dash, (2, 2)."""
    dy, dx = dash[1, 0] - dash[0, 0], dash[1, 1] - dash[0, 1]
    y, x = y - dash[0, 0], x - dash[0, 1]
    along = min(1.0, max(0.0, (y * dy + x * dx) / (DASH * DASH)))
    return (y - along * dy) ** 2 + (x - along * dx) ** 2


@_exactly
def _fits(dashes: np.ndarray, number: int, before: int) -> bool:
    """Return whether dash `number` is clear of the edges and of all earlier dashes but `before`, which it follows."""
    own = dashes[number]
    for end in range(2):
        for axis in range(2):
            if not EDGE <= own[end, axis] <= SIDE - EDGE:
                return False
    y, x = own[0, 0] + own[1, 0], own[0, 1] + own[1, 1]
    for place in range(number):
        other = dashes[place]
        # Four times the square of the distance of the middles.
        apart = (y - other[0, 0] - other[1, 0]) ** 2 + (x - other[0, 1] - other[1, 1]) ** 2
        if place == before or apart >= 4 * (CLEAR + DASH) ** 2:
            continue
        if apart < 4 * CLEAR**2:
            return False
        for end in range(2):
            if _off(own[end, 0], own[end, 1], other) < CLEAR**2 or _off(other[end, 0], other[end, 1], own) < CLEAR**2:
                return False
    return True


@_exactly
def _put(dash: np.ndarray, y: float, x: float, angle: float) -> None:
    """Set the ends of a dash that begins at (y, x)."""
    dash[0, 0], dash[0, 1] = y, x
    dash[1, 0], dash[1, 1] = y + DASH * np.sin(angle), x + DASH * np.cos(angle)


@_exactly
def _follow(state: np.ndarray, dashes: np.ndarray, number: int, before: int) -> bool:
    """Add dash `number`, which follows `before`, at a random angle; return whether one fits."""
    dy, dx = (dashes[before, 1, 0] - dashes[before, 0, 0]) / DASH, (dashes[before, 1, 1] - dashes[before, 0, 1]) / DASH
    straight = np.arctan2(dy, dx)
    # The middle of the gap, where the path turns.
    y, x = dashes[before, 1, 0] + GAP / 2 * dy, dashes[before, 1, 1] + GAP / 2 * dx
    for _ in range(_ANGLES):
        # Between -90 and 90 degrees; the density is the square of the cosine.
        turn = (_uniform(state) - 0.5) * np.pi
        while _uniform(state) >= np.cos(turn) ** 2:
            turn = (_uniform(state) - 0.5) * np.pi
        angle = straight + turn
        _put(dashes[number], y + GAP / 2 * np.sin(angle), x + GAP / 2 * np.cos(angle), angle)
        if _fits(dashes, number, before):
            return True
    return False


@_exactly
def _draw_long(state: np.ndarray, dashes: np.ndarray) -> bool:
    """Draw the two long paths, whose dashes alternate; return whether it succeeded."""
    y = SIDE / 2 + _MIDDLE * (2 * _uniform(state) - 1)
    x = SIDE / 2 + _MIDDLE * (2 * _uniform(state) - 1)
    aside = 2 * np.pi * _uniform(state)
    _put(dashes[0], y, x, 2 * np.pi * _uniform(state))
    _put(dashes[1], y + APART * np.sin(aside), x + APART * np.cos(aside), 2 * np.pi * _uniform(state))
    if not _fits(dashes, 1, -1):
        return False
    number = 2
    for _ in range(_STEPS):
        if _follow(state, dashes, number, number - 2):
            number += 1
            if number == _FIRST_SHORT:
                return True
        else:
            number = max(2, number - int(_uniform(state) * _BACK) - 1)
    return False


@_exactly
def _draw_short(state: np.ndarray, dashes: np.ndarray, number: int) -> bool:
    """Draw a distractor, whose first dash is `number`; return whether it succeeded."""
    for _ in range(_PLACES):
        _put(dashes[number], SIDE * _uniform(state), SIDE * _uniform(state), 2 * np.pi * _uniform(state))
        if not _fits(dashes, number, -1):
            continue
        last = number + 1
        while last < number + SHORT and _follow(state, dashes, last, last - 1):
            last += 1
        if last == number + SHORT:
            return True
    return False


@_exactly
def _draw_paths(state: np.ndarray, dashes: np.ndarray) -> None:
    """Draw all paths into `dashes`, (`_TOTAL`, 2, 2); start again until all fit."""
    number = 0
    while number < _TOTAL:
        number = _FIRST_SHORT if _draw_long(state, dashes) else 0
        while 0 < number < _TOTAL:
            number = number + SHORT if _draw_short(state, dashes, number) else 0


@_exactly
def _paint(dashes: np.ndarray, circles: np.ndarray, image: np.ndarray) -> None:
    """Paint all dashes and both circles into an image of zeros, anti-aliased; the brightest pixels are 1."""
    for number in range(len(dashes)):
        dash, light = dashes[number], LONG_LIGHT if number < _FIRST_SHORT else SHORT_LIGHT
        for row in range(int(min(dash[0, 0], dash[1, 0])) - 1, int(max(dash[0, 0], dash[1, 0])) + 2):
            for column in range(int(min(dash[0, 1], dash[1, 1])) - 1, int(max(dash[0, 1], dash[1, 1])) + 2):
                away = np.sqrt(_off(row + 0.5, column + 0.5, dash))
                # The part of the pixel's width that the line covers.
                covered = max(0.0, min(WIDTH, away + 0.5 + WIDTH / 2, WIDTH / 2 - away + 0.5))
                image[row, column] = max(image[row, column], min(1.0, covered * light))
    for number in range(len(circles)):
        y, x = circles[number]
        for row in range(int(y) - 2, int(y) + 3):
            for column in range(int(x) - 2, int(x) + 3):
                inside = RADIUS + 0.5 - np.hypot(row + 0.5 - y, column + 0.5 - x)
                if inside > 0:
                    image[row, column] = max(image[row, column], min(1.0, inside) * CIRCLE_LIGHT)
