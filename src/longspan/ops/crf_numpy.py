"""Linear-chain conditional random fields in NumPy: functions of `longspan.ops.crf`, for programs without PyTorch."""

import numpy as np


def log_marginals(
    scores: np.ndarray, lengths: np.ndarray, transitions: np.ndarray, start: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """The logarithm of the probability of each label at each position, `(r, n, l)`; 0 beyond the lengths."""
    positions = scores.shape[1]
    before, after = np.empty_like(scores), np.empty_like(scores)
    for t in range(positions):
        if not t:
            now = start + scores[:, 0]
        else:
            now = np.where((t < lengths)[:, None], _log_sums(now[:, :, None] + transitions) + scores[:, t], now)
        before[:, t] = now
    now = np.broadcast_to(end, scores[:, 0].shape) if positions else end
    for t in range(positions - 1, -1, -1):
        after[:, t] = now
        if t:
            earlier = _log_sums((now + scores[:, t])[:, :, None] + transitions.T)
            now = np.where((t < lengths)[:, None], earlier, now)
    joint = before + after
    there = np.arange(positions) < lengths[:, None]
    found: np.ndarray = np.where(there[:, :, None], joint - _log_sums(joint.swapaxes(1, 2))[:, :, None], 0)
    return found


def best_path(
    scores: np.ndarray, lengths: np.ndarray, transitions: np.ndarray, start: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """The labels of the path with the highest score, `(r, n)`; 0 beyond the lengths."""
    rows, positions, labels = scores.shape
    path = np.zeros((rows, positions), np.int64)
    if not positions:
        return path
    best, came = start + scores[:, 0], np.empty((positions, rows, labels), np.int64)
    for t in range(1, positions):
        joint = best[:, :, None] + transitions
        going = (t < lengths)[:, None]
        best = np.where(going, joint.max(1) + scores[:, t], best)
        # Beyond its end a path stays where it was.
        came[t] = np.where(going, joint.argmax(1), np.arange(labels))
    path[:, -1] = (best + end).argmax(1)
    for t in range(positions - 1, 0, -1):
        path[:, t - 1] = came[t][np.arange(rows), path[:, t]]
    found: np.ndarray = path * (np.arange(positions) < lengths[:, None])
    return found


def _log_sums(values: np.ndarray) -> np.ndarray:
    """The logarithm of the sum of exponentials over the second axis."""
    highest = values.max(1, keepdims=True)
    found: np.ndarray = np.log(np.exp(values - highest).sum(1)) + highest.squeeze(1)
    return found
