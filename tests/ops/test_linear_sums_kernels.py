"""The kernels of linear attention, in Triton's interpreter: against the naive form and plain operations."""

from collections.abc import Callable, Iterator

import pytest
import torch
from kernel_errors import linear_attention_errors
from rounding import assert_within
from torch import Tensor
from triton_interpreter import kernels_on_cpu, needs_triton, second_derivatives

from longspan.ops import linear
from longspan.ops.fast_weights import fast_weights_gradient, fast_weights_operator
from longspan.ops.linear_sums import read_gradient, read_operator, sums_gradient, sums_operator

pytestmark = needs_triton
OPERATORS = [
    sums_operator,
    sums_gradient,
    read_operator,
    read_gradient,
    fast_weights_operator,
    fast_weights_gradient,
]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(linear, "has_kernels", lambda tensor: True)
    with kernels_on_cpu(*OPERATORS):
        yield


def inputs(n: int, m: int, e: int, v: int, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    """Queries, keys, values, and a mask with holes whose last row is all padding."""
    tensors = [torch.randn(2, t, 2, width, dtype=dtype).transpose(1, 2) for t, width in ((n, e), (m, e), (m, v))]
    mask = torch.rand(2, m) < 0.7
    mask[0, -1:] = True
    mask[1] = False
    return tensors, mask


def results(function: Callable[..., Tensor], tensors: list[Tensor], upstream: Tensor | None = None) -> list[Tensor]:
    """Return what queries read, and gradients."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream_of(out) if upstream is None else upstream)]


def upstream_of(out: Tensor) -> Tensor:
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m", "e", "v"), [(1, 1, 1, 1), (31, 33, 3, 5), (33, 70, 17, 33), (5, 530, 3, 2)])
@pytest.mark.parametrize("masked", [True, False])
def test_kernels_are_the_formula(n: int, m: int, e: int, v: int, masked: bool) -> None:
    """Lengths and widths are not multiples of a block, and sums over 530 keys are divided among programs."""
    tensors, mask = inputs(n, m, e, v)
    given = mask if masked else None
    found = results(lambda q, k, v: linear.linear_attention(q, k, v, given), tensors)
    torch.testing.assert_close(found, results(lambda q, k, v: linear.linear_attention_naive(q, k, v, given), tensors))


@pytest.mark.slow
@pytest.mark.parametrize(("t", "forgetting"), [(2, None), (33, 30.0), (66, None), (66, 0.1)])
def test_the_causal_form_is_the_formula_and_streams(t: int, forgetting: float | None) -> None:
    (query, key, value), mask = inputs(t, t, 3, 3)
    rates = None if forgetting is None else forgetting * torch.rand(2, 2, t, dtype=torch.float64)
    rates = rates if rates is None else rates.masked_fill(~mask.unsqueeze(1), 0)
    empty = linear.empty_sums(2, 2, 3, query.dtype)

    def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return linear.causal_linear_attention(query, key, value, mask, empty, rates)[0]

    def naive(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return linear.linear_attention_naive(query, key, value, mask, causal=True, rates=rates)

    torch.testing.assert_close(results(causal, [query, key, value]), results(naive, [query, key, value]))
    whole, last = linear.causal_linear_attention(query, key, value, mask, empty, rates)
    parts, state = [], empty
    for at in (slice(0, t // 2), slice(t // 2, t)):
        lost = None if rates is None else rates[:, :, at]
        cut = (query[:, :, at], key[:, :, at], value[:, :, at], mask[:, at])
        made, state = linear.causal_linear_attention(*cut, state, lost)
        parts.append(made)
    torch.testing.assert_close(torch.cat(parts, 2), whole)
    torch.testing.assert_close(tuple(state), tuple(last))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_errors_of_kernels_are_those_of_rounding(dtype: torch.dtype) -> None:
    tensors, mask = inputs(40, 50, 8, 8, dtype)
    found = results(lambda q, k, v: linear.linear_attention(q, k, v, mask), tensors)
    upstream = upstream_of(found[0])
    naive = results(
        lambda q, k, v: linear.linear_attention_naive(q, k, v, mask), [x.double() for x in tensors], upstream.double()
    )
    allowed = linear_attention_errors(tensors, mask, upstream, False)
    for one, expected, error in zip(found, naive, allowed, strict=True):
        assert one.dtype == dtype
        assert_within(one, expected, error)


def test_small_features_keep_their_digits() -> None:
    """Known failure elsewhere: elu(-20) + 1 is zero in float32, and an ε in the normaliser outweighs small features."""
    query, key = torch.full((1, 1, 1, 2), -90.0), torch.tensor([-20.0, -21.0]).view(1, 1, 2, 1).expand(-1, -1, -1, 2)
    value = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1)
    out = linear.linear_attention(query, key, value)
    torch.testing.assert_close(out.squeeze(), torch.tensor([1.0, 0.0]).softmax(0)[0])


@pytest.mark.parametrize("size", [1e4, 1e-4])
def test_features_of_any_size(size: float) -> None:
    tensors, mask = inputs(7, 9, 3, 2)
    tensors[0], tensors[1] = size * tensors[0], size * tensors[1]
    found = results(lambda q, k, v: linear.linear_attention(q, k, v, mask), tensors)
    torch.testing.assert_close(found, results(lambda q, k, v: linear.linear_attention_naive(q, k, v, mask), tensors))


def test_nan_is_not_hidden() -> None:
    (query, key, value), _ = inputs(7, 9, 3, 2)
    key[0, 1, 4, 2] = torch.nan
    out = linear.linear_attention(query, key, value)
    assert out[0, 1].isnan().all()
    assert out[0, 0].isfinite().all()


def test_counts_and_rotation_have_plain_operations() -> None:
    """Counts have gradients, which the kernels do not compute."""
    (query, key, value), mask = inputs(7, 7, 4, 2)
    counts = (2.0 * mask).requires_grad_()
    out = linear.linear_attention(query, key, value, counts)
    torch.testing.assert_close(out, linear.linear_attention_naive(query, key, value, mask))
    assert torch.autograd.grad(out.square().sum(), counts)[0][0].abs().max() > 0
    numbers = torch.arange(7).view(1, 1, 7)
    rotated = linear.linear_attention(query, key, value, mask, numbers)
    assert not torch.allclose(rotated, linear.linear_attention(query, key, value, mask))


def test_derivatives_of_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, mask = inputs(5, 6, 2, 3)
    found = second_derivatives(lambda q, k, v: linear.linear_attention(q, k, v, mask), tensors)
    monkeypatch.setattr(linear, "has_kernels", lambda tensor: False)
    torch.testing.assert_close(
        found, second_derivatives(lambda q, k, v: linear.linear_attention(q, k, v, mask), tensors)
    )
