"""The compiled loops of linear attention: against the naive form and plain operations."""

from collections.abc import Callable

import pytest
import torch
from kernel_errors import linear_attention_errors
from rounding import assert_within
from torch import Tensor
from torch.nn.functional import elu

from longspan.ops import linear
from longspan.ops.linear_sums import features, plain
from longspan.ops.linear_sums import numba as loops


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


@pytest.mark.parametrize(
    ("n", "m", "e", "v"), [(1, 1, 1, 1), (31, 33, 3, 5), (33, 70, 17, 33), (5, 130, 8, 16), (2, 3, 128, 1)]
)
@pytest.mark.parametrize("masked", [True, False])
def test_loops_are_the_formula(n: int, m: int, e: int, v: int, masked: bool) -> None:
    """Lengths and widths that are multiples of a block or a vector, and others."""
    tensors, mask = inputs(n, m, e, v)
    given = mask if masked else None
    found = results(lambda q, k, v: linear.linear_attention(q, k, v, given), tensors)
    torch.testing.assert_close(found, results(lambda q, k, v: linear.linear_attention_naive(q, k, v, given), tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("loops", [False, True], ids=["plain", "loops"])
def test_errors_are_those_of_rounding(
    dtype: torch.dtype, causal: bool, loops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, mask = inputs(50, 50, 8, 8, dtype)
    monkeypatch.setattr(linear, "on_cpu", lambda tensor: loops)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not causal:
            return linear.linear_attention(query, key, value, mask)
        return linear.causal_linear_attention(query, key, value, mask, linear.empty_sums(2, 2, 8, query.dtype))[0]

    found = results(attend, tensors)
    upstream = upstream_of(found[0])
    naive = results(
        lambda q, k, v: linear.linear_attention_naive(q, k, v, mask, causal),
        [x.double() for x in tensors],
        upstream.double(),
    )
    allowed = linear_attention_errors(tensors, mask, upstream, causal)
    for one, expected, error in zip(found, naive, allowed, strict=True):
        assert one.dtype == dtype
        assert_within(one, expected, error)


@pytest.mark.parametrize("size", [1e4, 1e-4])
def test_features_of_any_size(size: float) -> None:
    tensors, mask = inputs(7, 9, 3, 2)
    tensors[0], tensors[1] = size * tensors[0], size * tensors[1]
    found = results(lambda q, k, v: linear.linear_attention(q, k, v, mask), tensors)
    torch.testing.assert_close(found, results(lambda q, k, v: linear.linear_attention_naive(q, k, v, mask), tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 8, 19])
def test_features_are_the_formula(dtype: torch.dtype, width: int) -> None:
    x = 10 * torch.randn(2, 3, 7, width, dtype=dtype)
    mask = torch.rand(2, 7) < 0.5
    torch.testing.assert_close(features(x, None, False), elu(x) + 1)
    torch.testing.assert_close(features(x, mask, False), (elu(x) + 1) * mask[:, None, :, None])
    torch.testing.assert_close(features(x, None, True), plain.query_features(x))
    extreme = x.new_tensor([torch.inf, -torch.inf, 0.0, torch.nan]).view(1, 1, 1, 4)
    expected = x.new_tensor([torch.inf, 0.0, 1.0, torch.nan]).view_as(extreme)
    torch.testing.assert_close(features(extreme, None, False), expected, equal_nan=True)


def test_derivatives_of_features() -> None:
    x = torch.randn(1, 2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: features(x, None, False), x)
    assert torch.autograd.gradgradcheck(lambda x: features(x, None, False), x)


@pytest.mark.parametrize("causal", [False, True])
def test_nan_is_not_hidden(causal: bool) -> None:
    for place in range(3):
        (query, key, value), _ = inputs(9, 9, 3, 3)
        (query, key, value)[place][0, 1, 4, 2] = torch.nan
        if causal:
            state = linear.empty_sums(2, 2, 3, torch.float64)
            out, _ = linear.causal_linear_attention(query, key, value, None, state)
        else:
            out = linear.linear_attention(query, key, value)
        assert out[0, 1, 4].isnan().any()
        assert out[0, 0].isfinite().all()


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_change_nothing(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (query, key, value), mask = inputs(40, 50, 5, 6)

    def everything() -> list[Tensor]:
        found = results(lambda q, k, v: linear.linear_attention(q, k, v, mask), [query, key, value])
        return [*found, features(key, mask, False)]

    alone = everything()
    monkeypatch.setattr(loops, "WORTH_SHARING", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for one, other in zip(everything(), alone, strict=True):
        assert torch.equal(one, other)


def test_little_is_saved_for_the_backward_pass() -> None:
    """Queries, keys, values, what is read and its normalisers: neither features nor copies."""
    saved: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    query, key, value = (torch.randn(1, 64, 2, 8).transpose(1, 2).requires_grad_() for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        linear.linear_attention(query, key, value)
    assert sum(saved) <= 4 * query.numel() + 64 * 2 + 2 * 2 * 8 * 9
