"""Slices of rows over processes: `training.context_parallel`."""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from longspan.errors import UserError
from longspan.mixers.base import Mixer
from longspan.models.embeddings.base import Embeddings
from longspan.models.heads.classification import Pooling
from longspan.ops.slices import Slices, packed
from longspan.training import processes

Part = TypeVar("Part")


class ProcessSlices(Slices):
    """Slices of equal length that the processes of a group read, in the order of their ranks.

    Attributes:
        received: bytes that this process has received from the others in forward passes.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(dist.get_rank(group), dist.get_world_size(group))
        self.group = group
        self.received = 0

    def gather(self, part: Part) -> list[Part]:
        flat, unpacked = packed(part)
        sizes = [flat.numel()] * self.count
        return [unpacked(each) for each in self._exchanged(flat.repeat(self.count), sizes, sizes).split(sizes)]

    def halo(self, x: Tensor, left: int, right: int) -> Tensor:
        numbers = range(self.count)
        sent = [x[:, self._needed(x.shape[1], left, right, reader, self.number)] for reader in numbers]
        wanted = [self._needed(x.shape[1], left, right, self.number, source) for source in numbers]
        lengths = [place.stop - place.start for place in wanted]
        width = x[:, :1].numel()
        flat = self._exchanged(
            torch.cat([part.flatten() for part in sent]),
            [part.numel() for part in sent],
            [length * width for length in lengths],
        )
        pieces = flat.split([length * width for length in lengths])
        parts = [piece.view(x.shape[0], length, *x.shape[2:]) for piece, length in zip(pieces, lengths, strict=True)]
        before, after = sum(lengths[: self.number]), sum(lengths[self.number + 1 :])
        blank = [x.new_zeros(x.shape[0], size, *x.shape[2:]) for size in (left - before, right - after)]
        own = [*parts[: self.number], x, *parts[self.number + 1 :]]
        return torch.cat((blank[0], *own, blank[1]), 1)

    def cut(self, rows: Tensor, padding: int) -> Tensor:
        """This slice of rows (b, t, ...) after `padding` at their ends, with which all slices are as long."""
        length = -(-rows.shape[1] // self.count)
        whole = rows.new_full((rows.shape[0], length * self.count, *rows.shape[2:]), padding)
        whole[:, : rows.shape[1]] = rows
        return whole[:, self.number * length : (self.number + 1) * length]

    def check_same(self, rows: Mapping[str, Tensor], device: torch.device) -> None:
        """Raise UserError unless all processes of the group have the same rows."""
        marks = []
        for each in rows.values():
            numbers = each.flatten().double()
            marks += [numbers.new_tensor(len(numbers)), numbers @ torch.arange(1.0, len(numbers) + 1).to(numbers)]
        own = torch.stack(marks).to(device)
        if any(not torch.equal(other, own) for other in self.gather(own)):
            raise UserError(
                "expected the same rows in all processes that training.context_parallel joins, got others; give them "
                "all the same data and settings."
            )

    def _needed(self, length: int, left: int, right: int, reader: int, source: int) -> slice:
        """Positions of a slice that another one reads, all of that length."""
        if source < reader:
            return slice(min(length, max(0, (reader - source) * length - left)), length)
        return slice(0, min(length, max(0, right - (source - reader - 1) * length)) if source > reader else 0)

    def _exchanged(self, flat: Tensor, sent: list[int], received: list[int]) -> Tensor:
        self.received += (sum(received) - received[self.number]) * flat.element_size()
        found: Tensor = _Exchange.apply(flat, sent, received, self.group)
        return found


class _Exchange(Function):
    """Parts of a tensor for each process of a group, and what these send; gradients go the way back.

    An all-gather sends the same part to all, and its backward pass, a sum of what all send back, is a reduce-scatter.
    Over gloo, whose own one is an all-reduce, this takes half the bytes.
    """

    @staticmethod
    def forward(ctx: Any, flat: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sizes, ctx.group = (sent, received), group
        return _sent(flat, sent, received, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        sent, received = ctx.sizes
        return _sent(gradient, received, sent, ctx.group), None, None, None


def _sent(flat: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    found = flat.new_empty(sum(received))
    dist.all_to_all_single(found, flat.contiguous(), received, sent, group=group)
    return found


def process_slices(count: int) -> ProcessSlices:
    """Slices that each `count` successive processes read together. All processes call this.

    Raises UserError unless that divides their number.
    """
    world = processes.count()
    if world % count:
        raise UserError(
            f"expected a number of processes that training.context_parallel={count} divides, got {world}; start "
            f"{count} processes, or a multiple, with torchrun."
        )
    groups = [
        dist.new_group(list(range(first, first + count)), timeout=processes.PATIENCE)
        for first in range(0, world, count)
    ]
    return ProcessSlices(groups[processes.rank() // count])


def check_model(model: nn.Module) -> None:
    """Raise UserError for a model with parts that cannot read slices of rows."""
    for module in model.modules():
        if isinstance(module, Mixer) and not module.takes_slices:
            _refuse(f"the mixer {type(module).__name__}", "choose mixers such as additive or linear")
        if isinstance(module, Embeddings) and not module.takes_slices:
            _refuse("embeddings that look at whole rows", "leave characters of words and encoders out")
        if isinstance(module, Pooling) and module.name == "first":
            _refuse("pooling=first", "choose attention, mean or max")
    if getattr(model, "wide", None) is not None:
        _refuse("a wide part, which counts whole documents", "set model.wide=false")


def _refuse(what: str, instead: str) -> None:
    raise UserError(
        f"expected a model that reads slices of rows for training.context_parallel, got {what}; {instead}, or leave "
        "training.context_parallel out."
    )


def cut_batch(cut: ProcessSlices, batch: dict[str, Any], paddings: Mapping[str, int]) -> dict[str, Any]:
    """Batch whose streams (b, t, ...), named with their padding, are slices of its rows."""
    return {name: cut.cut(each, paddings[name]) if name in paddings else each for name, each in batch.items()}
