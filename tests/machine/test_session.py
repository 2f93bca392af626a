"""What the command line sets for its whole process."""

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from longspan.machine import session
from longspan.machine.session import _FACTORS, paused_collector, use_fastest_exact_products


@pytest.fixture
def precision() -> Iterator[str]:
    """The setting before a test, set back after it."""
    before = torch.get_float32_matmul_precision()
    yield before
    torch.set_float32_matmul_precision(before)


def rounding(rounds: Callable[[Tensor, Tensor], bool]) -> Callable[[Tensor, Tensor], Tensor]:
    """Matrix products as on a processor with bfloat16 matrix units, for the factors that `rounds` picks."""
    exact = Tensor.__matmul__

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        if a.dtype == torch.float32 and torch.get_float32_matmul_precision() == "medium" and rounds(a, b):
            a, b = a.bfloat16().float(), b.bfloat16().float()
        return exact(a, b)

    return multiply


def test_the_fast_products_are_exact(precision: str) -> None:
    assert use_fastest_exact_products() == torch.get_float32_matmul_precision()
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, 300, 300, generator=generator).unbind()
    exact = a.double() @ b.double()
    # 300 products in float32 err by 1e-6 at most; factors rounded to bfloat16 by 2e-3.
    assert float(((a @ b) - exact).abs().max() / exact.abs().max()) < 1e-5


@pytest.mark.skipif(torch.cuda.is_available(), reason="With a GPU nothing is changed.")
@pytest.mark.parametrize("before", ["highest", "high"])
def test_no_shape_may_be_rounded(before: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_float32_matmul_precision(before)
    for left, right in _FACTORS:

        def same(a: Tensor, b: Tensor, shapes: tuple[tuple[int, ...], ...] = (left, right)) -> bool:
            return (tuple(a.shape), tuple(b.shape)) == shapes

        with monkeypatch.context() as patched:
            patched.setattr(Tensor, "__matmul__", rounding(same))
            assert use_fastest_exact_products() == torch.get_float32_matmul_precision() == before
    # Weights of linear layers are transposed, and may take another routine.
    monkeypatch.setattr(Tensor, "__matmul__", rounding(lambda a, b: not b.is_contiguous()))
    assert use_fastest_exact_products() == torch.get_float32_matmul_precision() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="With a GPU nothing is changed.")
def test_where_nothing_is_rounded_it_is_on(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr("longspan.machine.session._largest_error", lambda: 1e-6)
    assert use_fastest_exact_products() == torch.get_float32_matmul_precision() == "medium"


def test_garbage_is_collected_after_loading_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    monkeypatch.setattr(session, "_frozen", False)
    for _ in range(2):
        with paused_collector():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert len(frozen) == 1
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
