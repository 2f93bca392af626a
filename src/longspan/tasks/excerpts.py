"""Which tokens of a split a training run scores if it is not to score all of them: `excerpt`."""

from collections.abc import Sequence

import numpy as np

CUT = 16_384
"""No document is cut shorter than this, as tokens near its beginning, with little before them, are hard to predict."""


def excerpt(lengths: Sequence[int] | np.ndarray, most: int) -> np.ndarray:
    """Choose what to score of documents: the same each time, and as representative as can be of all of it.

    Documents are read from their beginning, with the states that go with it. So what is scored of each is its
    beginning: all of short documents, and equally much of all longer ones. If `most` is not enough for `CUT` targets of
    each document, evenly spaced documents are chosen. The longest documents count for less than in the whole.

    Args:
        lengths: `(d,)` documents' lengths in tokens without the end, which is a target, too.
        most: The maximum number of targets; 0 means all.

    Returns:
        `(d,)` how many targets of each document are scored, from its first one on; in all no more than `most`.
    """
    targets = np.asarray(lengths, dtype=np.int64) + 1
    if not most or targets.sum() <= most:
        return targets
    cut = np.minimum(targets, max(_water_level(targets, most), min(CUT, most)))
    total = int(cut.sum())
    if total <= most:
        return cut
    marks = np.arange(len(cut) + 1) * most // total
    chosen = np.where(np.diff(marks) > 0, cut, 0)
    # Those chosen may be longer than others.
    return np.clip(most - (np.cumsum(chosen) - chosen), 0, chosen)


def _water_level(targets: np.ndarray, most: int) -> int:
    """Return the largest number so that documents cut to it have at most `most` targets, of which there are more."""
    heights = np.sort(targets)
    levels = (most - (np.cumsum(heights) - heights)) // np.arange(len(heights), 0, -1)
    return int(levels[np.argmax(heights > levels)])
