"""Rivals that take turns in one process, so that what slows the machine for a while slows them all."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor


def medians(candidates: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median milliseconds of each candidate over `repeats` turns, after one that is not counted.

    The first turn compiles and touches memory.
    """
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repeats + 1):
        for name, candidate in candidates.items():
            start = time.perf_counter()
            candidate()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:
                taken[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(times) for name, times in taken.items()}


def attend(function: Callable[..., Tensor], inputs: Sequence[Tensor], gradient: Tensor | None) -> None:
    """Call a function of `inputs` and, given its output's gradient, run it backward to all of them."""
    with torch.set_grad_enabled(gradient is not None):
        out = function(*inputs)
        if gradient is not None:
            torch.autograd.grad(out, inputs, gradient)


def settle_allocator() -> None:
    """Have glibc keep freed memory, as it does late in a training run.

    It decides how much by the largest block, up to 32 MiB, that was ever given back to it.
    """
    torch.empty(31 << 18)
