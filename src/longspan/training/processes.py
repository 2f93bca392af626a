"""Several processes of one training run, as `torchrun` and `accelerate launch` start them.

Accelerate's `PartialState` knows the processes and connects them. This module adds what it lacks: long timeouts, and
ending all processes when one fails. Its `main_process_first` and `on_main_process` leave others waiting for a failed
process; `on_first`, `in_turn` and `in_each` wait for all and raise in all. `sharing` reports in one sentence that
connections broke because a process ended in the middle of shared work. With a single process, all of this does nothing.
"""

import atexit
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather, gather_object, parse_flag_from_env, reduce

from longspan.errors import UserError

T = TypeVar("T")

PATIENCE = timedelta(days=1)
"""How long processes wait for each other, for example while the first reads data or one scores the only document.

If one ends, for whatever reason, the others notice at once."""

_ELSEWHERE = "another process of this training run stopped; see its own message."
# Messages of gloo and NCCL when a process that they wait for has ended.
_BROKEN = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")


@contextlib.contextmanager
def sharing() -> Iterator[None]:
    """Raise UserError in place of connection errors caused by a process that has ended."""
    try:
        yield
    except RuntimeError as error:
        if _several() and any(words in str(error) for words in _BROKEN):
            raise UserError(_ELSEWHERE) from error
        raise


def connect() -> None:
    """Connect the processes that a launcher has started, if they compute on CPUs. Call this first.

    `TrainingArguments` connects processes with GPUs, with the timeout it is given; without GPUs it would request the
    backend of GPUs, or time out after half an hour.
    """
    on_cpu = not torch.accelerator.is_available() or parse_flag_from_env("ACCELERATE_USE_CPU")
    if "LOCAL_RANK" in os.environ and on_cpu and not _several():
        state = PartialState(cpu=True, timeout=PATIENCE)
        # The threads of gloo must end before the interpreter does, which would otherwise abort now and then.
        atexit.register(state.destroy_process_group)


def count() -> int:
    """Return the number of processes."""
    return int(PartialState().num_processes) if _several() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return int(PartialState().process_index) if _several() else 0


@sharing()
def wait() -> None:
    """Return once all processes have called this."""
    if _several():
        PartialState().wait_for_everyone()


@sharing()
def total(values: Sequence[float]) -> list[float]:
    """Return the sums of `values` over all processes, each with the same number of them."""
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
    """Replace `array` in each process by the sum over all processes; shapes and types must be equal."""
    if _several():
        array[...] = reduce(torch.from_numpy(array).to(PartialState().device), "sum").cpu().numpy()


@sharing()
def gathered(values: list[T]) -> list[T]:
    """Return the values of all processes, those of the first process first.

    Raises:
        UserError: Another process has ended.
    """
    found: list[T] = gather_object(values) if _several() else values
    return found


@contextlib.contextmanager
def agreed() -> Iterator[None]:
    """Raise UserError if another process ended its `with` block with an error, once all have ended theirs."""
    error = None
    try:
        yield
    except Exception as raised:
        error = raised
    failed = largest(error is not None)
    if error is not None:
        raise error
    if failed:
        raise UserError(_ELSEWHERE)


@sharing()
def on_first(work: Callable[[], T]) -> T:
    """Run `work` in the first process, while the others wait, and return its result in all.

    Raises:
        UserError: It raised an error in the first process, or another process has ended.
    """
    with agreed():
        results: list[Any] = [work()] if rank() == 0 else [None]
    if _several():
        broadcast_object_list(results)
    found: T = results[0]
    return found


def in_each(work: Callable[[], T]) -> T:
    """Run `work` in all processes at once and return its result."""
    with agreed():
        return work()


def in_turn(work: Callable[[], T]) -> T:
    """Run `work` in the first process, then in the others, which find its results in caches."""
    results = []
    for turn in (0, 1)[: count()]:
        with agreed():
            if min(rank(), 1) == turn:
                results.append(work())
    return results[0]


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """Share no work in the `with` block: the other processes follow this one (`longspan.verbs.together`)."""
    global _leads
    _leads = True
    try:
        yield
    finally:
        _leads = False


_leads = False


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and not _leads


def _tensor(values: Sequence[float]) -> torch.Tensor:
    # gloo communicates tensors on the CPU, NCCL tensors on a GPU.
    return torch.tensor(values, dtype=torch.float64, device=PartialState().device)
