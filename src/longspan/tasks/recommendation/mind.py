"""MIND's submission file, prediction.txt: for each impression the ranks of its candidates."""

from collections.abc import Sequence

import numpy as np

from longspan.machine.printing import unbroken


def ranks_of(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the rank of each candidate, from 1; of equal scores, that of the earlier candidate is higher."""
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(1, len(order) + 1)
    return ranks


def with_unknown(ranks: np.ndarray, places: Sequence[int]) -> list[int]:
    """Return the ranks of all candidates in the order shown, where those at `places` are unknown and so come last."""
    found = np.empty(len(ranks) + len(places), dtype=np.int64)
    unknown = np.zeros(len(found), dtype=bool)
    unknown[list(places)] = True
    found[~unknown], found[unknown] = ranks, np.arange(len(ranks) + 1, len(found) + 1)
    result: list[int] = found.tolist()
    return result


def prediction_line(impression: str, ranks: Sequence[int]) -> str:
    """Return the line of an impression: its identifier, and the rank of each candidate in the order shown, from 1."""
    return f"{unbroken(impression)} [{','.join(map(str, ranks))}]"
