import pytest
import torch

from longspan.machine import floors


def test_the_floor_is_the_larger_of_both_times() -> None:
    rates = floors.Rates(operations=100.0, bytes=10.0)
    assert rates.floor(200, 10) == 2.0
    assert rates.floor(100, 50) == 5.0


def test_rates_are_measured_for_a_type_and_slow_types_stop_at_small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "_SIZES", {"cpu": (8, 16), "cuda": ()})
    monkeypatch.setattr(floors, "_COPIED", {"cpu": 1 << 10, "cuda": 0})
    monkeypatch.setattr(floors, "_REPEATS", 1)
    rates = floors.measured_rates(torch.bfloat16)
    assert rates.operations > 0
    assert rates.bytes > 0
    asked: list[int] = []
    real = torch.rand

    def rand(*size: int, **more: object) -> torch.Tensor:
        asked.append(size[0])
        return real(*size, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(floors.torch, "rand", rand)
    monkeypatch.setattr(floors, "_LONGEST", 0.0)
    floors.measured_rates()
    assert set(asked) == {8}
