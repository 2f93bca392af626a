"""Speed of this machine at multiplying matrices and copying memory: `measured_rates`."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

_SIZES = {"cpu": (256, 512, 1024), "cuda": (2048, 4096, 8192)}
"""Widths of the square matrices that are multiplied; the fastest width counts."""
_COPIED = {"cpu": 1 << 27, "cuda": 1 << 29}
"""Bytes of the copied buffer: more than caches hold."""
_REPEATS = 9
_LONGEST = 0.5
"""Seconds of one product: no larger matrices are tried that are likely to take longer."""


@dataclass(frozen=True)
class Rates:
    """Speed of a machine per second with one type of number.

    Attributes:
        operations: multiplications and additions of matrix products.
        bytes: bytes that a copy reads and writes.
    """

    operations: float
    bytes: float

    def floor(self, operations: float, bytes_moved: float) -> float:
        """Return the seconds for so many operations and bytes, if each is done while the other is: the larger time."""
        return max(operations / self.operations, bytes_moved / self.bytes)


def measured_rates(dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Rates:
    """Measure the products of square matrices and the copy of a large buffer, with the threads that PyTorch has now.

    Rates are of median times. Takes about a second on a CPU.
    """
    kind = torch.device(device).type
    products: dict[int, float] = {}
    for size in _SIZES.get(kind, _SIZES["cuda"]):
        # Some types have no fast products on some processors. Twice the width takes eight times as long.
        if products and 8 * max(products.values()) > _LONGEST:
            break
        left, right, out = (torch.rand(size, size, device=device).to(dtype) for _ in range(3))
        products[size] = _median(lambda a=left, b=right, c=out: torch.mm(a, b, out=c), device)  # type: ignore[misc]
    source = torch.zeros(_COPIED.get(kind, _COPIED["cuda"]), dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    copied = _median(lambda: target.copy_(source), device)
    return Rates(max(2 * size**3 / taken for size, taken in products.items()), 2 * source.numel() / copied)


def _median(call: Callable[[], object], device: torch.device | str) -> float:
    call()
    return interleaved({"": call}, repeats=_REPEATS, seconds=1.0, device=device)[""].median


FEW = 4
"""Up to this many repetitions have no quartiles: their spread is from the least to the most."""


@dataclass(frozen=True)
class Times:
    """The times of repeated calls in seconds.

    Attributes:
        median: their median.
        low, high: the first and the third quartile; the least and the most of at most `FEW` times.
        repeats: number of times.
    """

    median: float
    low: float
    high: float
    repeats: int


def summary_of(seconds: list[float]) -> Times:
    """Return the median and the spread of at least one time."""
    low, high = min(seconds), max(seconds)
    if len(seconds) > FEW:
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Times(statistics.median(seconds), low, high, len(seconds))


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    seconds: float = float("inf"),
    device: torch.device | str = "cpu",
) -> dict[str, Times]:
    """Time candidates in turns, so that what slows the machine for a while slows them all.

    The caller warms them up: the first call of a candidate may compile, and touches memory for the first time.

    Args:
        candidates: calls by name.
        repeats: number of turns.
        seconds: no turn begins after so many seconds; the first always does.
        device: where they run. Each time lasts until the device has finished.
    """
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    began = time.perf_counter()
    for turn in range(repeats):
        if turn and time.perf_counter() - began > seconds:
            break
        for name, candidate in candidates.items():
            wait(device)
            start = time.perf_counter()
            candidate()
            wait(device)
            taken[name].append(time.perf_counter() - start)
    return {name: summary_of(times) for name, times in taken.items()}


def wait(device: torch.device | str) -> None:
    """Wait until a device has finished; a CPU always has."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(torch.device(device))


def peak_of(call: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Return the most bytes that a call holds at once, in addition to what was there before it, such as its inputs.

    On a GPU this is `torch.cuda.max_memory_allocated`. On a CPU PyTorch's profiler records each allocation and release
    of PyTorch's allocator. This is exact and repeatable, unlike resident memory. It includes neither memory that
    libraries below PyTorch take for themselves, nor unused memory that the allocator keeps.
    """
    if torch.device(device).type == "cuda":
        wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        wait(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        # The result counts until the call is over.
        kept = call()
        del kept
    events = recorded.profiler.kineto_results.events() if recorded.profiler is not None else []
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak
