"""Memory of this process, or of the GPU where there is one: in use, its largest amount, and the limit."""

import contextlib
import ctypes
import gc
import resource
import sys
import threading

import psutil
import torch

from longspan.machine.limits import group_folders

_EVERY = 0.003
"""Seconds between two readings of memory."""


def resident() -> int:
    """Bytes in use: of the GPU, or in memory of this process."""
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    return int(psutil.Process().memory_info().rss)


def peak_memory() -> int:
    """Largest number of bytes in use so far: of the GPU where there is one, otherwise of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Peak:
    """Largest amount of memory in use since a mark, while a `with` block of it lasts.

    A process knows only the most that it ever had. Where that does not grow, memory is read every few milliseconds, so
    that a shorter peak may be missed.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._sampled = self._before = 0

    def __enter__(self) -> "Peak":
        self._ended.clear()
        self.mark()
        if not torch.cuda.is_available():
            threading.Thread(target=self._sample, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def mark(self) -> None:
        """Let `most` begin anew."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self._before, self._sampled = peak_memory(), resident()

    def most(self) -> int:
        """Largest number of bytes in use since `mark`."""
        found = peak_memory()
        if torch.cuda.is_available() or found > self._before:
            return found
        return max(self._sampled, resident())

    def _sample(self) -> None:
        while not self._ended.wait(_EVERY):
            # A sample from before a mark may come after it, and is then too high rather than too low.
            self._sampled = max(self._sampled, resident())


def memory_limit() -> int:
    """Bytes of memory that this process may have at most: the machine's, within limits of processes and containers."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    limits = [psutil.virtual_memory().total, *_group_limits()]
    return min(limits if limit == resource.RLIM_INFINITY else [limit, *limits])


def available() -> int:
    """Bytes that this process may have, those in use included: what others leave, of the GPU where there is one."""
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return int(free) + torch.cuda.memory_reserved()
    return min(memory_limit(), psutil.virtual_memory().available + resident())


def release() -> None:
    """Give unused memory back to the system."""
    # A trainer holds itself in cycles.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    else:
        return_freed()


def return_freed() -> None:
    """Return freed memory to the system, where the C library would keep it (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _group_limits() -> list[int]:
    """Limits of the control groups that this process is in: both versions, none without a limit."""
    found = []
    for version, folder in group_folders("memory"):
        with contextlib.suppress(OSError, ValueError):
            # "max" is no number.
            found.append(int((folder / ("memory.limit_in_bytes" if version == 1 else "memory.max")).read_text()))
    return found
