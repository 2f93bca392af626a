"""Linear attention against its naive form."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.ops import linear
from longspan.ops.linear_sums import plain

Three = tuple[Tensor, Tensor, Tensor]


def inputs(n: int, m: int, value_width: int = 3) -> Three:
    query, key, value = (
        torch.randn(2, 2, length, width, dtype=torch.float64, requires_grad=True)
        for length, width in ((n, 3), (m, 3), (m, value_width))
    )
    return query, key, value


def agree(actual: Tensor, expected: Tensor, arguments: Three) -> None:
    torch.testing.assert_close(actual, expected)
    gradient = torch.randn_like(actual)
    got = torch.autograd.grad(actual, arguments, gradient)
    torch.testing.assert_close(got, torch.autograd.grad(expected, arguments, gradient))


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 9), (9, 1), (12, 40)])
@pytest.mark.parametrize("density", [0.1, 0.7, None])
def test_linear_attention_is_the_formula(n: int, m: int, density: float | None) -> None:
    query, key, value = inputs(n, m, value_width=5)
    mask = None if density is None else torch.rand(2, m) < density
    if mask is not None:
        mask[0, -1] = True
    out = linear.linear_attention(query, key, value, mask)
    agree(out, linear.linear_attention_naive(query, key, value, mask), (query, key, value))


@pytest.mark.slow
@pytest.mark.parametrize("t", [1, linear.CHUNK - 1, linear.CHUNK, 2 * linear.CHUNK + 1])
@pytest.mark.parametrize("density", [0.1, 0.7, None])
@pytest.mark.parametrize("forgetting", [None, 0.1, 30])
def test_the_causal_form_is_the_formula_and_streams(t: int, density: float | None, forgetting: float | None) -> None:
    query, key, value = inputs(t, t)
    mask = None if density is None else torch.rand(2, t) < density
    if mask is not None:
        mask[0, -1] = True
    empty = linear.empty_sums(2, 2, 3, query.dtype)
    rates = None if forgetting is None else forgetting * torch.rand(2, 2, t, dtype=torch.float64)
    if rates is not None and mask is not None:
        rates = rates.masked_fill(~mask.unsqueeze(1), 0)
    out, sums = linear.causal_linear_attention(query, key, value, mask, empty, rates)
    agree(out, linear.linear_attention_naive(query, key, value, mask, causal=True, rates=rates), (query, key, value))
    parts, state = [], empty
    for at in (slice(0, 1), slice(1, t // 2), slice(max(1, t // 2), t)):
        if at.stop > at.start:
            part = None if mask is None else mask[:, at]
            lost = None if rates is None else rates[:, :, at]
            cut = (query[:, :, at], key[:, :, at], value[:, :, at])
            made, state = linear.causal_linear_attention(*cut, part, state, lost)
            parts.append(made)
    torch.testing.assert_close(torch.cat(parts, 2), out)
    torch.testing.assert_close(tuple(state), tuple(sums))


def test_second_derivatives_of_the_features() -> None:
    x = torch.randn(20, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(plain.features(x), elu(x) + 1)
    assert torch.autograd.gradcheck(plain.features, x)
    assert torch.autograd.gradgradcheck(plain.features, x)


def test_small_features_keep_their_digits() -> None:
    """Known failure elsewhere: elu(-20) + 1 is zero in float32, and an ε in the normaliser outweighs small features."""
    query, key = torch.full((1, 1, 1, 2), -90.0), torch.tensor([-20.0, -21.0]).view(1, 1, 2, 1).expand(-1, -1, -1, 2)
    value = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1)
    out = linear.linear_attention(query, key, value)
    torch.testing.assert_close(out.squeeze(), torch.tensor([1.0, 0.0]).softmax(0)[0])


def test_extreme_inputs_stay_finite() -> None:
    for scale in (1e4, -1e4):
        query, key = (scale * torch.rand(1, 1, 50, 4).add(0.1) for _ in range(2))
        query.requires_grad_()
        key.requires_grad_()
        empty = linear.empty_sums(1, 1, 4, query.dtype)
        out, _ = linear.causal_linear_attention(query, key, torch.randn(1, 1, 50, 4), None, empty)
        out.sum().backward()
        assert all(found is not None and found.isfinite().all() for found in (out, query.grad, key.grad))


def test_sums_of_half_precision_keep_growing() -> None:
    """Known failure elsewhere: a running sum in bfloat16 stops at 256, as 256 + 1 is 256."""
    ones = torch.ones(1, 1, 5000, 1, dtype=torch.bfloat16)
    values = (torch.arange(5000) >= 2500).view(1, 1, 5000, 1).bfloat16()
    out, sums = linear.causal_linear_attention(ones, ones, values, None, linear.empty_sums(1, 1, 1, ones.dtype))
    assert out[0, 0, -1].item() == 0.5
    assert sums.weights.item() == 10000
    assert linear.linear_attention(ones, ones, values)[0, 0, -1].item() == 0.5


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor made."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.size = max(self.size, out.numel())
        return out


def test_no_tensor_is_as_large_as_all_pairs() -> None:
    sizes = []
    for t in (512, 1024):
        query, key, value = (torch.randn(1, 2, t, 16, requires_grad=True) for _ in range(3))
        with Largest() as largest:
            out, _ = linear.causal_linear_attention(query, key, value, None, linear.empty_sums(1, 2, 16, query.dtype))
            out.sum().backward()
        sizes.append(largest.size)
    assert sizes[1] == 2 * sizes[0] <= 2 * 1024 * linear.CHUNK
