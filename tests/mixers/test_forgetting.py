"""Forgetting in every mixer that has it: what each kind starts as, and what it is for."""

import inspect
import math

import pytest
import torch

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers._forgetting import KINDS, LONGEST, SHORTEST, Forgetting, first_rates
from longspan.testing import mixer_checks

FORGETTING = [name for name in mixers.names() if "forget" in mixers.options(name)]
SLOW = ("compiles", "exports", "many_positions", "adapters", "quantised", "offloaded")
every_mixer = pytest.mark.parametrize("name", FORGETTING)


def test_time_constants_are_geometric_from_two_to_thousands() -> None:
    constants = 1 / first_rates(12)
    assert constants[0].item() == pytest.approx(SHORTEST)
    assert constants[-1].item() == pytest.approx(LONGEST)
    ratios = constants[1:] / constants[:-1]
    torch.testing.assert_close(ratios, ratios[:1].expand(11))
    assert (1 / first_rates(1)).item() == pytest.approx(math.sqrt(SHORTEST * LONGEST))


def test_each_kind_starts_at_these() -> None:
    x, mask = torch.zeros(2, 3, 8), torch.tensor([[True, True, False], [False, True, True]])
    assert Forgetting("additive", 8, 4, "none", causal=True)(x, mask) is None
    for kind in KINDS[1:]:
        rates = Forgetting("additive", 8, 4, kind, causal=True)(x, mask)
        assert rates is not None
        torch.testing.assert_close(rates[mask], first_rates(4).float().expand(4, 4))
        assert (rates[~mask] == 0).all()


def test_rates_depend_on_the_input_and_are_never_negative() -> None:
    forgetting = Forgetting("additive", 8, 4, "input", causal=True)
    x = 1e4 * torch.randn(3, 50, 8)
    rates = forgetting(x, None)
    assert rates is not None
    assert rates.isfinite().all()
    assert rates.min() >= 0
    assert rates[:, 1:].ne(rates[:, :1]).any()


@pytest.mark.parametrize("name", ["delta", "gated_linear"])
def test_both_directions_start_with_the_same_time_constants(name: str) -> None:
    """Known failure: one direction had the fast heads, the other the slow ones."""
    forgetting = mixers.build(name, 16, heads=8).get_submodule("forgetting")
    forward, backward = forgetting(torch.zeros(1, 1, 16), None)[0, 0].chunk(2)
    torch.testing.assert_close(forward, first_rates(4).float())
    torch.testing.assert_close(backward, forward)


@pytest.mark.slow
@every_mixer
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
def test_every_kind_agrees_with_the_formula_with_gradients(name: str, kind: str, causal: bool) -> None:
    if not causal and name != "additive":
        pytest.skip("it forgets in the causal form only")
    mixer = mixers.build(name, 8, causal=causal, forget=kind).double()
    naive = inspect.getmodule(type(mixer)).naive  # type: ignore[union-attr]
    x = torch.randn(2, 40, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 40) > 0.3
    mask[0, 0], mask[1, -1] = False, True
    weights = torch.randn(2, 40, 8, dtype=torch.float64)
    y, expected = mixer(x, mask), naive(mixer, x, mask)
    torch.testing.assert_close(y, expected)
    inputs = [x, *mixer.parameters()]
    got, wanted = (torch.autograd.grad((out * weights).sum(), inputs) for out in (y, expected))
    torch.testing.assert_close(got, wanted)


@pytest.mark.slow
@every_mixer
def test_what_is_long_past_is_forgotten(name: str) -> None:
    """Without forgetting, what was read once weighs as much as all that is read now."""
    mixer, plain = (mixers.build(name, 8, causal=True, forget=kind) for kind in ("learned", "none"))
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(torch.randn_like(parameter))
        mixer.get_submodule("forgetting").get_parameter("slope").fill_(0.0)
    plain.load_state_dict(mixer.state_dict(), strict=False)
    old, new = torch.randn(2, 1, 300, 8)
    far = 0
    for each, least, most in ((mixer, 0.0, 1e-6), (plain, 1e-6, torch.inf)):
        y, other = each(torch.cat((old, new), 1))[:, -1], each(torch.cat((-old, new), 1))[:, -1]
        change = ((y - other).abs().max() / y.abs().max()).item()
        assert least <= change <= most
        far += 1
    assert far == 2


def test_additive_forgets_what_is_far_on_either_side() -> None:
    mixer = mixers.build("additive", 8, heads=2, forget="learned")
    with torch.no_grad():
        mixer.get_submodule("forgetting").get_parameter("slope").fill_(0.0)
    x, mixer = torch.randn(1, 300, 8, dtype=torch.float64), mixer.double()
    changed = x.clone()
    changed[:, 150] += 3
    moved = (mixer(changed) - mixer(x)).abs().amax((0, 2))
    assert moved[140] > 1e-4
    assert moved[160] > 1e-4
    assert moved[:50].max() < 1e-6
    assert moved[250:].max() < 1e-6


@pytest.mark.slow
def test_additive_forgets_both_ways_under_the_contract() -> None:
    for case, check in mixer_checks("additive", options={"causal": False, "forget": "input"}):
        # What is slow shows nothing that the causal form, of the same parts, does not.
        if not case.startswith(SLOW):
            check()


@pytest.mark.parametrize("name", ["additive", "linear"])
def test_a_context_is_neither_near_nor_far(name: str) -> None:
    x = torch.randn(1, 4, 8)
    mixer = mixers.build(name, 8, causal=True, forget="fixed")
    for read in (lambda: mixer(x, context=x), lambda: mixer.init_state(1, context=x)):
        with pytest.raises(UserError, match=rf"{name} expected no context with forget='fixed'"):
            read()
    assert not mixer.takes_context
    assert mixers.build(name, 8, causal=True).takes_context


@every_mixer
def test_forgetting_needs_a_known_kind_and_an_order(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name} forget 'inputs'; did you mean 'input'"):
        mixers.build(name, 8, causal=True, forget="inputs")
    if name == "additive":
        return
    with pytest.raises(UserError, match=rf"{name} expected causal=True to forget, got forget='fixed'"):
        mixers.build(name, 8, forget="fixed")


def test_a_mixer_that_attends_to_nothing_forgets_nothing() -> None:
    with pytest.raises(UserError, match="output='q'"):
        mixers.build("additive", 8, causal=True, output="q", forget="input")
