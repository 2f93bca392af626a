"""The benchmark scripts for language models still run; what they measure is for RESULTS.md, not for tests."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from language_runs import make_run
from PIL import Image

from longspan import LongspanForCausalLM

Script = Callable[..., None]
SMALL = ["--dim", "16", "--depth", "1", "--heads", "2", "--repeats", "1"]


def test_evaluation_time(run_benchmark: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_benchmark(
        "evaluation_time.py", "--lengths", "8,16", "--segment", "4", *SMALL, "--json", str(tmp_path / "times.json")
    )
    assert "ratio of Dai et al." in capsys.readouterr().out
    result = json.loads((tmp_path / "times.json").read_text())["result"]
    assert {(length, *sorted(row)) for length, row in result.items()} == {
        ("8", "carried", "vanilla"),
        ("16", "carried", "vanilla"),
    }


@pytest.mark.slow
def test_generation_speed(run_benchmark: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--contexts", "10,80", "--tokens", "2", "--segment", "32", "--mixers", "softmax", *SMALL]
    run_benchmark("generation_speed.py", *given, "--json", str(tmp_path / "speed.json"))
    assert "ms/token at 80" in capsys.readouterr().out
    result = json.loads((tmp_path / "speed.json").read_text())["result"]
    assert result["softmax"]["10"]["state_bytes"] < result["softmax"]["80"]["state_bytes"]
    # More than an interpreter with torch, and a peak never sinks.
    assert all(100 * 2**20 < row["10"]["peak_bytes"] <= row["80"]["peak_bytes"] for row in result.values())


def test_forgetting_speed(run_benchmark: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--mixers", "additive", "--rows", "2", "--segment", "8", "--repeats", "1"]
    run_benchmark("forgetting_speed.py", *given, "--json", str(tmp_path / "a.json"))
    assert "both, times" in capsys.readouterr().out
    times = json.loads((tmp_path / "a.json").read_text())["milliseconds"]["additive"]
    assert set(times) == {"neither", "forgetting", "convolution", "both"}


def test_carried_states(run_benchmark: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "the quick brown fox jumps over the lazy dog.\n" * 4
    run = make_run(tmp_path / "run", text, "additive")
    given = ["--data", str(run.parent / "text.txt"), "--split", "test", "--segments", "3", "--streams", "2"]
    written = ["--picture", str(tmp_path / "a.png"), "--json", str(tmp_path / "a.json")]
    run_benchmark("carried_states.py", str(run), *given, *written)
    assert "additive, by itself" in capsys.readouterr().out
    carried, alone = json.loads((tmp_path / "a.json").read_text())["curves"]["additive"].values()
    assert len(carried) == len(alone) == 4
    # Nothing is carried into the first segment, and something into the others.
    assert carried[0] == pytest.approx(alone[0], abs=1e-6)
    assert all(abs(a - b) > 1e-6 for a, b in zip(carried[1:], alone[1:], strict=True))
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > picture.height


def test_context_length(run_benchmark: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "the quick brown fox jumps over the lazy dog.\n" * 4
    # Paths so long that they once left the picture no room.
    folder = tmp_path / ("deep" * 30)
    runs = [str(make_run(folder / mixer / "run", text, mixer)) for mixer in ("relative", "softmax", "additive")]
    given = ["--data", str(folder / "relative/text.txt"), "--lengths", "4,16", "--tokens", "60"]
    run_benchmark(
        "context_length.py", *runs, *given, "--picture", str(tmp_path / "a.png"), "--json", str(tmp_path / "a.json")
    )
    shown = capsys.readouterr().out
    for part in ("relative/run, carried", "softmax/run, window", "whole document", "effective length", "4 to 16"):
        assert part in shown
    curves = json.loads((tmp_path / "a.json").read_text())["result"]["curves"]
    relative, softmax, additive = (curves[path] for path in runs)
    assert relative["carried"].keys() == {"4", "16"}
    assert (softmax["carried"], softmax["whole"], additive["carried"]) == ({}, None, {})
    assert additive["whole"] > 0
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > picture.height


def test_shakespeare(run_benchmark: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From finished runs, as hours are not for tests: the table, the minutes that the steps took, the picture."""
    for name, loss, speed in (("additive", 1.6, 8192), ("lstm", 1.5, 4096)):
        for run, steps in ((f"{name}-15min-0", 15 * 60 * speed // 4096), (f"{name}-alone-300-0", 300)):
            history = [{"step": 450, "validation_loss": loss + 0.1}, {"step": 900, "validation_loss": loss}]
            found = {
                "validation": {"loss": loss},
                "history": history,
                "steps": steps,
                "tokens_per_second": speed,
                "parameters": 1,
                "peak_memory_bytes": 1,
            }
            (tmp_path / run).mkdir()
            (tmp_path / run / "metrics.json").write_text(json.dumps(found))
    given = ["text.txt", "--out", str(tmp_path), "--only", "additive,lstm", "--picture", str(tmp_path / "a.png")]
    run_benchmark("shakespeare.py", *given, "--json", str(tmp_path / "a.json"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[2:]] == ["lstm", "additive"]
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [(row["steps"], row["minutes"]) for row in rows] == [(1800, 15.0), (900, 15.0)]
    run_benchmark("shakespeare.py", *given, "--steps", "300", "--alone", "--json", str(tmp_path / "a.json"))
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [(row["name"], row["steps"], row["minutes"]) for row in rows] == [
        ("additive-alone", 300, 2.5),
        ("lstm-alone", 300, 5.0),
    ]
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > picture.height


def test_entries_of_the_shakespeare_comparison_are_of_equal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parent.parent / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    script = runpy.run_path(str(folder / "shakespeare.py"))
    for name in script["ENTRIES"]:
        with torch.device("meta"):
            config = LongspanForCausalLM.configured(**script["shape_of"](name, 2_000_000), causal=True, vocab_size=68)
            parameters = LongspanForCausalLM(config).num_parameters()
        assert 1_985_000 < parameters <= 2_000_000, name
