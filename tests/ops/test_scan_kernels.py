"""The scans' kernels for a GPU, in Triton's interpreter: against the naive forms."""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from triton_interpreter import interpreter, kernels_on_cpu, needs_triton

from longspan.ops import scan

pytestmark = needs_triton
OPERATORS = [
    scan.lerp_scan_operator,
    scan.lerp_scan_gradient,
    scan.softmax_gates_operator,
    scan.softmax_gates_gradient,
]


@pytest.fixture
def _kernels() -> Iterator[None]:
    """Kernels with blocks of 16 positions."""
    with kernels_on_cpu(*OPERATORS):
        from longspan.ops.scan import triton as kernels

        with mock.patch.object(kernels, "LONGEST", 16):
            yield


with_kernels = pytest.mark.usefixtures("_kernels")


def results(function: Callable[..., tuple[Tensor, Tensor]], given: list[Any]) -> list[Tensor]:
    """Return outputs, and the gradients of all that has some."""
    leaves = [x.detach().requires_grad_() if x is not None and x.is_floating_point() else x for x in given]
    found = function(*leaves)
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in found]
    needed = [x for x in leaves if x is not None and x.requires_grad]
    return [*(x.detach() for x in found), *torch.autograd.grad(found, needed, upstream)]


@pytest.mark.slow
@with_kernels
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("t", [2, 16, 37])
def test_lerp_scan_is_the_recurrence(per_channel: bool, t: int) -> None:
    """Up to three blocks; five channels are divided among programs."""
    values, initial = torch.randn(2, t, 3, 5, dtype=torch.float64), torch.randn(2, 3, 5, dtype=torch.float64)
    gates = torch.rand(2, t, 3, *[5] * per_channel, dtype=torch.float64)
    given: list[Any] = [values, gates, initial, torch.rand(2, t) < 0.1]
    torch.testing.assert_close(results(scan.lerp_scan, given), results(scan.lerp_scan_naive, given))


@pytest.mark.slow
@with_kernels
@pytest.mark.parametrize("t", [2, 16, 37])
@pytest.mark.parametrize("largest", [1.0, 1e4])
def test_softmax_gates_are_the_formula(t: int, largest: float) -> None:
    """Some logits are hidden, and a new document begins now and then."""
    logits, initial = largest * torch.randn(2, t, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    logits = logits.masked_fill(torch.rand(2, t, 1) < 0.3, scan.FLOOR)
    given = [logits, initial, torch.rand(2, t) < 0.1, torch.rand(2, t, 3, dtype=torch.float64)]
    found, expected = results(scan.softmax_gates, given), results(scan.softmax_gates_naive, given)
    # The logarithm of what has seen nothing is far below any other, with digits of its own.
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[2], expected[2])


def test_other_tests_see_no_interpreter() -> None:
    with interpreter():
        import triton

        assert triton.knobs.runtime.interpret
        from longspan.ops.scan import triton as interpreted
    assert "TRITON_INTERPRET" not in os.environ
    assert sys.modules.get("triton") is not triton
    assert sys.modules.get("longspan.ops.scan.triton") is not interpreted
    from longspan.ops.scan import triton as kernels

    assert kernels is not interpreted
    assert type(kernels._lerp_forward) is not type(interpreted._lerp_forward)
