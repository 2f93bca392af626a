import pytest
import torch

from longspan.machine import floors


def test_times_have_quartiles_and_few_times_have_their_extremes() -> None:
    assert floors.summary_of([3.0, 1.0, 2.0]) == floors.Times(2.0, 1.0, 3.0, 3)
    assert floors.summary_of([1.0, 2.0, 3.0, 4.0, 50.0]) == floors.Times(3.0, 2.0, 4.0, 5)


def test_candidates_take_turns() -> None:
    called: list[str] = []
    candidates = {name: lambda name=name: called.append(name) for name in "ab"}
    times = floors.interleaved(candidates, repeats=3)
    assert called == ["a", "b"] * 3
    assert {name: one.repeats for name, one in times.items()} == {"a": 3, "b": 3}


def test_no_turn_begins_after_the_budget_but_the_first_always_does() -> None:
    assert floors.interleaved({"a": lambda: None}, repeats=5, seconds=-1)["a"].repeats == 1


# Allocators round sizes up, and results have a few bytes of their own.
@pytest.mark.parametrize(
    ("held", "call"),
    [
        (1, lambda x: x + 1),
        (2, lambda x: (x + 1) * 2),
        (1, lambda x: (x + 1).sum()),
        (3, lambda x: torch.cat([x + 1, x[:0]]).add_(torch.cat([x, x]).sum())),
    ],
    ids=["result", "intermediate-and-result", "freed-intermediate", "freed-and-held"],
)
def test_the_peak_of_a_call_counts_what_it_holds_at_once(held: int, call: object) -> None:
    assert callable(call)
    x = torch.randn(1000, 256)
    size = x.numel() * x.element_size()
    assert floors.peak_of(lambda: call(x)) == pytest.approx(held * size, abs=4096)
