"""Memory of this process, or of the GPU where there is one: now, the most of it for a while, and what there is."""

import contextlib
import ctypes
import gc
import sys
import threading
from pathlib import Path

import torch

from longspan.machine.environment import available_memory, peak_memory

_STATUS = Path("/proc/self/status")

_EVERY = 0.003
"""Seconds between two readings of memory."""


def resident() -> int:
    """Return the bytes in use: of the GPU, or in memory of this process; elsewhere than on Linux, the most so far."""
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    return _of_status("VmRSS") or peak_memory()


class Peak:
    """The most memory in use since a mark, while a `with` block of it lasts.

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
        """Return the most bytes in use since `mark`."""
        found = peak_memory()
        if torch.cuda.is_available() or found > self._before:
            return found
        return max(self._sampled, resident())

    def _sample(self) -> None:
        while not self._ended.wait(_EVERY):
            # A sample from before a mark may come after it, and is then too high rather than too low.
            self._sampled = max(self._sampled, resident())


def available() -> int | None:
    """Return the bytes that this process may have, those in use included, or None if the system does not say.

    Of a GPU it is what others leave, of a machine what others leave within the limits of this process.
    """
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return int(free) + torch.cuda.memory_reserved()
    limits = [limit for limit in (available_memory(), *_of_groups()) if limit is not None]
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024
        limits.append(free + resident())
    return min(limits, default=None)


def release() -> None:
    """Give what is no longer used back to the system."""
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


def _of_status(name: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def _of_groups() -> list[int]:
    """Return the limits of the control groups that this process is in: both versions, none without a limit."""
    root, found = Path("/sys/fs/cgroup"), []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        top, file = (root / "memory", "memory.limit_in_bytes") if kinds else (root, "memory.max")
        here = top / path.lstrip("/")
        # In a container, the path is that of the host, and the root is the container's own.
        for folder in [top, *(each for each in (here, *here.parents) if each.is_relative_to(top))]:
            with contextlib.suppress(OSError, ValueError):
                # "max" is no number.
                found.append(int((folder / file).read_text()))
    return found
