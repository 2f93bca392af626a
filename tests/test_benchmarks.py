"""The benchmark scripts still run; what they measure is for RESULTS.md, not for tests."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(name: str, *arguments: str) -> None:
    before = torch.get_float32_matmul_precision()
    sys.argv = [name, *arguments]
    try:
        runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
    finally:
        torch.set_float32_matmul_precision(before)


def test_training_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    run("training_speed.py", "--steps", "1", "--mixers", "additive", "--json", str(tmp_path / "speed.json"))
    assert "tokens/s" in capsys.readouterr().out
    written = json.loads((tmp_path / "speed.json").read_text())
    assert written["result"]["additive"]["tokens_per_second"] > 0
    assert written["environment"]["cores"]


def test_document_memory(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    run("document_memory.py", "--tokens", "300", "--checkpointing")
    assert "300 tokens" in capsys.readouterr().out


def test_pooling_speed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    run("pooling_speed.py", "--short", "64", "--long", "256", "--repeats", "1", "--mixers", "messages,linear")
    assert "messages, causal" in capsys.readouterr().out


def test_local_speed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("local_attention")
    monkeypatch.setattr(sys, "argv", sys.argv)
    run("local_speed.py", "--radius", "16", "--lengths", "128", "--full", "128", "--repeats", "1")
    assert "LocalAttention" in capsys.readouterr().out
