"""How fast this machine multiplies matrices and copies memory: `measured_rates`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from longspan.machine.measuring import interleaved

_SIZES = {"cpu": (256, 512, 1024), "cuda": (2048, 4096, 8192)}
"""Widths of the square matrices that are multiplied; the fastest width counts."""
_COPIED = {"cpu": 1 << 27, "cuda": 1 << 29}
"""Bytes of the copied buffer: more than caches hold."""
_REPEATS = 9
_LONGEST = 0.5
"""Seconds of one product: no larger matrices are tried that are likely to take longer."""


@dataclass(frozen=True)
class Rates:
    """What a machine does per second with one type of number.

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
