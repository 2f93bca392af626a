"""Rows that are cut into slices: any cuts give what whole rows give, and what cannot be cut is refused."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import mixers
from longspan.ops import slices
from longspan.testing.mixers.slices import agree, in_slices
from longspan.testing.mixers.subject import Subject

FORGETTING = {"forget": "input"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("additive", {"heads": 4, **FORGETTING}),
    ("additive", {"heads": 4, "interaction": "concat"}),
    ("additive", {"heads": 4, "interaction": "add", "scoring": "all-heads"}),
    ("competitive_gate", {"heads": 4, **FORGETTING}),
    ("competitive_lookup", {"heads": 4, **FORGETTING}),
    ("messages", FORGETTING),
    ("bounded_memory", {"heads": 4, **FORGETTING}),
    ("linear", {"heads": 4, "rotary": True, **FORGETTING}),
    ("gated_linear", {"heads": 4, "gate": "channel"}),
    ("delta", {"heads": 4}),
    ("recurrent", {"cell": "sru"}),
    ("local", {"heads": 4, "rotary": True, "alibi": True}),
    ("convolution", {"kernel_size": 5, "depthwise": True}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{name}-{'-'.join(options)}" for name, options in CASES])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_any_cuts_give_whole_rows(name: str, options: dict[str, Any], data: st.DataObject) -> None:
    t = data.draw(st.integers(1, 40))
    cuts = sorted(data.draw(st.lists(st.integers(0, t), min_size=1, max_size=4)))
    mask = None
    if data.draw(st.booleans()):
        mask = torch.tensor(
            data.draw(st.lists(st.lists(st.booleans(), min_size=t, max_size=t), min_size=1, max_size=2))
        )
    causal = "forget" in options or data.draw(st.booleans())
    agree(Subject(mixers.load(name), causal, 16, options), mask, cuts, length=t)


def test_slices_without_an_exchange_differ() -> None:
    mixer = mixers.build("linear", 16, heads=4, causal=True)
    x = torch.randn(1, 8, 16, generator=torch.Generator().manual_seed(0))
    parts = torch.cat([mixer(part) for part in x.split(4, 1)], 1)
    cut = torch.cat(in_slices(2, lambda number: mixer(x.split(4, 1)[number])), 1)
    assert not torch.allclose(parts, mixer(x), atol=1e-3)
    torch.testing.assert_close(cut, mixer(x))


def test_the_example_of_the_guide_is_the_whole() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "one-sequence-many-devices.md"
    names: dict[str, Any] = {}
    exec(guide.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0], names)
    running_sum = names["running_sum"]
    values = torch.randn(2, 9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = values.split([4, 2, 3], 1)
    found = torch.cat(in_slices(3, lambda number: running_sum(parts[number], 0.3)), 1)
    torch.testing.assert_close(found, running_sum(values, 0.3), rtol=1e-12, atol=1e-12)
    state, expected = torch.zeros(2, 3, dtype=torch.float64), []
    for value in values.unbind(1):
        state = state * math.exp(-0.3) + value
        expected.append(state)
    torch.testing.assert_close(found, torch.stack(expected, 1), rtol=1e-12, atol=1e-12)


def test_an_error_in_a_slice_ends_all() -> None:
    def read(number: int) -> torch.Tensor:
        if number == 1:
            raise ValueError("no text")
        return slices.state_of_all(torch.ones(1), torch.add)

    with pytest.raises(ValueError, match="no text"):
        in_slices(3, read)
