"""Rivals that take turns in one process, so that what slows the machine for a while slows them all."""

import statistics
import time
from collections.abc import Callable, Mapping


def medians(candidates: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median milliseconds of each candidate over `repeats` turns, after one that is not counted.

    The first turn compiles and touches memory.
    """
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repeats + 1):
        for name, candidate in candidates.items():
            start = time.perf_counter()
            candidate()
            if turn:
                taken[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(times) for name, times in taken.items()}
