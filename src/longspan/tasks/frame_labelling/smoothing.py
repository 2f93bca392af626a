"""The likeliest sequence of labels with a penalty for each change, as scores come: `Smoother`.

A sequence y of labels has the score  Σ_t s[t, y_t] - λ · #{t: y_t ≠ y_{t-1}},  where s are log-probabilities. It is the
best path of a chain whose transitions cost λ between different labels and nothing otherwise (Viterbi 1967,
https://doi.org/10.1109/TIT.1967.1054010). As all changes cost the same, a step takes time proportional to the number of
labels. With λ = 0 each position has its likeliest label.
"""

from collections.abc import Sequence

import numpy as np

#: Values of λ that validation chooses from, in nats.
PENALTIES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
#: Positions that may be undecided: beyond, those at the beginning get the label of the best sequence so far.
MOST = 8192


class Smoother:
    """Labels of positions whose scores come in blocks; memory does not grow with them.

    A label is decided as soon as all sequences that may still become the best have it.

    Args:
        penalty: λ, at least 0.
    """

    def __init__(self, penalty: float) -> None:
        self.penalty = np.array([penalty])
        self.best: np.ndarray | None = None
        self.scores = np.zeros((0, 0), np.float32)
        self.came = np.zeros((0, 1, 0), np.int32)

    def add(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the next labels, (m,), and their own scores, (m, c), given the scores of more positions, (n, c)."""
        if len(scores):
            self.best, came = _forward(self.best, scores, self.penalty)
            self.scores = np.concatenate([self.scores, scores]) if len(self.scores) else scores
            self.came = np.concatenate([self.came, came]) if len(self.came) else came
        return self._take(*self._decided())

    def end(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels of all other positions, and their scores."""
        if self.best is None or not len(self.scores):
            return self._take(len(self.scores), np.zeros(0, np.int64))
        return self._take(len(self.scores), _backward(self.best, self.came)[0])

    def _decided(self) -> tuple[int, np.ndarray]:
        """Number of decided positions, and labels of these and perhaps more."""
        count = len(self.came)
        labels = np.arange(self.came.shape[2])
        for place in range(count - 1, 0, -1):
            labels = self.came[place, 0][labels]
            if (labels == labels[0]).all():
                # All go through this label at the position before.
                return place, _backward(_only(labels[0], len(labels)), self.came[:place])[0]
        if count > MOST:
            assert self.best is not None
            return count - MOST, _backward(self.best, self.came)[0]
        return 0, labels[:0]

    def _take(self, count: int, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = labels[:count], self.scores[:count]
        self.scores, self.came = self.scores[count:], self.came[count:]
        return found


def paths(scores: np.ndarray, penalties: Sequence[float]) -> np.ndarray:
    """Return the best labels of positions, (p, n), for each of p penalties, given their scores, (n, c)."""
    best, came = _forward(None, scores, np.array(penalties))
    return _backward(best, came)


def _forward(best: np.ndarray | None, scores: np.ndarray, penalties: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of the best sequences that end with each label, (p, c), and what was before it, (n, p, c).

    Args:
        best: Those up to the first of these positions; None if it is the first of all.
        scores: (n, c).
        penalties: (p,).
    """
    own = np.arange(scores.shape[1])
    came = np.empty((len(scores), len(penalties), scores.shape[1]), np.int32)
    for place, row in enumerate(scores.astype(np.float64)):
        if best is None:
            best, came[place] = np.tile(row, (len(penalties), 1)), own
            continue
        top = best.argmax(1)[:, None]
        changed = np.take_along_axis(best, top, 1) - penalties[:, None]
        stays = best >= changed
        came[place] = np.where(stays, own, top)
        best = np.where(stays, best, changed) + row
        # Only differences count, and sums would grow without an end.
        best -= best.max(1, keepdims=True)
    assert best is not None
    return best, came


def _backward(best: np.ndarray, came: np.ndarray) -> np.ndarray:
    """Return the labels, (p, n), of the sequences with the best last label."""
    count, rows = len(came), np.arange(len(best))
    found = np.empty((count, len(best)), np.int64)
    label = best.argmax(1)
    for place in range(count - 1, -1, -1):
        found[place] = label
        label = came[place][rows, label]
    return found.T


def _only(label: int, labels: int) -> np.ndarray:
    """Return scores, (1, c), of which that of one label is the best."""
    return np.eye(labels)[label : label + 1]
