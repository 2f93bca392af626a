"""The gated recurrence and the softmax gates: compiled loops and plain operations, both against the naive forms."""

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounding import assert_within, rounding
from torch import Tensor

from longspan.ops import scan

# Every test runs on both paths.
pytestmark = pytest.mark.usefixtures("scan_path")
# The path is the same for all examples of a test.
examples = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def recurrence(b: int, t: int, per_channel: bool, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Values, gates that reach 0 and 1, and an initial state."""
    gates = (1.2 * torch.rand(b, t, 3, *[5] * per_channel) - 0.1).clamp(0, 1)
    return [x.to(dtype).requires_grad_() for x in (torch.randn(b, t, 3, 5), gates, torch.randn(b, 3, 5))]


@pytest.mark.parametrize("per_channel", [False, True])
@examples
@given(t=st.integers(1, 70), reset=st.floats(0, 0.3), data=st.data())
def test_lerp_scan_is_the_recurrence(per_channel: bool, t: int, reset: float, data: st.DataObject) -> None:
    values, gates, initial = recurrence(2, t, per_channel)
    starts = torch.rand(2, t) < reset if data.draw(st.booleans()) else None
    given_initial = initial if data.draw(st.booleans()) else None
    outputs, final = scan.lerp_scan(values, gates, given_initial, starts)
    expected, last = scan.lerp_scan_naive(values, gates, given_initial, starts)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(final, last)


@pytest.mark.slow
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("t", [1, 6])
def test_lerp_scan_gradients(per_channel: bool, t: int) -> None:
    values, gates, initial = recurrence(1, t, per_channel)
    # Away from the ends of [0, 1], where a gate of exactly 1 has another formula.
    gates = gates.detach().clamp(0.1, 0.9).requires_grad_()
    starts = torch.arange(t).view(1, t) == 3
    for given_starts in (None, starts):
        assert torch.autograd.gradcheck(
            lambda v, w, o, given_starts=given_starts: scan.lerp_scan(v, w, o, given_starts), (values, gates, initial)
        )


@pytest.mark.slow
@pytest.mark.parametrize("per_channel", [False, True])
def test_long_gradients_agree_with_the_recurrence(per_channel: bool) -> None:
    """More positions than the backward scan takes at a time."""
    inputs = recurrence(1, 3000, per_channel)
    weights = torch.randn(1, 3000, 3, 5, dtype=torch.float64)
    got, wanted = (
        torch.autograd.grad((outputs * weights).sum() + final.square().sum(), inputs)
        for outputs, final in (scan.lerp_scan(*inputs), scan.lerp_scan_naive(*inputs))
    )
    torch.testing.assert_close(got, wanted)


def test_a_start_forgets_exactly() -> None:
    """Known failure elsewhere: o + 1·(v - o) is not v when o is large; what was forgotten leaves its rounding."""
    values = torch.tensor([1e30, 1.2345, 3.0]).view(1, 3, 1, 1)
    starts = torch.tensor([[True, True, False]])
    for gates in (torch.full((1, 3, 1), 0.5), torch.full((1, 3, 1, 1), 0.5)):
        outputs, _ = scan.lerp_scan(values, gates, None, starts)
        assert outputs[0, 1].item() == values[0, 1].item()
        values.requires_grad_()
        scan.lerp_scan(values, gates, None, starts)[0][0, 2].sum().backward()
        assert values.grad is not None
        assert values.grad.flatten().tolist() == [0.0, 0.5, 0.5]
        values = values.detach()


def test_half_precision_accumulates_in_float32() -> None:
    values, gates, initial = recurrence(2, 300, False, torch.bfloat16)
    outputs, final = scan.lerp_scan(values, gates, initial)
    assert (outputs.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    expected, last = scan.lerp_scan_naive(values.double(), gates.double(), initial.double())
    # Rounded to bfloat16 once, whatever the length. Plain operations add in float32, in pairs of pairs.
    sizes, last_sizes = scan.lerp_scan_naive(values.double().abs(), gates.double(), initial.double().abs())
    levels = 2 * math.ceil(math.log2(300)) + 4
    allowed = rounding(1, expected.abs(), torch.bfloat16) + rounding(levels, sizes, torch.float32)
    assert_within(outputs, expected, allowed)
    assert_within(final, last, rounding(levels, last_sizes, torch.float32))
    grads = torch.autograd.grad(outputs.sum(), (values, gates, initial))
    assert {grad.dtype for grad in grads} == {torch.bfloat16}


def test_means_of_65536_positions_are_right_in_float32(scan_path: str) -> None:
    values = torch.randn(1, 65536, 1, 2) + 100
    gates = 1 / torch.arange(1.0, 65537).view(1, -1, 1)
    outputs, _ = scan.lerp_scan(values, gates)
    expected = values.double().cumsum(1) * gates.double().unsqueeze(-1)
    # Values and gates are rounded to float32, and means once; plain operations add them in pairs of pairs.
    roundings = 3 + 2 * 16 * (scan_path == "plain")
    assert_within(outputs, expected, rounding(roundings, expected, torch.float32))


def test_any_layout_of_memory_will_do() -> None:
    values, gates, initial = recurrence(2, 9, False)
    swapped = values.detach().permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    torch.testing.assert_close(scan.lerp_scan(swapped, gates)[0], scan.lerp_scan(values, gates)[0])
    expanded = initial[:, None, :1].expand(2, 9, 3, 5)
    torch.testing.assert_close(scan.lerp_scan(expanded, gates)[0], scan.lerp_scan(expanded.clone(), gates)[0])


def logits_and_state(t: int, hidden: float) -> tuple[Tensor, Tensor]:
    logits, initial = 5 * torch.randn(2, t, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    initial[0] = scan.FLOOR
    return logits.masked_fill(torch.rand(2, t, 3) < hidden, scan.FLOOR), initial


@examples
@given(t=st.integers(1, 70), hidden=st.sampled_from([0, 0.3, 1]), reset=st.floats(0, 0.3), data=st.data())
def test_gates_are_the_prefix_softmax(t: int, hidden: float, reset: float, data: st.DataObject) -> None:
    logits, initial = logits_and_state(t, hidden)
    starts = torch.rand(2, t) < reset if data.draw(st.booleans()) else None
    for given_initial in (None, initial):
        gates, final = scan.softmax_gates(logits, given_initial, starts)
        expected, last = scan.softmax_gates_naive(logits, given_initial, starts)
        torch.testing.assert_close(gates, expected)
        torch.testing.assert_close(final, last)


@pytest.mark.slow
@pytest.mark.parametrize("starting", [False, True])
@pytest.mark.parametrize("t", [1, 7])
def test_gate_gradients(starting: bool, t: int) -> None:
    logits, initial = logits_and_state(t, 0)
    logits, initial = logits.requires_grad_(), initial.clamp_min(-1).requires_grad_()
    starts = (torch.arange(t) % 4 == 3).expand(2, t) if starting else None
    assert torch.autograd.gradcheck(lambda z, n: scan.softmax_gates(z, n, starts), (logits, initial))
    rates = (3 * torch.rand_like(logits)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z, n, f: scan.softmax_gates(z, n, starts, f), (logits, initial, rates))


@examples
@given(t=st.integers(1, 70), hidden=st.sampled_from([0, 0.3, 1]), reset=st.floats(0, 0.3), data=st.data())
def test_forgetting_gates_are_the_prefix_softmax_of_faded_logits(
    t: int, hidden: float, reset: float, data: st.DataObject
) -> None:
    logits, initial = logits_and_state(t, hidden)
    rates = torch.rand_like(logits) * data.draw(st.sampled_from([0.01, 1, 100]))
    starts = torch.rand(2, t) < reset if data.draw(st.booleans()) else None
    for given_initial in (None, initial):
        gates, final = scan.softmax_gates(logits, given_initial, starts, rates)
        expected, last = scan.softmax_gates_naive(logits, given_initial, starts, rates)
        torch.testing.assert_close(gates, expected)
        torch.testing.assert_close(final, last)
    # The definition, without a recurrence.
    gates, _ = scan.softmax_gates(logits, None, None, rates)
    for i in range(t):
        lost = torch.stack([rates[:, j + 1 : i + 1].sum(1) for j in range(i + 1)], 1)
        expected = (logits[:, : i + 1] - lost).softmax(1)[:, -1]
        torch.testing.assert_close(gates[:, i], expected.masked_fill(logits[:, i] == scan.FLOOR, 0))


def test_rates_that_sum_to_a_hundred_thousand_cost_no_digits() -> None:
    logits, rates = torch.randn(1, 3000, 1), torch.full((1, 3000, 1), 40.0)
    rates[:, 2950:] = 1e-3
    gates, final = scan.softmax_gates(logits, None, None, rates)
    # What came before the last 51 positions is forgotten.
    alone, last = scan.softmax_gates_naive(logits[:, 2949:].double(), None, None, rates[:, 2949:].double())
    # From float64, rounded once; another unit is for sums of a hundred thousand in float64.
    assert_within(gates[:, 2949:], alone, rounding(2, alone, torch.float32))
    assert_within(final, last, rounding(2, last.abs(), torch.float32))


def test_gate_gradients_beside_hidden_logits() -> None:
    """A document that begins with padding neither reaches back nor is reached from ahead."""
    logits, _ = logits_and_state(12, 0.4)
    logits[:, 5] = scan.FLOOR
    starts = (torch.arange(12) == 5).expand(2, 12)
    weights = torch.randn(2, 12, 3, dtype=torch.float64)
    grads = []
    for gate in (scan.softmax_gates, scan.softmax_gates_naive):
        z = logits.clone().requires_grad_()
        gates, final = gate(z, None, starts)
        (grad,) = torch.autograd.grad((gates * weights).sum() + final[:, 0].sum(), z)
        grads.append(grad.masked_fill(logits == scan.FLOOR, 0))
    torch.testing.assert_close(*grads)


def test_logits_of_any_size() -> None:
    """Known failure elsewhere: unshifted exp, and cumulative sums with one global maximum, which give 0/0."""
    for low, high in ((-1e4, 1e4), (1e4, -1e4), (-1e4, -1e4 + 1)):
        logits = torch.linspace(low, high, 300).view(1, 300, 1)
        gates, _ = scan.softmax_gates(logits)
        expected, _ = scan.softmax_gates_naive(logits.double())
        assert_within(gates, expected, rounding(2, expected, torch.float32))


def test_a_nan_is_not_hidden() -> None:
    logits = torch.zeros(1, 4, 1)
    logits[0, 1] = torch.nan
    gates, final = scan.softmax_gates(logits)
    assert gates[0, 0].item() == 1
    assert gates[0, 1:].isnan().all()
    assert final.isnan().all()


@pytest.mark.slow
def test_operators_keep_what_pytorch_asks_of_them() -> None:
    values, gates, initial = recurrence(2, 5, False)
    logits, state = (x.requires_grad_() for x in logits_and_state(5, 0.2))
    starts = torch.rand(2, 5) < 0.3
    plain: tuple[Any, ...] = tuple(x.detach() for x in (values, initial, values, gates, initial, values))
    check = torch.library.opcheck
    check(scan.lerp_scan_operator.definition, (values, gates, initial))
    check(scan.lerp_scan_operator.definition, tuple(recurrence(2, 5, True, torch.float32)))
    check(scan.lerp_scan_gradient.definition, plain)
    rates = torch.rand(2, 5, 3, dtype=torch.float64).requires_grad_()
    check(scan.softmax_gates_operator.definition, (logits, state, starts, rates))
    check(scan.softmax_gates_operator.definition, (logits, state, starts[:, :0], rates.detach()[:, :0]))
    check(scan.softmax_gates_gradient.definition, (gates.detach(), state.detach(), gates.detach(), starts))


@pytest.mark.slow
def test_numba_waits_for_the_first_scan(scan_path: str) -> None:
    """Importing stays cheap; single steps and other devices never need it."""
    if scan_path != "loops":
        pytest.skip("one interpreter suffices")
    code = (
        "import sys, torch; from longspan.ops import pooling, scan\n"
        "pooling.prefix_softmax_mean(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1))\n"
        "pooling.prefix_softmax_mean(torch.ones(1, 4, 1, 1, device='meta'), torch.ones(1, 4, 1, device='meta'))\n"
        "print('numba' in sys.modules)\n"
        "pooling.prefix_softmax_mean(torch.ones(1, 2, 1, 1), torch.ones(1, 2, 1))\n"
        "print('numba' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]


def test_the_last_output_keeps_no_other_alive() -> None:
    values, gates, _ = recurrence(2, 50, False)
    _, last = scan.lerp_scan(values, gates)
    assert last.untyped_storage().nbytes() == last.numel() * last.element_size()
