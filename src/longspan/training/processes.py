"""Several processes of one training run, as `torchrun` and `accelerate launch` start them.

Accelerate's `PartialState` knows the processes and connects them. What is here it does not do: wait with patience, and
end all processes when one fails. Its `main_process_first` and `on_main_process` let the others wait for a process that
has failed; each of `on_first`, `in_turn` and `in_each` waits for all and raises in all, and `sharing` makes one
sentence of the connections that break when a process ends in the middle of the shared work. With a single process all
of this does nothing.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import gather, parse_flag_from_env, reduce

from longspan.errors import UserError

T = TypeVar("T")

PATIENCE = timedelta(days=1)
"""How long processes wait for each other: while the first reads data, or one scores the only document, for example. One
that ends, for whatever reason, is noticed at once."""

_ELSEWHERE = "another process of this training run stopped: its own message says why."
# What gloo and NCCL say when a process that they wait for has ended.
_BROKEN = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")


@contextlib.contextmanager
def sharing() -> Iterator[None]:
    """Raise UserError in place of what the connection to a process says that has ended meanwhile."""
    try:
        yield
    except RuntimeError as error:
        if _several() and any(words in str(error) for words in _BROKEN):
            raise UserError(_ELSEWHERE) from error
        raise


def connect() -> None:
    """Connect the processes that a launcher has started, if they compute on CPUs. Do this first.

    `TrainingArguments` connects those with GPUs, with the patience it is given; without GPUs it would ask for GPUs'
    backend, or wait for half an hour at most.
    """
    on_cpu = not torch.accelerator.is_available() or parse_flag_from_env("ACCELERATE_USE_CPU")
    if "LOCAL_RANK" in os.environ and on_cpu:
        PartialState(cpu=True, timeout=PATIENCE)


def count() -> int:
    """Return how many processes there are."""
    return int(PartialState().num_processes) if _several() else 1


def rank() -> int:
    """Return which of them this is, from 0."""
    return int(PartialState().process_index) if _several() else 0


@sharing()
def wait() -> None:
    """Return once all processes have come here."""
    if _several():
        PartialState().wait_for_everyone()


@sharing()
def total(values: Sequence[float]) -> list[float]:
    """Return the sums of `values` over all processes, each of which gives as many."""
    if not _several():
        return list(values)
    sums: list[float] = reduce(_tensor(values), "sum").tolist()
    return sums


@sharing()
def largest(value: float) -> float:
    """Return the largest `value` of all processes."""
    return float(gather(_tensor([value])).max()) if _several() else value


@sharing()
def sum_into(array: np.ndarray) -> None:
    """Put the sum of all processes' `array` in the place of each; equal shapes and types."""
    if _several():
        array[...] = reduce(torch.from_numpy(array).to(PartialState().device), "sum").cpu().numpy()


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
        raise UserError(_ELSEWHERE)
    return done


def _several() -> bool:
    return dist.is_available() and dist.is_initialized()


def _tensor(values: Sequence[float]) -> torch.Tensor:
    # gloo moves what is on the CPU, NCCL what is on a GPU.
    return torch.tensor(values, dtype=torch.float64, device=PartialState().device)
