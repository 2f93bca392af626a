"""Several processes of one training, as `torchrun` starts them; with a single one, all of this does nothing.

What goes wrong in one process ends the others too: each of `on_first`, `in_turn` and `in_each` waits for all and raises
in all. An error elsewhere closes the connections of the process it ends, which raises in those that wait for it.
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist

from longspan.errors import UserError

T = TypeVar("T")

PATIENCE = timedelta(days=1)
"""How long processes wait for each other: while the first reads data, or one scores the only document, for example. One
that ends, for whatever reason, is noticed at once."""


def connect() -> None:
    """Connect the processes that `torchrun` has started, if there are no GPUs, by which the Trainer would do it.

    Without GPUs its own way has a fixed patience of half an hour.
    """
    if "LOCAL_RANK" in os.environ and not torch.accelerator.is_available() and not _several():
        dist.init_process_group("gloo", timeout=PATIENCE)


def count() -> int:
    """Return how many processes there are."""
    return dist.get_world_size() if _several() else 1


def rank() -> int:
    """Return which of them this is, from 0."""
    return dist.get_rank() if _several() else 0


def total(values: Sequence[float]) -> list[float]:
    """Return the sums of `values` over all processes, each of which gives as many."""
    return _reduced(values, dist.ReduceOp.SUM) if _several() else list(values)


def sum_into(array: np.ndarray) -> None:
    """Put the sum of all processes' `array` in the place of each; equal shapes and types."""
    if _several():
        summed = torch.from_numpy(array).to(_device())
        dist.all_reduce(summed)
        array[...] = summed.cpu().numpy()


def wait() -> None:
    """Return once all processes have come here."""
    total([0])


def largest(value: float) -> float:
    """Return the largest `value` of all processes."""
    return _reduced([value], dist.ReduceOp.MAX)[0] if _several() else value


def on_first(work: Callable[[], None]) -> None:
    """Do `work` in the first process, while the others wait."""
    _agreed(work if rank() == 0 else None)


def in_each(work: Callable[[], T]) -> T:
    """Do `work` in all processes at once and return its result."""
    done = _agreed(work)
    assert done is not None
    return done[0]


def in_turn(work: Callable[[], T]) -> T:
    """Do `work` in the first process, then in the others, which find in caches what it has left there."""
    first = _agreed(work if rank() == 0 else None)
    others = _agreed(None if rank() == 0 else work) if _several() else None
    done = first or others
    assert done is not None
    return done[0]


def _agreed(work: Callable[[], T] | None) -> tuple[T] | None:
    """Return the result of `work`, once all processes are done with theirs.

    Raises what `work` raises, and UserError when it was another process that failed.
    """
    done, error = None, None
    try:
        done = None if work is None else (work(),)
    except Exception as raised:
        error = raised
    failed = largest(error is not None)
    if error is not None:
        raise error
    if failed:
        raise UserError("another process of this training stopped: its own message says why.")
    return done


def _several() -> bool:
    return dist.is_available() and dist.is_initialized()


def _reduced(values: Sequence[float], by: "dist.ReduceOp.RedOpType") -> list[float]:
    numbers = torch.tensor(values, dtype=torch.float64, device=_device())
    dist.all_reduce(numbers, by)
    reduced: list[float] = numbers.tolist()
    return reduced


def _device() -> str:
    # NCCL moves what is on a GPU, gloo what is on the CPU.
    return "cuda" if dist.get_backend() == "nccl" else "cpu"
