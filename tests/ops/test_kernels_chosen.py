"""Which operators a GPU gets, and the shapes of what they return: with tensors that have no numbers, so without one."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.ops import execution, linear, pooling


class _Called(TorchDispatchMode):
    """The names of the project's own operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, name = func.name().split("::")
        if space == "longspan":
            self.names.append(name.split(".")[0])
        return func(*args, **(kwargs or {}))


def pool(x: Tensor) -> Tensor:
    return pooling.softmax_pool(x.flatten(0, 1), x.flatten(0, 1))


def read(x: Tensor) -> Tensor:
    return linear.linear_attention(x, x, x)


CASES: list[tuple[Callable[[Tensor], Tensor], set[str]]] = [
    (pool, {"softmax_pool"}),
    (read, set()),
]


@pytest.mark.parametrize(("function", "names"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_gets_kernels_where_triton_is(
    function: Callable[[Tensor], Tensor], names: set[str], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of such tensors need a PyTorch that knows of GPUs."""
    monkeypatch.setattr(execution, "TRITON", True)
    with FakeTensorMode(), _Called() as mode:
        x = torch.empty(2, 3, 40, 4, dtype=dtype, device="cuda")
        out = function(x)
    assert set(mode.names) == names
    assert (out.dtype, out.device.type) == (dtype, "cuda")


def test_other_tensors_get_plain_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeTensorMode():
        single, double = (torch.empty(1, dtype=dtype, device="cuda") for dtype in (torch.float32, torch.float64))
    monkeypatch.setattr(execution, "TRITON", True)
    assert execution.has_kernels(single)
    # Not all releases of Triton compile products of float64.
    assert not execution.has_kernels(double)
    assert not execution.has_kernels(torch.empty(1))
    monkeypatch.setattr(execution, "TRITON", False)
    assert not execution.has_kernels(single)


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "1"])
def test_a_variable_of_the_environment_does_without_kernels(value: str) -> None:
    code = "from longspan.ops import execution; print(execution.TRITON)"
    environment = {**os.environ, "LONGSPAN_TRITON": value}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(value == "1" and importlib.util.find_spec("triton") is not None)


def test_a_cpu_pools_in_plain_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "TRITON", True)
    with _Called() as mode:
        pool(torch.randn(2, 3, 40, 4))
    assert not mode.names


@pytest.mark.parametrize("width", [linear.WIDEST, linear.WIDEST + 1])
def test_wide_heads_are_products_of_matrices(width: int) -> None:
    with _Called() as mode:
        read(torch.randn(1, 1, 2, width))
    assert mode.names == (["linear_sums", "linear_read"] if width == linear.WIDEST else [])
