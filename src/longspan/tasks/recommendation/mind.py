"""MIND's submission file, prediction.txt: for each impression the ranks of its candidates."""

from collections.abc import Sequence

import numpy as np


def prediction_line(impression: str, scores: Sequence[float]) -> str:
    """Return the line of an impression: its identifier, and the rank of each candidate in the order shown, from 1.

    Of equal scores, that of the earlier candidate ranks higher.
    """
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(1, len(order) + 1)
    return f"{impression} [{','.join(map(str, ranks.tolist()))}]"
