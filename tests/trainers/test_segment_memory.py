"""The benchmark of training steps after ever more segments still runs."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks/segment_memory.py"


def test_segment_memory(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = "--marks 2,3 --rows 2 --segment 8 --dim 16 --heads 2"
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *tiny.split(), "--mixers", "softmax carried"])
    before = torch.get_float32_matmul_precision()
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    finally:
        torch.set_float32_matmul_precision(before)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[2:]] == ["2", "3"]
