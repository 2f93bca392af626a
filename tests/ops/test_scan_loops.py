"""The compiled loops by themselves: threads, forks, and folders that cannot be written."""

import subprocess
import sys
from typing import Any

import numba.core.caching
import numpy as np
import pytest
import torch

from longspan.ops import threads as shared
from longspan.ops.compiled import compiled
from longspan.ops.scan import numba as scan


def run(per_channel: bool) -> list[np.ndarray]:
    """Return what the forward and the backward scan fill."""
    numbers = np.random.default_rng(0)
    shape = (2, 50, 3, 4)
    values, initial = numbers.standard_normal(shape), numbers.standard_normal((2, 3, 4))
    gates = numbers.random(shape if per_channel else shape[:3])
    outputs, final, *grads = (np.full_like(x, np.nan) for x in (values, initial, values, gates, initial))
    scan.lerp_forward(values, gates, initial, outputs, final)
    scan.lerp_backward(outputs, final, values, gates, initial, outputs, *grads)
    return [outputs, final, *grads]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_threads_change_nothing(per_channel: bool, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of slices gives the same bits, also when the workers are too late to take any."""
    alone = run(per_channel)
    monkeypatch.setattr(scan, "WORTH_SHARING", 1)
    if late:
        monkeypatch.setattr(shared, "_workers", LateWorkers)
    for threads in (2, 3, 5, 100):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        for one, other in zip(alone, run(per_channel), strict=True):
            np.testing.assert_array_equal(one, other)


class LateWorkers:
    """A pool whose workers never wake."""

    def submit(self, *arguments: Any) -> "LateWorkers":
        return self

    def cancel(self) -> bool:
        return True


def test_a_worker_s_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "WORTH_SHARING", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def fails(first: int, last: int) -> None:
        if first:
            raise MemoryError

    with pytest.raises(MemoryError):
        scan._share(fails, (), 4, 4)


@pytest.mark.slow
def test_a_forked_process_has_workers_of_its_own() -> None:
    """Known failure elsewhere: OpenMP loops die in the workers of a DataLoader, which are forked."""
    code = """
import os, numpy as np, torch
from longspan.ops.scan import numba as scan
scan.WORTH_SHARING = 1
torch.set_num_threads(2)
def run():
    out, final = np.zeros((2, 9, 1, 1)), np.zeros((2, 1, 1))
    scan.lerp_forward(np.ones((2, 9, 1, 1)), np.full((2, 9, 1), 0.5), np.zeros((2, 1, 1)), out, final)
    return abs(final - (1 - 0.5**9)).max() < 1e-12
assert run()
child = os.fork()
if not child:
    os._exit(0 if run() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert ran.stdout.strip() == "0"


def test_loops_compile_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(x: np.ndarray) -> None:
        x *= 2

    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    x = np.ones(3)
    compiled(double)(x)
    assert x.tolist() == [2, 2, 2]


def test_gates_of_each_row_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "WORTH_SHARING", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    logits, initial = np.zeros((4, 9, 2)), np.full((4, 2), -1e30)
    gates, final = np.empty_like(logits), np.empty_like(initial)
    scan.gates_forward(logits, initial, np.empty((4, 0), bool), np.empty((4, 0, 2)), gates, final)
    np.testing.assert_allclose(gates, np.broadcast_to(1 / np.arange(1, 10)[:, None], gates.shape))
    np.testing.assert_allclose(final, np.log(9))
