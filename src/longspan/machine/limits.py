"""Limits of this process: the cores that it may use, and control groups, which are the limits of containers."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cores() -> int:
    """Number of cores that this process may use: by its affinity, and by the quota of its control groups.

    Quotas are rounded to whole cores: two threads make more of 1.5 cores than one does, but less of 1.1.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *(math.floor(quota + 0.5) for quota in _quotas())]))


def limit_threads() -> None:
    """Let libraries that are loaded from now on start as many threads as there are cores in a container's quota.

    They know the affinity, but not the quota. `OMP_NUM_THREADS` is left alone where it is set.
    """
    if any(quota < (os.cpu_count() or 1) for quota in _quotas()):
        os.environ.setdefault("OMP_NUM_THREADS", str(cores()))


def group_folders(controller: str) -> Iterator[tuple[int, Path]]:
    """Folders of the control groups of a controller that this process is in, each with the version of its interface."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        version, top = (1, _GROUPS / controller) if controllers else (2, _GROUPS)
        here = top / path.lstrip("/")
        # In a container, the path is that of the host, and the root is the container's own.
        for folder in dict.fromkeys([top, here, *here.parents]):
            if folder.is_relative_to(top):
                yield version, folder


def _quotas() -> list[float]:
    """Cores of each control group with a quota."""
    found = []
    for version, folder in group_folders("cpu"):
        # "max" and -1 are no quota.
        with contextlib.suppress(OSError, ValueError):
            if version == 1:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            else:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            if quota > 0 < period:
                found.append(quota / period)
    return found
