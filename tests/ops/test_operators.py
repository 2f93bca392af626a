"""Operators whose kernels for a GPU do not run: plain operations replace them."""

import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from triton_interpreter import gpu_forms_on_cpu, kernels_on_cpu, needs_triton

from longspan.ops import operators, pooling, scan, softmax_pool
from longspan.ops.operators import Operator

Case = tuple[Callable[..., Any], tuple[Operator, ...], list[tuple[int, ...]]]
CASES: dict[str, Case] = {
    "lerp_scan": (scan.lerp_scan, (scan.lerp_scan_operator, scan.lerp_scan_gradient), [(2, 9, 3, 4), (2, 9, 3)]),
    "softmax_gates": (scan.softmax_gates, (scan.softmax_gates_operator, scan.softmax_gates_gradient), [(2, 9, 3)]),
    "softmax_pool": (
        pooling.softmax_pool,
        (softmax_pool.softmax_pool_operator, softmax_pool.softmax_pool_gradient),
        [(2, 9, 4), (2, 9, 3)],
    ),
}
pytestmark = needs_triton
every_case = pytest.mark.parametrize("name", CASES)


def fails(*_: Any, **__: Any) -> None:
    raise RuntimeError("PassManager::run failed\nmore of this on other lines")


def results(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """Outputs of a function, and gradients."""
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    found = function(*leaves)
    found = found if isinstance(found, tuple) else (found,)
    upstream = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in found]
    return [*(x.detach() for x in found), *torch.autograd.grad(found, leaves, upstream)]


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_failed", set())


@every_case
def test_plain_operations_replace_kernels_that_do_not_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known failure elsewhere: with Triton 3.6, `PassManager::run failed` ended training on a GPU."""
    function, (forward, backward), shapes = CASES[name]
    expected = results(function, shapes)
    folder, kernel = forward._folder, forward._kernels
    monkeypatch.setitem(sys.modules, f"{folder}.triton", SimpleNamespace(**{kernel: fails}))
    monkeypatch.setattr(pooling, "has_kernels", lambda tensor: True)
    with gpu_forms_on_cpu(forward, backward):
        with pytest.warns(RuntimeWarning) as caught:
            found = results(function, shapes)
        # Without another warning, which would be an error.
        again = results(function, shapes)
    torch.testing.assert_close([found, again], [expected, expected])
    (message,) = (str(each.message) for each in caught)
    version = importlib.metadata.version("triton")
    assert f"'{folder}.triton.{kernel}' does not run with Triton {version} (PassManager::run failed)" in message
    assert "please report" in message


@pytest.mark.slow
@every_case
def test_a_backward_pass_without_kernels_follows_a_forward_pass_with_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, (forward, backward), shapes = CASES[name]
    expected = results(function, shapes)
    monkeypatch.setattr(pooling, "has_kernels", lambda tensor: True)
    with kernels_on_cpu(forward, backward):
        kernels = importlib.import_module(f"{forward._folder}.triton")
        monkeypatch.setattr(kernels, backward._kernels, fails)
        with pytest.warns(RuntimeWarning, match=rf"triton\.{backward._kernels}' does not run"):
            found = results(function, shapes)
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("no_shape_checks")
def test_compiled_programs_go_on_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    function, (forward, backward), shapes = CASES["lerp_scan"]
    expected = results(function, shapes)
    monkeypatch.setitem(sys.modules, f"{forward._folder}.triton", SimpleNamespace(lerp_forward=fails))
    with gpu_forms_on_cpu(forward, backward), pytest.warns(RuntimeWarning, match="does not run"):
        found = results(torch.compile(function, backend="aot_eager", fullgraph=True), shapes)
    torch.testing.assert_close(found, expected)


def test_missing_memory_is_no_failure_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    function, (forward, backward), shapes = CASES["softmax_gates"]
    monkeypatch.setitem(sys.modules, f"{forward._folder}.triton", SimpleNamespace(gates_forward=run_out))
    with gpu_forms_on_cpu(forward, backward), pytest.raises(torch.OutOfMemoryError):
        results(function, shapes)
    assert not operators._failed
