"""Evaluation and prediction over the processes that `torchrun` starts: each reads a slice of every row.

The first process runs the verb. Its model gives each batch to the other processes, which wait for it and do nothing
else: so only one reads data and writes results.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from longspan.errors import UserError
from longspan.models.parts.losses import IGNORED
from longspan.ops import slices
from longspan.training import processes
from longspan.training.context_parallel import ProcessSlices, check_model, cut_batch, process_slices

if TYPE_CHECKING:
    from longspan.tasks.base.task import Run

#: What else of a batch is as long as its main stream, with its padding.
BESIDE = {"attention_mask": 0, "shift_labels": IGNORED}


@contextlib.contextmanager
def reading_slices(run: "Run") -> Iterator[bool]:
    """Let all processes read slices of the same rows in the `with` block; False in those that have followed the first.

    With one process, nothing changes. Raises UserError for a model that cannot read slices, or without CPUs alone.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield True
        return
    processes.connect()
    if processes.count() == 1:
        raise UserError(
            "expected several processes on CPUs to read slices of the same rows, got GPUs; start one process, or set "
            "ACCELERATE_USE_CPU=true."
        )
    with processes.sharing():
        check_model(run.model)
        cut = process_slices(processes.count())
        forward, main = run.model.forward, run.model.main_input_name
        if cut.number:
            run.model.eval()
            _follow(cut, forward, main)
            yield False
            return
        run.model.forward = _Leading(cut, forward, main)
        try:
            with processes.leading():
                yield True
        except BaseException:
            # Where the others have ended, the reason is to be told, not that.
            with contextlib.suppress(RuntimeError):
                _told(cut, None)
            raise
        else:
            _told(cut, None)
        finally:
            run.model.forward = forward


class _Leading:
    """The forward pass of the first process, in which the others take part."""

    def __init__(self, cut: ProcessSlices, forward: Callable[..., Any], main: str) -> None:
        self.cut, self.forward, self.main = cut, forward, main

    def __call__(self, **inputs: Any) -> Any:
        if inputs.get("past_key_values") is not None or inputs.get("use_cache"):
            raise UserError(
                "expected documents without carried states to be cut over processes, got carried ones, which one "
                "process reads in constant memory; start one process, or add --context sliding --window N."
            )
        inputs.pop("past_key_values", None)
        if inputs.get(self.main) is None:
            raise UserError(f"expected {self.main} to cut over processes, got other inputs; start one process.")
        _told(self.cut, inputs)
        return _read(self.cut, self.forward, self.main, inputs)


def _follow(cut: ProcessSlices, forward: Callable[..., Any], main: str) -> None:
    with torch.no_grad():
        while (inputs := _told(cut, None)) is not None:
            _read(cut, forward, main, inputs)


def _told(cut: ProcessSlices, inputs: dict[str, Any] | None) -> dict[str, Any] | None:
    """Inputs of a batch that the first process has; None at the end."""
    box = [inputs]
    dist.broadcast_object_list(box, src=0, group=cut.group)
    return box[0]


def _read(cut: ProcessSlices, forward: Callable[..., Any], main: str, inputs: dict[str, Any]) -> Any:
    """Output for whole rows, of which each process reads a slice: logits of rows, or losses of their tokens."""
    length = inputs[main].shape[1]
    if inputs.get("attention_mask") is None:
        inputs = {**inputs, "attention_mask": torch.ones_like(inputs[main])}
    given = {name: each for name, each in inputs.items() if each is not None}
    with slices.entered(cut):
        output = forward(**cut_batch(cut, given, {main: 0, **BESIDE}))
    losses = output.get("losses")
    if isinstance(losses, Tensor):
        output["losses"] = torch.cat(cut.gather(losses), 1)[:, :length]
    return output
