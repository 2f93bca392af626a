"""The kernels of softmax pooling, in Triton's interpreter: against the naive form and plain operations."""

from collections.abc import Callable, Iterator

import pytest
import torch
from rounding import EXP, assert_within, rounding
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


def results(
    pool: Callable[..., Tensor], values: Tensor, logits: Tensor, mask: Tensor | None, upstream: Tensor | None = None
) -> list[Tensor]:
    """Return means and gradients."""
    leaves = [values.detach().requires_grad_(), logits.detach().requires_grad_()]
    out = pool(*leaves, mask)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream_of(out) if upstream is None else upstream)]


def upstream_of(out: Tensor) -> Tensor:
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)


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


def largest_errors(values: Tensor, logits: Tensor, mask: Tensor, upstream: Tensor) -> list[Tensor]:
    """Of the means and the gradients; sums are in float32."""
    dtype, t = values.dtype, values.shape[1]
    values, logits, upstream = values.double(), pooling.masked_logits(logits.double(), mask), upstream.double()
    weights = pooling.softmax_weights(logits, mask)
    # A weight errs as its exponent and the sum of all do. Those of u / t or less are one rounding in all. Each block of
    # 16 positions or more may have a larger logit, to which what was added up is scaled.
    distance = (logits.amax(1, keepdim=True) - logits).where(weights > 0, 0)
    terms = (weights > torch.finfo(torch.float32).eps / 2 / t).sum(1, keepdim=True) + 1
    roundings = terms + (EXP + 2) * (terms.clamp_max(t // 16 + 1) + 1)
    of_weights = rounding(roundings, weights, torch.float32)
    of_weights += rounding(2, weights * (distance + (weights * distance).sum(1, keepdim=True)), torch.float32)
    # Weights and results are rounded to half precision.
    means, sizes = weights.mT @ values, weights.mT @ values.abs()
    of_means = of_weights.mT @ values.abs() + rounding(2, sizes, dtype)
    towards = upstream.abs()
    of_values = of_weights @ towards + rounding(2, weights @ towards, dtype)
    change = values @ upstream.mT - (upstream * means).sum(2).unsqueeze(1)
    size = values.abs() @ towards.mT + (towards * sizes).sum(2).unsqueeze(1)
    of_change = rounding(values.shape[2] + 3, size, torch.float32) + (towards * of_means).sum(2).unsqueeze(1)
    of_logits = of_weights * change.abs() + weights * of_change
    return [of_means, of_values, of_logits + rounding(1, weights * change.abs() + of_logits, dtype)]


# Not bfloat16: the interpreter multiplies its bits as if they were whole numbers.
@pytest.mark.parametrize(
    ("dtype", "largest"), [(torch.float32, 1.0), (torch.float32, 1e4), (torch.float16, 1.0), (torch.float16, 1e2)]
)
def test_errors_of_kernels_are_those_of_rounding(dtype: torch.dtype, largest: float) -> None:
    values, logits, mask = inputs(130, 20, 3, largest)
    values, logits = values.to(dtype), logits.to(dtype)
    found = results(pooling.softmax_pool, values, logits, mask)
    # The gradient that comes back is that of the type, too.
    upstream = upstream_of(found[0])
    exact = results(pooling.softmax_pool_naive, values.double(), logits.double(), mask, upstream.double())
    for one, expected, error in zip(found, exact, largest_errors(values, logits, mask, upstream), strict=True):
        assert one.dtype == dtype
        assert_within(one, expected, error)


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
