"""What the contract is asked of and with: every mixer, its inputs and masks, and when two results are the same."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from longspan import mixers
from longspan.testing.counting import count_operations

DIM, HEADS = 16, 4
# Float32 sums in another order differ by a few units in the last place; bfloat16 keeps eight bits.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 6e-2}


def variants() -> Iterator[Any]:
    """Every mixer, and its causal form where it has one."""
    for name in mixers.names():
        for causal in (False, True) if mixers.describe(name).causal else (False,):
            yield pytest.param(name, causal, id=f"{name}-causal" if causal else name)


every = pytest.mark.parametrize(("name", "causal"), list(variants()))
linear = pytest.mark.parametrize("name", [n for n in mixers.names() if "t²" not in mixers.describe(n).cost])
crossing = pytest.mark.parametrize("name", [n for n in mixers.names() if mixers.describe(n).context])
causal_only = pytest.mark.parametrize("name", [n for n in mixers.names() if mixers.describe(n).causal])
both_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def close_with_gradients(y: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    """Compare outputs, and the gradients of their squares by `inputs`."""
    torch.testing.assert_close(y, expected)
    got = torch.autograd.grad((y**2).sum(), inputs)
    torch.testing.assert_close(got, torch.autograd.grad((expected**2).sum(), inputs))


def known(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return those of the options that the mixer has."""
    return {option: value for option, value in options.items() if option in mixers.options(name)}


def build(name: str, causal: bool = False, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    torch.manual_seed(0)
    return mixers.build(name, DIM, **known(name, {"heads": HEADS, "causal": causal}) | options).to(dtype)


def naive_form(name: str) -> Callable[..., Tensor]:
    """Return the mixer's formula written out, which takes the mixer and its arguments."""
    form: Callable[..., Tensor] = importlib.import_module(f"longspan.mixers.{name}").naive
    return form


def inputs(b: int, t: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(b, t, DIM, generator=torch.Generator().manual_seed(b * 1000 + t)).to(dtype)


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype | None = None) -> None:
    tolerance = TOLERANCE[dtype or actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


lengths = st.integers(1, 70)


@st.composite
def masks(draw: st.DrawFn) -> Tensor:
    """Any pattern of real tokens: padding left, right, between, and rows without any."""
    b, t = draw(st.integers(1, 3)), draw(lengths)
    kind = draw(st.sampled_from(["left", "right", "any", "empty", "one"]))
    mask = torch.ones(b, t, dtype=torch.bool)
    for row in range(b):
        cut = draw(st.integers(0, t))
        if kind == "left":
            mask[row, :cut] = False
        elif kind == "right":
            mask[row, cut:] = False
        elif kind == "any":
            mask[row] = torch.tensor(draw(st.lists(st.booleans(), min_size=t, max_size=t)))
        elif kind == "one":
            mask[row] = torch.arange(t) == cut
    if kind == "empty":
        mask[0] = False
    return mask


@st.composite
def cuts(draw: st.DrawFn, t: int) -> list[int]:
    """The sizes of any segments of `t` positions."""
    sizes: list[int] = []
    while sum(sizes) < t:
        sizes.append(draw(st.integers(1, t - sum(sizes))))
    return sizes


def count_flops(mixer: nn.Module, t: int) -> int:
    return count_operations(lambda: mixer(torch.zeros(1, t, DIM)))
