"""Measurements of small mixers in this process; no test depends on how long they took."""

import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan import bench, cli, mixers
from longspan.errors import UserError
from longspan.machine.floors import Rates
from longspan.mixers.base import Mixer
from longspan.results.bench import Measurement

verb = importlib.import_module("longspan.verbs.bench")
SMALL: dict[str, Any] = {"dim": 16, "heads": 2, "repeats": 1}


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> Rates:
    """Rates of a made-up machine."""
    known = Rates(operations=1e9, bytes=1e9)
    monkeypatch.setattr(verb, "measured_rates", lambda *_: known)
    return known


def test_a_measurement_has_operations_bytes_and_a_floor(rates: Rates) -> None:
    found = bench(["additive"], [32], batch_size=3, **SMALL).measurements[0]
    layer = mixers.build("additive", 16, heads=2)
    weights = 4 * sum(one.numel() for one in layer.parameters())
    assert found.operations == 3 * layer.operations(32)
    assert found.moved_bytes == 2 * 4 * 3 * 32 * 16 + weights
    assert found.floor_seconds == rates.floor(found.operations, found.moved_bytes)
    assert found.tokens == 96
    # At least the output.
    assert (found.peak_memory_bytes or 0) >= 4 * 3 * 32 * 16
    assert found.seconds is not None
    assert found.low is not None
    assert found.low <= found.seconds


def test_backward_passes_take_three_times_the_operations_and_more_memory() -> None:
    forward, both = (bench(["softmax"], [64], backward=each, **SMALL).measurements[0] for each in (False, True))
    assert both.operations == 3 * forward.operations
    assert both.moved_bytes == 2 * forward.moved_bytes
    assert (both.peak_memory_bytes or 0) > (forward.peak_memory_bytes or 0)


def test_a_model_of_layers_and_a_hybrid_count_their_feed_forward_networks() -> None:
    found = bench(["additive+linear"], [32], layers=2, **SMALL).measurements[0]
    own = sum(mixers.build(name, 16, heads=2).operations(32) for name in ("additive", "linear"))
    assert found.operations == own + 2 * 2 * 2 * 32 * 16 * 64


def test_bfloat16_and_causal_forms_give_finite_outputs() -> None:
    result = bench(["linear", "softmax"], [16], dtype="bfloat16", causal=True, backward=True, **SMALL)
    assert [one.finite for one in result.measurements] == [True, True]


def test_random_numbers_of_the_caller_are_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    bench(["additive"], [16], **SMALL)
    assert torch.equal(torch.rand(1), expected)


def test_outputs_that_are_not_finite_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    build = verb._built

    def broken(*arguments: Any) -> Mixer:
        made: Mixer = build(*arguments)
        with torch.no_grad():
            next(made.parameters()).fill_(math.nan)
        return made

    monkeypatch.setattr(verb, "_built", broken)
    assert not bench(["additive"], [16], **SMALL).measurements[0].finite


def test_a_mixer_without_memory_is_left_out_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    call = verb._call

    def limited(module: Mixer, x: torch.Tensor, backward: bool) -> Callable[[], list[torch.Tensor]]:
        if type(module).__name__ == "Softmax" and x.shape[1] > 16:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        made: Callable[[], list[torch.Tensor]] = call(module, x, backward)
        return made

    monkeypatch.setattr(verb, "_call", limited)
    result = bench(["additive", "softmax"], [16, 32, 64], **SMALL)
    assert [one.length for one in result.of("additive")] == [16, 32, 64]
    assert [one.length for one in result.of("softmax")] == [16]
    reasons = [one.left_out for one in result.measurements if one.left_out]
    assert reasons == ["left out: not enough memory.", "left out, as at the length before."]


def test_slow_and_large_calls_are_foreseen_from_their_growth() -> None:
    quadratic = [
        Measurement("softmax", length, length, (length / 100) ** 2, peak_memory_bytes=length**2)
        for length in (100, 200)
    ]
    assert verb._expected([(100, 1.0), (200, 4.0)], 400) == pytest.approx(16.0)
    # Noise: neither a fall nor a cubic growth is believed.
    assert verb._expected([(100, 4.0), (200, 4.0)], 400) == pytest.approx(8.0)
    assert verb._expected([(100, 1.0), (200, 8.0)], 400) == pytest.approx(32.0)
    cpu = torch.device("cpu")
    assert verb._reason(quadratic, 400, 17, cpu) is None
    assert "takes about 16.0 s, more than the 15 s" in (verb._reason(quadratic, 400, 15, cpu) or "")
    large = [Measurement("softmax", 100, 100, 1e-9, peak_memory_bytes=1 << 50)]
    assert "GiB of memory" in (verb._reason(large, 200, 15, cpu) or "")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mixers": ["aditive"]}, "did you mean 'additive'"),
        ({"mixers": []}, "at least one mixer"),
        ({"mixers": ["additive+linear"]}, "set layers to 2 or more"),
        ({"lengths": [0, 16]}, "expected length to be above 0, got 0"),
        ({"dtype": "float3"}, "did you mean 'float32'"),
        ({"device": "gpu"}, "did you mean 'cuda'"),
        ({"mixers": ["softmax"], "heads": 3}, "heads"),
        ({"layers": -1}, "at least 0"),
        ({"repeats": 0}, "expected repeats to be above 0"),
        ({"mixers": ["linformer"], "lengths": [1 << 20]}, "set linformer.max_length=1048576"),
        ({"options": {"softmax": {}}}, "there are options for 'softmax', which is not measured"),
        ({"options": {"additive": {"head": 2}}}, "did you mean 'heads'"),
        ({"mixers": ["reformer"], "causal": True}, "no causal form"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(
    changed: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "measured_rates", lambda *_: pytest.fail("measured"))
    with pytest.raises(UserError, match=message):
        bench(**{"mixers": ["additive"], "lengths": [16], **SMALL, **changed})


def test_the_command_writes_json_and_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made" / "here"
    sizes = ["--dim", "16", "--heads", "2", "--repeats", "1", "--out", str(out)]
    given = ["bench", "linformer.max_length=64", "--mixers", "linformer,softmax", "--lengths", "16..32", *sizes]
    assert cli.main([*given, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "bench.json").read_text())
    assert [one["length"] for one in printed["measurements"]] == [16, 16, 32, 32]
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert cli.main(given) == 0
    told = capsys.readouterr()
    assert "tokens/s" in told.out
    assert "measuring length 32" in told.err
    assert cli.main(["bench", "--dtype", "float8"]) == 2
    assert cli.main(["bench", "max_length=3"]) == 2


def test_what_was_measured_before_an_interrupt_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = verb._measured

    def interrupted(modules: Any, x: torch.Tensor, *more: Any) -> list[Measurement]:
        if x.shape[1] > 16:
            raise KeyboardInterrupt
        rows: list[Measurement] = measured(modules, x, *more)
        return rows

    monkeypatch.setattr(verb, "_measured", interrupted)
    sizes = ["--dim", "16", "--heads", "2", "--repeats", "1", "--out", str(tmp_path)]
    assert cli.main(["bench", "--mixers", "additive", "--lengths", "16..32", *sizes]) == 130
    assert "lengths up to 16 are in" in capsys.readouterr().err
    assert [one["length"] for one in json.loads((tmp_path / "bench.json").read_text())["measurements"]] == [16]
