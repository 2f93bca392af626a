"""Softmax pooling and prefix means against their naive forms, with the compiled loops and without."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounding import EXP, assert_within, errors_of_noise, rounding
from torch import Tensor

from longspan.ops import pooling, scan

# The path is the same for all examples of a test.
examples = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
on_both_paths = pytest.mark.usefixtures("scan_path")


@given(t=st.integers(1, 50), padding=st.integers(0, 60))
def test_softmax_pool_is_the_weighted_mean_of_real_positions(t: int, padding: int) -> None:
    values, logits = torch.randn(2, t, 3, dtype=torch.float64), torch.randn(2, t, 4, dtype=torch.float64)
    mask = torch.arange(t).expand(2, t) < torch.tensor([[t], [max(0, t - padding)]])
    pooled = pooling.softmax_pool(values, logits, mask)
    torch.testing.assert_close(pooled, pooling.softmax_pool_naive(values, logits, mask))


def test_padding_is_left_out_of_the_normaliser() -> None:
    """Known failure elsewhere: padding zeroed in the values but left in the normaliser."""
    values, logits = torch.ones(1, 4, 1), torch.zeros(1, 4, 1)
    mask = torch.tensor([[True, True, False, False]])
    assert pooling.softmax_pool(values, logits, mask).item() == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_logits_of_ten_thousand_do_not_overflow(dtype: torch.dtype) -> None:
    """Known failure elsewhere: unshifted exp is infinite at 12 in float16 and at 89 in float32."""
    values = torch.arange(1.0, 5.0).view(1, 4, 1).to(dtype)
    logits = torch.tensor([-1e4, 1e4, 0.0, -1e4]).view(1, 4, 1).to(dtype)
    assert pooling.softmax_pool(values, logits).item() == 2.0
    means, _ = pooling.prefix_softmax_mean(values.unsqueeze(2), logits)
    assert means.flatten().tolist() == [1.0, 2.0, 2.0, 2.0]


def state_of(t: int, density: float = 1.0) -> tuple[pooling.PrefixMean, tuple[Tensor, Tensor, Tensor]]:
    """A state, and the values, logits and mask that it has seen."""
    values, logits = torch.randn(2, t, 4, dtype=torch.float64), 3 * torch.randn(2, t, 3, dtype=torch.float64)
    mask = torch.rand(2, t) < density
    return pooling.softmax_pool_state(values, logits, mask), (values, logits, mask)


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4), density=st.sampled_from([0, 0.5, 1]))
def test_states_of_parts_merge_into_the_state_of_the_whole(lengths: list[int], density: float) -> None:
    parts = [state_of(t, density) for t in lengths]
    values, logits, mask = (torch.cat(seen, 1) for seen in zip(*(seen for _, seen in parts), strict=True))
    merged = pooling.empty_prefix(2, 3, 4, values.dtype)
    for state, _ in parts:
        merged = pooling.merge(merged, state)
    torch.testing.assert_close(merged, pooling.softmax_pool_state(values, logits, mask))
    torch.testing.assert_close(merged.mean, pooling.softmax_pool_naive(values, logits, mask))


def test_merging_is_associative_and_commutative_and_the_empty_state_changes_nothing() -> None:
    (one, _), (two, _), (three, _) = state_of(5), state_of(1), state_of(8)
    left = pooling.merge(pooling.merge(one, two), three)
    torch.testing.assert_close(left, pooling.merge(one, pooling.merge(two, three)))
    torch.testing.assert_close(pooling.merge(one, two), pooling.merge(two, one))
    empty = pooling.empty_prefix(2, 3, 4, one.mean.dtype)
    for merged in (pooling.merge(one, empty), pooling.merge(empty, one)):
        assert torch.equal(merged.normaliser, one.normaliser)
        assert torch.equal(merged.mean, one.mean)
    far = pooling.PrefixMean(one.normaliser - 1e4, one.mean)
    torch.testing.assert_close(pooling.merge(far, two), two)
    assert (pooling.merge(empty, empty).mean == 0).all()


@on_both_paths
@examples
@given(
    t=st.integers(1, 130),
    density=st.floats(0, 1),
    reset=st.sampled_from([0, 0.1]),
    cut=st.integers(0, 130),
    forgetting=st.sampled_from([None, 0.1, 10]),
)
def test_prefix_mean_is_the_gated_recurrence(
    t: int, density: float, reset: float, cut: int, forgetting: float | None
) -> None:
    values, logits = torch.randn(2, t, 3, 4, dtype=torch.float64), 3 * torch.randn(2, t, 3, dtype=torch.float64)
    mask = torch.rand(2, t) < density
    starts = torch.rand(2, t) < reset if reset else None
    rates = None if forgetting is None else forgetting * torch.rand_like(logits).masked_fill(~mask.unsqueeze(-1), 0)
    means, whole = pooling.prefix_softmax_mean(values, logits, mask, starts=starts, rates=rates)
    expected, last = pooling.prefix_softmax_mean_naive(values, logits, mask, starts=starts, rates=rates)
    torch.testing.assert_close(means, expected)
    torch.testing.assert_close(whole, last)
    cut = min(cut, t - 1)
    if cut:
        state, parts = None, []
        for part in (slice(cut), slice(cut, None)):
            now = None if starts is None else starts[:, part]
            lost = None if rates is None else rates[:, part]
            given_part = (values[:, part], logits[:, part], mask[:, part])
            mean, state = pooling.prefix_softmax_mean(*given_part, state, now, lost)
            parts.append(mean)
        torch.testing.assert_close(torch.cat(parts, 1), expected)
        torch.testing.assert_close(state, last)


@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("forgetting", [1e-3, 1.0, 1e3])
def test_a_window_of_soft_reach_is_the_softmax_of_faded_logits(density: float, forgetting: float) -> None:
    values, logits = torch.randn(2, 40, 3, 4).double(), 100 * torch.randn(2, 40, 3).double()
    mask = torch.rand(2, 40) < density
    rates = (forgetting * torch.rand(2, 40, 3).double()).masked_fill(~mask.unsqueeze(-1), 0)
    inputs = [x.requires_grad_() for x in (values, logits, rates)]
    found = pooling.window_softmax_mean(values, logits, mask, rates)[mask]
    passed = rates.cumsum(1)
    apart = (passed.unsqueeze(2) - passed.unsqueeze(1)).abs()
    faded = (logits.unsqueeze(1) - apart).masked_fill(~mask[:, None, :, None], -torch.inf)
    expected = torch.einsum("bijh,bjhe->bihe", faded[mask.any(1)].softmax(2), values[mask.any(1)])[mask[mask.any(1)]]
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(found)
    got, wanted = (torch.autograd.grad(out, inputs, upstream) for out in (found, expected))
    torch.testing.assert_close(got, wanted)


def test_the_state_after_a_prefix_is_that_of_pooling_it() -> None:
    pooled, (values, logits, mask) = state_of(20, 0.5)
    wide = values.unsqueeze(2).expand(2, 20, 3, 4)
    torch.testing.assert_close(pooling.prefix_softmax_mean(wide, logits, mask)[1], pooled)


def test_single_steps_run_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known failure elsewhere: a token at a time costs as much as a thousand."""
    values, logits = torch.randn(2, 50, 3, 4), 3 * torch.randn(2, 50, 3)
    mask = torch.rand(2, 50) < 0.7
    expected, last = pooling.prefix_softmax_mean(values, logits, mask)
    for name in ("lerp_scan_operator", "softmax_gates_operator"):
        monkeypatch.setattr(scan, name, lambda *_: pytest.fail("a kernel for one position"))
    state, means = pooling.empty_prefix(2, 3, 4, values.dtype), []
    for i in range(50):
        now = slice(i, i + 1)
        mean, state = pooling.prefix_softmax_mean(values[:, now], logits[:, now], mask[:, now], state)
        means.append(mean)
    torch.testing.assert_close(torch.cat(means, 1), expected)
    torch.testing.assert_close(state, last)


@pytest.mark.slow
def test_a_long_stream_of_single_steps_does_not_drift() -> None:
    values, logits = torch.randn(1, 4000, 1, 2), torch.randn(1, 4000, 1)
    state = pooling.empty_prefix(1, 1, 2, values.dtype)
    for value, logit in zip(values.split(1, 1), logits.split(1, 1), strict=True):
        mean, state = pooling.prefix_softmax_mean(value, logit, None, state)
    expected = pooling.softmax_pool(values[:, :, 0].double(), logits.double())

    # A step rounds a float32 normaliser of up to log(4,000), its distance to a logit, an exponential and the mean.
    def in_steps(rounded: Callable[[Tensor], Tensor]) -> list[Tensor]:
        state = pooling.empty_prefix(8, 1, 2, torch.float64)
        for value, logit in zip(
            values.double().expand(8, -1, -1, -1).split(1, 1), logits.double().split(1, 1), strict=True
        ):
            logit = rounded(logit.expand(8, -1, -1))
            state = pooling.PrefixMean(*(rounded(x) for x in state))
            _, state = pooling.prefix_softmax_mean_naive(value, logit, None, state)
        return [state.mean]

    (allowed,) = errors_of_noise(in_steps, EXP + 4, torch.float32, draws=1)
    assert_within(mean[:, 0], expected, allowed)


@on_both_paths
def test_early_prefixes_survive_a_later_maximum() -> None:
    """Known failure elsewhere: cumulative exp sums with one global maximum give 0/0 for early positions."""
    logits = torch.linspace(-1e3, 1e3, 200).view(1, 200, 1)
    values = torch.arange(200.0).view(1, 200, 1, 1)
    means, _ = pooling.prefix_softmax_mean(values, logits)
    expected, _ = pooling.prefix_softmax_mean_naive(values.double(), logits.double())
    # The logits of the reference are those that float32 holds. Plain operations add in pairs of pairs of positions.
    assert_within(means, expected, rounding(2 * 8 + 4, expected, torch.float32))


@on_both_paths
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_prefix_mean_of_65536_positions_is_right(dtype: torch.dtype) -> None:
    """Rounding does not grow with the length."""
    values, logits = torch.randn(1, 65536, 1, 2).to(dtype), torch.randn(1, 65536, 1).to(dtype)
    means, _ = pooling.prefix_softmax_mean(values, logits)
    weights = logits.double().exp()
    expected = (values.double() * weights.unsqueeze(-1)).cumsum(1) / weights.cumsum(1).unsqueeze(-1)
    sizes = (values.double().abs() * weights.unsqueeze(-1)).cumsum(1) / weights.cumsum(1).unsqueeze(-1)
    # The mean itself is rounded to `dtype` once, gates to float32, and plain operations add in pairs of pairs.
    allowed = rounding(1, expected.abs(), dtype) + rounding(2 * 16 + 4, sizes, torch.float32)
    assert_within(means, expected, allowed)


@pytest.mark.slow
@on_both_paths
@pytest.mark.parametrize("starting", [False, True])
@pytest.mark.parametrize("t", [1, 12])
def test_prefix_mean_gradients(starting: bool, t: int) -> None:
    values, logits = torch.randn(1, t, 2, 2, dtype=torch.float64), torch.randn(1, t, 2, dtype=torch.float64)
    mask, starts = torch.rand(1, t) > 0.3, (torch.rand(1, t) < 0.2) if starting else None
    before, _ = state_of(3)
    inputs = (values, logits, before.normaliser[:1, :2], before.mean[:1, :2, :2])

    def everything(values: Tensor, logits: Tensor, normaliser: Tensor, mean: Tensor) -> tuple[Tensor, ...]:
        state = pooling.PrefixMean(normaliser, mean)
        means, state = pooling.prefix_softmax_mean(values, logits, mask, state, starts)
        return means, *state

    assert torch.autograd.gradcheck(everything, tuple(x.detach().requires_grad_() for x in inputs))


# PyTorch's compiler asks for it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.usefixtures("no_shape_checks")
def test_compiled_prefix_means_have_the_same_gradients() -> None:
    """Compilers of PyTorch before 2.13 say that a program is being exported, for which the operations are others."""
    values, logits = torch.randn(2, 7, 2, 3, requires_grad=True), torch.randn(2, 7, 2, requires_grad=True)

    def total() -> Tensor:
        return pooling.prefix_softmax_mean(values, logits)[0].square().sum()

    expected = torch.autograd.grad(total(), (values, logits))
    compiled = torch.compile(total, backend="eager")
    found = torch.autograd.grad(compiled(), (values, logits))
    torch.testing.assert_close(found, expected)
