"""Attention within windows and over chosen blocks against the naive forms, in all ways it can be computed."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from longspan.ops import window
from longspan.ops.window import Shared, block_attention, engines, portions, sliding, window_attention


@pytest.fixture(params=["in portions", "fused", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All ways: the fused one is what compilers and GPUs get, the plain one what transforms get."""
    if request.param == "fused":
        monkeypatch.setattr(engines, "in_portions", lambda query: False)
    if request.param == "plain":
        monkeypatch.setattr(engines, "transformed", lambda: True)
    return str(request.param)


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def some_shared(b: int, h: int, g: int) -> Shared:
    present = torch.arange(g).expand(b, g) < torch.tensor([[g], [g - 1]])
    return Shared(normal(b, h, g, 3), normal(b, h, g, 5), present)


@pytest.mark.slow
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("with_shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize("causal", [False, True], ids=["both sides", "causal"])
def test_agrees_with_the_naive_form(causal: bool, with_shared: bool) -> None:
    for n, past, radius, density in itertools.product((1, 33, 70), (0, 40), (0, 5, 36), (1.0, 0.4, 0.02)):
        query, key, value = normal(2, 2, n, 3), normal(2, 2, n + past, 3), normal(2, 2, n + past, 5)
        mask = torch.rand(2, n + past) < density if density < 1 else None
        shared = some_shared(2, 2, 2) if with_shared else None
        out = window_attention(query, key, value, radius, mask, causal, shared)
        expected = window.window_attention_naive(query, key, value, radius, mask, causal, shared)
        torch.testing.assert_close(out, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("scores", [1, 3000, 20000])
def test_portions_of_any_size_give_the_same(scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "SCORES", scores)
    query, key, value = (normal(3, 2, 150, 3).requires_grad_() for _ in range(3))
    mask = torch.rand(3, 150) > 0.3
    out = window_attention(query, key, value, 7, mask)
    expected = window.window_attention_naive(query, key, value, 7, mask)
    torch.testing.assert_close(out, expected)
    for actual, wanted in zip(
        torch.autograd.grad((out**2).sum(), (query, key, value)),
        torch.autograd.grad((expected**2).sum(), (query, key, value)),
        strict=True,
    ):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.slow
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("causal", [False, True])
def test_gradients(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliding, "BLOCK", 4)
    query, key, value = normal(2, 1, 7, 2), normal(2, 1, 9, 2), normal(2, 1, 9, 3)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :6] = False
    everywhere = normal(2, 1, 2, 2), normal(2, 1, 2, 3)
    present = torch.tensor([[True, True], [True, False]])

    def both(query: Tensor, key: Tensor, value: Tensor, more_keys: Tensor, more_values: Tensor) -> Any:
        shared = Shared(more_keys, more_values, present)
        return tuple(window_attention(query, key, value, 2, mask, causal, s) for s in (None, shared))

    inputs = tuple(x.requires_grad_() for x in (query, key, value, *everywhere))
    assert torch.autograd.gradcheck(both, inputs)


def test_a_backward_pass_under_autocast_keeps_the_precision_of_the_forward_pass() -> None:
    query, key, value = (normal(1, 2, 100, 4, dtype=torch.float32).requires_grad_() for _ in range(3))
    out = window_attention(query, key, value, 10).sum()
    expected = torch.autograd.grad(out, (query, key, value), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        for actual, wanted in zip(torch.autograd.grad(out, (query, key, value)), expected, strict=True):
            torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("with_shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize("autocast", [False, True], ids=["as it is", "autocast"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_with_gradients_is_computed_in_float32(
    dtype: torch.dtype, autocast: bool, with_shared: bool
) -> None:
    given = [normal(1, 2, 100, e).to(dtype) for e in (4, 4, 5)]
    shared = Shared(normal(1, 2, 3, 4).to(dtype), normal(1, 2, 3, 5).to(dtype), torch.ones(1, 3, dtype=torch.bool))
    results = []
    for kind in (torch.float64, dtype):
        query, key, value = (x.to(kind).requires_grad_() for x in given)
        also = Shared(shared.key.to(kind), shared.value.to(kind), shared.mask) if with_shared else None
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast and kind == dtype):
            out = window_attention(query, key, value, 10, shared=also)
        assert out.dtype == kind
        results.append([out.detach(), *torch.autograd.grad(out.sum(), (query, key, value))])
    for exact, rounded in zip(*results, strict=True):
        # Each is rounded once, by at most half a unit of the largest number; the rest is for sums in float32.
        tolerance = 0.51 * torch.finfo(dtype).eps * float(exact.abs().max())
        torch.testing.assert_close(rounded.double(), exact, rtol=0, atol=tolerance)


@pytest.mark.usefixtures("way")
def test_fewer_queries_than_keys_continue_the_sequence() -> None:
    """Known failure elsewhere: causal masks aligned to the wrong corner when queries are fewer than keys."""
    query, key, value = (normal(1, 2, 100, 4) for _ in range(3))
    whole = window_attention(query, key, value, 10, causal=True)
    torch.testing.assert_close(window_attention(query[:, :, 60:], key, value, 10, causal=True), whole[:, :, 60:])


@pytest.mark.usefixtures("way")
def test_logits_of_ten_thousand_are_right_backward_too() -> None:
    """Known failure elsewhere: unshifted exp is infinite at 89 in float32."""
    query, key, value = (normal(1, 1, 90, 4) for _ in range(3))
    # All logits of a query lie near 1e4 or -1e4 and differ by a few units.
    query[..., 0] = 200 * query[..., 0].sign()
    key[..., 0] = 100
    results = []
    for dtype in (torch.float64, torch.float32):
        inputs = [x.to(dtype).requires_grad_() for x in (query, key, value)]
        out = window_attention(inputs[0], inputs[1], inputs[2], 10)
        results.append([out.detach(), *torch.autograd.grad((out**2).sum(), inputs)])
    # Sums near 2e4 are rounded by up to 1e-3 with each of four terms, in any order; weights err as much as logits.
    for wide, narrow in zip(*results, strict=True):
        torch.testing.assert_close(narrow.double(), wide, rtol=0, atol=1e-2 * float(wide.abs().max()))


@pytest.mark.usefixtures("way")
def test_chosen_blocks_agree_with_the_naive_form(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = normal(2, 3, 5, 4, 2), normal(2, 3, 7, 3, 2), normal(2, 3, 7, 3, 4)
    chosen = torch.rand(2, 3, 5, 7).argsort(-1)[..., :4]
    chosen[0, 0, :, 1] = chosen[1, 1, 2] = -1
    mask = torch.rand(2, 7, 3) > 0.3
    expected = window.block_attention_naive(query, key, value, chosen, mask)
    for scores in (2**20, 100):
        monkeypatch.setattr(portions, "SCORES", scores)
        torch.testing.assert_close(block_attention(query, key, value, chosen, mask), expected)
    inputs = tuple(x.requires_grad_() for x in (query, key, value))
    assert torch.autograd.gradcheck(lambda q, k, v: block_attention(q, k, v, chosen, mask), inputs, fast_mode=True)


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() // x.element_size() for x in tree_leaves(out) if isinstance(x, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return out


def test_no_tensor_grows_with_the_square_of_the_length() -> None:
    sizes = []
    for t in (4096, 8192):
        query, key, value = (normal(1, 2, t, 4, dtype=torch.float32).requires_grad_() for _ in range(3))
        with LargestTensor() as largest, FlopCounterMode(display=False) as flops:
            window_attention(query, key, value, 64).sum().backward()
        sizes.append(largest.elements)
        # Forward two products per score, backward five.
        assert flops.get_total_flops() == 7 * 2 * t * 2 * 4 * (2 * 64 + 64)
    assert sizes[1] <= max(2.1 * sizes[0], portions.SCORES)
