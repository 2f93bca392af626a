"""The kernels of softmax pooling, in Triton's interpreter: against the naive form and plain operations."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from triton_interpreter import kernels_on_cpu, needs_triton, second_derivatives

from longspan.ops import pooling, softmax_pool
from longspan.ops.softmax_pool import softmax_pool_gradient, softmax_pool_operator

pytestmark = needs_triton


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pooling, "has_kernels", lambda tensor: True)
    with kernels_on_cpu(softmax_pool_operator, softmax_pool_gradient):
        yield


def inputs(t: int, d: int, h: int, largest: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Values, logits, and a mask with holes whose last row is all padding."""
    values, logits = torch.randn(3, t, d, dtype=torch.float64), largest * torch.randn(3, t, h, dtype=torch.float64)
    mask = torch.rand(3, t) < 0.7
    mask[0, -1:] = True
    mask[2] = False
    return values, logits, mask


def results(pool: Callable[..., Tensor], values: Tensor, logits: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Return means and gradients."""
    leaves = [values.detach().requires_grad_(), logits.detach().requires_grad_()]
    out = pool(*leaves, mask)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


@pytest.mark.slow
@pytest.mark.parametrize(("t", "d", "h"), [(1, 1, 1), (31, 5, 2), (33, 33, 17), (520, 3, 1)])
@pytest.mark.parametrize("largest", [1.0, 1e4])
def test_kernels_are_the_formula(t: int, d: int, h: int, largest: float) -> None:
    """Lengths and widths are not multiples of a block, and 520 positions are divided among programs."""
    values, logits, mask = inputs(t, d, h, largest)
    for given in (mask, None):
        found = results(pooling.softmax_pool, values, logits, given)
        torch.testing.assert_close(found, results(pooling.softmax_pool_naive, values, logits, given))
    assert (pooling.softmax_pool(values, logits, mask)[2] == 0).all()


# Not bfloat16: the interpreter multiplies its bits as if they were whole numbers.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_kernels_are_as_exact_as_plain_operations(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    values, logits, mask = inputs(130, 20, 3, 1e4 if dtype == torch.float32 else 1e2)
    values, logits = values.to(dtype), logits.to(dtype)
    exact = results(pooling.softmax_pool_naive, values.double(), logits.double(), mask)
    found = results(pooling.softmax_pool, values, logits, mask)
    monkeypatch.setattr(pooling, "has_kernels", lambda tensor: False)
    plain = results(pooling.softmax_pool, values, logits, mask)
    for one, other, expected in zip(found, plain, exact, strict=True):
        assert one.dtype == other.dtype
        # A few roundings more than in plain operations, each half a unit of the largest number. The gradient of logits
        # is the difference of products of vectors, which are about 1 at least.
        least = 4 * torch.finfo(dtype).eps * max(1, float(expected.abs().max()))
        error, usual = ((each.double() - expected).abs().max() for each in (one, other))
        assert error <= 2 * usual + least


def test_counts_and_states_go_through_the_kernels() -> None:
    """Counts have gradients, and a state has the same mean."""
    values, logits, mask = inputs(70, 4, 2)
    counts = (mask * 2.0).requires_grad_()
    twice, often = torch.cat((values, values), 1), torch.cat((mask, mask), 1)
    found = pooling.softmax_pool(values, logits, counts)
    torch.testing.assert_close(found, pooling.softmax_pool_naive(twice, torch.cat((logits, logits), 1), often))
    torch.testing.assert_close(pooling.softmax_pool_state(values, logits, mask).mean, found.detach())
    (to_counts,) = torch.autograd.grad(found.square().sum(), counts)
    assert to_counts[0].abs().max() > 0


def test_autocast_casts_values(monkeypatch: pytest.MonkeyPatch) -> None:
    values, logits, mask = (x if x.dtype == torch.bool else x.float() for x in inputs(40, 4, 2))
    with torch.autocast("cpu", torch.float16):
        found = pooling.softmax_pool(values, logits, mask)
        monkeypatch.setattr(pooling, "has_kernels", lambda tensor: False)
        expected = pooling.softmax_pool(values, logits, mask)
    assert found.dtype == expected.dtype == torch.float16
    # Weights and values are rounded to float16, by up to half a unit of numbers up to 4.
    torch.testing.assert_close(found, expected, rtol=0, atol=4e-3)


def test_nan_is_not_hidden() -> None:
    values, logits, _ = inputs(70, 4, 2)
    logits[0, 3, 1] = torch.nan
    out = pooling.softmax_pool(values, logits)
    assert out[0, 1].isnan().all()
    assert out[0, 0].isfinite().all()


def test_derivatives_of_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    values, logits, mask = inputs(5, 2, 2)
    found = second_derivatives(lambda v, z: pooling.softmax_pool(v, z, mask), [values, logits])
    monkeypatch.setattr(pooling, "has_kernels", lambda tensor: False)
    torch.testing.assert_close(
        found, second_derivatives(lambda v, z: pooling.softmax_pool(v, z, mask), [values, logits])
    )


def test_kernels_are_chosen_for_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    values, logits, mask = inputs(5, 2, 2)
    monkeypatch.setattr(softmax_pool, "softmax_pool_operator", None)
    pooling.softmax_pool(values, logits, mask)
