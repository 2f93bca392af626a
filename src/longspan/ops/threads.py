"""Compiled loops on several threads of this process: `in_slices`.

OpenMP is not used: it neither survives a fork nor shares cores with the threads of other libraries.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch

from longspan.machine.limits import cores

_pool: ThreadPoolExecutor | None = None


def in_slices(kernel: Callable[..., None], arguments: tuple[Any, ...], units: int, slices: int) -> None:
    """Run `kernel(*arguments, first, last)` over `units` that are independent of each other, cut into slices.

    Each slice has a thread. There are at most `slices`, as many as units, and as many as threads of PyTorch.
    """
    slices = max(1, min(slices, units, torch.get_num_threads()))
    bounds = list(pairwise(units * i // slices for i in range(slices + 1)))
    others = [_workers().submit(kernel, *arguments, *bound) for bound in bounds[1:]]
    kernel(*arguments, *bounds[0])
    for bound, other in zip(bounds[1:], others, strict=True):
        # On a busy machine a worker may not have woken yet: better to do its part than to wait for it.
        if other.cancel():
            kernel(*arguments, *bound)
        else:
            other.result()


def _workers() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(cores(), thread_name_prefix="longspan")
    return _pool


def _forget_workers() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)
