"""Rivals that take turns in one process, so that what slows the machine for a while slows them all."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from longspan.machine.floors import interleaved


def medians(candidates: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median milliseconds of each candidate over `repeats` turns, after one that is not counted.

    The first turn compiles and touches memory.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    interleaved(candidates, repeats=1, device=device)
    times = interleaved(candidates, repeats=repeats, device=device)
    return {name: 1000 * taken.median for name, taken in times.items()}


def attend(function: Callable[..., Tensor], inputs: Sequence[Tensor], gradient: Tensor | None) -> None:
    """Call a function of `inputs` and, given its output's gradient, run it backward to all of them."""
    with torch.set_grad_enabled(gradient is not None):
        out = function(*inputs)
        if gradient is not None:
            torch.autograd.grad(out, inputs, gradient)


def settle_allocator() -> None:
    """Have glibc keep freed memory, as it does late in a training run.

    It decides how much by the largest block, up to 32 MiB, that was ever given back to it.
    """
    torch.empty(31 << 18)
