"""Checks of mixers that read slices of rows, without processes: each slice has a thread."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from longspan.errors import UserError
from longspan.ops import slices
from longspan.testing.mixers.subject import NARROW, Subject, need, refused

Result = TypeVar("Result")
# Of float64, of outputs, and of states and gradients, which add up more.
OUTPUTS, SUMS = 1e-12, 1e-9


class ThreadSlices(slices.Slices):
    """Slices that threads of this process read, of any lengths."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._own = threading.local()
        self._parts: list[Any] = [None] * count
        self._all_there = threading.Barrier(count, timeout=60)

    @property
    def number(self) -> int:  # type: ignore[override]
        found: int = self._own.number
        return found

    def gather(self, part: Any) -> list[Any]:
        self._parts[self.number] = part
        self._all_there.wait()
        found = list(self._parts)
        # Nobody gives the next part before all have these.
        self._all_there.wait()
        return found

    def halo(self, x: Tensor, left: int, right: int) -> Tensor:
        parts = self.gather(x)
        blank = [x.new_zeros(x.shape[0], size, *x.shape[2:]) for size in (left, right)]
        whole = torch.cat((blank[0], *parts, blank[1]), 1)
        start = sum(part.shape[1] for part in parts[: self.number])
        return whole[:, start : start + left + x.shape[1] + right]

    def run(self, number: int, read: Callable[[int], Result]) -> Result:
        """Return `read(number)`, in a thread of the slice of that number."""
        self._own.number = number
        try:
            return read(number)
        except BaseException:
            self._all_there.abort()
            raise


def in_slices(count: int, read: Callable[[int], Result]) -> list[Result]:
    """Return `read(number)` of each slice, all computed at once in threads, which exchange what they sum up to."""
    cut = ThreadSlices(count)
    with slices.entered(cut), ThreadPoolExecutor(count) as threads:
        running = [threads.submit(cut.run, number, read) for number in range(count)]
        errors = [error for each in running if (error := each.exception()) is not None]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [each.result() for each in running]


def slices_are_the_whole(subject: Subject) -> None:
    """Rows that are cut into slices, empty ones too, give the outputs, gradients and states of whole rows."""
    draw = torch.Generator().manual_seed(0)
    for number, mask in enumerate(subject.masks()):
        cuts = torch.randint(0, mask.shape[1] + 1, (1 + number % 4,), generator=draw).sort().values.tolist()
        agree(subject, None if number % 2 and mask.all() else mask, cuts)
    agree(subject, None, [3, 3, 11], length=20)


def agree(subject: Subject, mask: Tensor | None, cuts: Sequence[int], length: int = 0) -> None:
    """Raise AssertionError unless rows cut before these positions give what whole rows give, in float64."""
    mixer = subject.build(torch.float64, **NARROW)
    b, t = (2, length) if mask is None else mask.shape
    sizes = [after - before for before, after in zip([0, *cuts], [*cuts, t], strict=True)]
    x = subject.inputs(b, t, torch.float64).requires_grad_()
    shares = torch.linspace(-1, 2, t * subject.dim, dtype=torch.float64, device=x.device).view(t, -1)
    parts, real = x.split(sizes, 1), [None] * len(sizes) if mask is None else mask.split(sizes, 1)
    with_states = subject.streams and mixer.halo is None and not t % 2

    def read(number: int) -> Any:
        if with_states:
            return mixer.step(parts[number], mixer.init_state(b), real[number])
        return mixer(parts[number], real[number]), ()

    found = in_slices(len(sizes), read)
    y = torch.cat([each[0] for each in found], 1)
    expected, state = mixer.step(x, mixer.init_state(b), mask) if with_states else (mixer(x, mask), ())
    _close(y, expected, OUTPUTS, "outputs")
    for own, whole in zip(tree_leaves(found[-1][1]), tree_leaves(state), strict=True):
        _close(own, whole, SUMS, "states")
    wanted = [x, *mixer.parameters()]
    gradients = [
        torch.autograd.grad((each * shares).sum(), wanted, allow_unused=True, materialize_grads=True)
        for each in (y, expected)
    ]
    for own, whole in zip(*gradients, strict=True):
        _close(own, whole, SUMS, "gradients")


def _close(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Compare numbers relative to the largest one, but at least one."""
    if found.numel():
        largest = float(expected.detach().abs().max().clamp(min=1, max=1e6))
        difference = float((found - expected).detach().abs().max())
        need(difference <= tolerance * largest, f"{what} of slices differ by {difference:.1e}")


def slices_are_refused(subject: Subject) -> None:
    """A mixer that cannot read slices of rows refuses them in a sentence."""
    mixer = subject.build()
    refused(UserError, "slices", lambda: in_slices(2, lambda _: mixer(subject.inputs(1, 4))))
