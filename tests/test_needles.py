"""Needles in long documents: the documents are as described, and the script trains, measures and does not repeat."""

import json
import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    folder = Path(__file__).parent.parent / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    return runpy.run_path(str(folder / "needles.py"))


def test_documents_have_the_fact_at_its_depth(script: dict[str, Any]) -> None:
    hay, used = script["text_of"]([], 4000, 0), set[str]()
    for depth in (0.0, 0.3, 0.5, 1.0):
        row = script["document"](random.Random(1), hay, 6, {"Bababa"}, depth, used)
        (code,), (start,) = row["answers"]["text"], row["answers"]["answer_start"]
        name = row["question"].removeprefix("What is the code of ").removesuffix("?")
        fact = f" The code of {name} is {code}."
        assert row["context"].count(" The code of ") == 6
        assert row["context"].count(fact) == 1
        assert row["context"].index(fact) == start - len(fact) + len(code) + 1
        assert abs(start / len(row["context"]) - depth) < 0.1
    assert len(used) == 6
    assert "Bababa" not in used


@pytest.mark.slow
def test_needles(
    run_benchmark: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str], script: dict[str, Any]
) -> None:
    given = ["needles.py", "--out", str(tmp_path / "out"), "--only", "additive:depth=1", "--lengths", "150,300"]
    given += ["--depths", "2", "--each", "1", "--documents", "60", "--model", "dim=16", "feed_forward_dim=16"]
    given += ["--picture", str(tmp_path / "needles.png"), "--json", str(tmp_path / "needles.json")]
    run_benchmark(*given)
    assert "| additive:depth=1 |" in capsys.readouterr().out
    lines = (tmp_path / "out/results.jsonl").read_text().splitlines()
    assert [(row["length"], row["depth"]) for row in map(json.loads, lines)] == [(150, 0), (150, 1), (300, 0), (300, 1)]
    assert len(json.loads((tmp_path / "needles.json").read_text())["result"]) == 4
    with Image.open(tmp_path / "needles.png") as picture:
        # Figures of tests are drawn at a fifth of the usual resolution.
        assert picture.size[0] > 60
    run_benchmark(*given)
    assert (tmp_path / "out/results.jsonl").read_text().splitlines() == lines
