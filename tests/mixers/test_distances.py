"""Rotary positions and linear biases: the contract with them, and that only differences count."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rounding import assert_within, rounding

from longspan import LongspanConfig, LongspanModel, UserError, mixers
from longspan.mixers import linear
from longspan.ops.rotary import rotated
from longspan.testing import mixer_checks

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {"rotary": True, "alibi": True}),
    "local": ("local", {"rotary": True, "alibi": True, "radius": 9}),
    "linear": ("linear", {"rotary": True}),
}
# Those that positions could break; the others are the same without.
PROMISES = (
    *("agrees_with_the_naive_form", "cross_attention", "finite_differences", "packed", "causal-float32", "float32]"),
    *("as_large_as", "given_device", "saved_and_reordered", "compiles_without_graph_breaks[causal", "exports[causal"),
    *("blocks_agree", "bfloat16-300"),
)
SLOW = ("one_real_token", "many_positions", "near_float64[float32", "near_float64[causal-float32")


def cases() -> list[object]:
    found: list[object] = []
    for form, (name, options) in FORMS.items():
        for case, check in mixer_checks(name, options=options):
            if any(promise in case for promise in PROMISES) and not any(slow in case for slow in SLOW):
                found.append(pytest.param(check, id=f"{form}-{case}"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("check", cases())
def test_the_contract_holds_with_them(check: Callable[[], None]) -> None:
    check()


def test_products_of_rotated_vectors_depend_on_differences_alone() -> None:
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    products = [
        (rotated(query, torch.tensor([start + 7])) * rotated(key, torch.tensor([start + 3]))).sum()
        for start in (0, 1, 1000, 10**8)
    ]
    # Angles of 1e8 in float64 have eight digits left behind the point.
    torch.testing.assert_close(torch.stack(products), products[0].expand(4), rtol=0, atol=1e-6)
    assert abs(products[0] - (query * key).sum()) > 1e-3
    torch.testing.assert_close(rotated(query, torch.tensor([5])).norm(), query.norm())


def test_positions_in_bfloat16_stay_apart() -> None:
    """Known failure elsewhere: 1,600 positions collapse to 585."""
    x = torch.ones(1, 1, 1, 4, dtype=torch.bfloat16).expand(1, 1, 1600, 4)
    found = rotated(x, torch.arange(1600))
    expected = rotated(x.double(), torch.arange(1600))
    # Computed in float32, and rounded once.
    assert_within(found, expected, rounding(1, expected.abs(), torch.bfloat16) + rounding(4, 2.0, torch.float32))


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_far_from_its_beginning_is_as_one_near_it(form: str) -> None:
    name, options = FORMS[form]
    mixer, x = mixers.build(name, 16, heads=2, causal=True, **options).double(), torch.randn(1, 12, 16).double()
    start = mixer.init_state(1)
    far = start._replace(seen=start.seen + 50_000)
    torch.testing.assert_close(mixer.step(x, far)[0], mixer.step(x, start)[0], rtol=1e-6, atol=1e-6)


def test_rotary_features_fade_too() -> None:
    mixer = linear.Linear(16, heads=2, causal=True, rotary=True, forget="input").double()
    x, mask = torch.randn(2, 70, 16).double(), torch.rand(2, 70) > 0.3
    expected = linear.naive(mixer, x, mask)
    torch.testing.assert_close(mixer(x, mask), expected)
    state, parts = mixer.init_state(2), []
    for part, real in zip(x.split([1, 40, 29], 1), mask.split([1, 40, 29], 1), strict=True):
        y, state = mixer.step(part, state, real)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), expected)


def test_order_matters_with_them_and_not_without() -> None:
    x = torch.randn(1, 6, 16, dtype=torch.float64)
    for name, options in (("softmax", {"rotary": True}), ("softmax", {"alibi": True}), ("linear", {"rotary": True})):
        for chosen, moves in (({}, False), (options, True)):
            mixer = mixers.build(name, 16, heads=2, **chosen).double()
            swapped = mixer(x[:, [1, 0, 2, 3, 4, 5]])[:, 5]
            assert torch.allclose(swapped, mixer(x)[:, 5]) != moves


def test_rotary_can_be_set_for_the_whole_model() -> None:
    config = LongspanConfig(mixers=["local", "additive"], rotary=True, dim=16, heads=2, vocab_size=9)
    assert LongspanModel(config).backbone.blocks[0].mixer.rotary
    with pytest.raises(UserError, match="expected a mixer with rotary positions with rotary=True, got additive"):
        LongspanModel(LongspanConfig(mixers=["additive"], rotary=True))
    own = {"softmax": {"rotary": False}}
    model = LongspanModel(LongspanConfig(mixers=["softmax", "linear"], mixer_options=own, rotary=True))
    assert [block.mixer.rotary for block in model.backbone.blocks] == [False, True]


@pytest.mark.parametrize("name", ["softmax", "local", "linear"])
def test_heads_of_odd_widths_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} expected heads of an even width with rotary=True, got 3"):
        mixers.build(name, 9, heads=3, rotary=True)
