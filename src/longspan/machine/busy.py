"""Threads on a busy machine: those of OpenMP sleep, rather than spin, while they wait for each other.

GNU OpenMP, which PyTorch brings on Linux, lets threads spin for milliseconds at the end of each parallel loop. On a
busy machine a thread so takes the core from the one that it waits for, and two threads can be ten times slower than
one. The runtime spins for microseconds only while a process has more threads than cores [1]. So `watch` lends it idle
threads whenever the threads of this process have to wait for cores. Loops are cut as before: results are equal to the
bit.

[1] https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
"""

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from longspan.machine.limits import cores
from longspan.machine.printing import note

EVERY, MOST_COST = 0.1, 0.01
"""Seconds between two readings, and the share of time that readings may take: with many threads they become rarer."""

BUSY, QUIET = 0.2, 10
"""Seconds of waiting per second on a busy machine, and the number of shorter waits in a row until it counts as idle."""

NOTED_SECONDS, NOTED_SHARE = 30.0, 0.3
"""The user is told when threads waited for this share of so many seconds."""

POLICIES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Environment variables that say how long threads spin: where a user sets one, it stays in force."""


@contextlib.contextmanager
def watch() -> Iterator[None]:
    """Let threads sleep while the machine is busy, and say so once on standard error, during the `with` block.

    Where the kernel does not count how long threads wait for cores, nothing happens: that is everywhere but on Linux.
    """
    if waited() is None:
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(ended,), name="longspan-busy", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def waited() -> float | None:
    """Seconds that all threads of this process have waited for a core; None if the kernel does not count them."""
    total, process = 0, Path("/proc/self/task")
    try:
        for thread in process.iterdir():
            try:
                total += int((thread / "schedstat").read_bytes().split()[1])
            except OSError:
                # It has just ended, unless it is the first.
                if thread.name == str(os.getpid()):
                    return None
    except (OSError, IndexError, ValueError):
        return None
    return total / 1e9


class Load:
    """State of the machine, by the time that threads of this process wait for cores.

    Attributes:
        busy: Whether the machine is busy.
        noted: Whether it was busy for so long that the user should know.
    """

    def __init__(self) -> None:
        self.busy = self.noted = False
        self._quiet = 0
        self._recent: deque[tuple[float, float]] = deque()

    def count(self, waiting: float, seconds: float) -> None:
        """Take in that threads waited for `waiting` seconds in all during the last `seconds`."""
        if waiting >= BUSY * seconds:
            self.busy, self._quiet = True, 0
        else:
            self._quiet += 1
            self.busy = self.busy and self._quiet < QUIET
        self._recent.append((waiting, seconds))
        waits, spans = (sum(column) for column in zip(*self._recent, strict=True))
        if spans >= NOTED_SECONDS:
            self.noted = self.noted or waits >= NOTED_SHARE * spans
            self._recent.popleft()


def _watch(ended: threading.Event) -> None:
    load, idle_threads, told = Load(), IdleThreads(), False
    before, start = waited() or 0.0, time.monotonic()
    pause = EVERY
    while not ended.wait(pause):
        reading = time.monotonic()
        now = waited()
        end = time.monotonic()
        if now is None:
            break
        # What an ended thread waited is no longer counted.
        load.count(max(0.0, now - before), end - start)
        before, start, pause = now, end, max(EVERY, (end - reading) / MOST_COST)
        idle_threads.lend(load.busy)
        if load.noted and not told:
            told = True
            note("this machine is busy: other programs take cores from this one, and it takes longer")
    idle_threads.lend(False)


class IdleThreads:
    """Threads of GNU OpenMP that do nothing, so that the runtime counts more threads than cores."""

    def __init__(self) -> None:
        self._end: threading.Event | None = None

    def lend(self, wanted: bool) -> None:
        """Start the threads, or end them."""
        if wanted and self._end is None and (runtime := _runtime()) is not None:
            self._end = threading.Event()
            threading.Thread(target=_lend, args=(runtime, self._end), name="longspan-idle", daemon=True).start()
        elif not wanted and self._end is not None:
            self._end.set()
            self._end = None


def _lend(runtime: ctypes.CDLL, end: threading.Event) -> None:
    # A team stays with its thread until that ends. Both teams have to exceed the cores, however small the other is.
    more = max(2, cores() - runtime.omp_get_max_threads() + 2)
    nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
    runtime.GOMP_parallel(nothing, None, ctypes.c_uint(more), ctypes.c_uint(0))
    end.wait()


def _runtime() -> ctypes.CDLL | None:
    """GNU OpenMP, if a library of this process has loaded it and the user has not set how long it spins."""
    if any(name in os.environ for name in POLICIES) or sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return None
