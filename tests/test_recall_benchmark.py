"""Associative recall: the rows are those of the published task, and the script trains, goes on, and does not repeat."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

Script = Callable[..., None]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    folder = Path(__file__).parent.parent / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    return runpy.run_path(str(folder / "mqar.py"))


def test_settings_for_all_are_left_out_where_no_mixer_knows_them(script: dict[str, Any]) -> None:
    given = ["forget=input", "rotary=true", "short_convolution=2"]
    assert script["chosen"](given, ["linear"]) == {"forget": "input", "rotary": True, "short_convolution": 2}
    assert script["chosen"](given, ["relative", "additive"]) == {"forget": "input", "short_convolution": 2}
    assert script["chosen"](given, ["relative"]) == {"short_convolution": 2}


def test_rows_are_those_of_the_published_task(script: dict[str, Any]) -> None:
    """Each key of the first 2·pairs tokens asks once for the value beside it, at an even distance; zeros elsewhere."""
    recall_rows = script["recall_rows"]
    ids, targets = recall_rows(200, 64, 4, 8192, seed=1)
    again, _ = recall_rows(200, 64, 4, 8192, seed=1)
    other, _ = recall_rows(200, 64, 4, 8192, seed=2)
    assert torch.equal(ids, again)
    assert not torch.equal(ids, other)
    keys, values = ids[:, 0:8:2], ids[:, 1:8:2]
    assert ((keys >= 1) & (keys < 4096)).all()
    assert ((values >= 4096) & (values < 8192)).all()
    assert all(len(row.unique()) == 4 for row in (*keys, *values))
    asked = targets != -100
    assert (asked.sum(1) == 4).all()
    assert not asked[:, :8].any()
    assert not asked[:, 1::2].any()
    assert torch.equal(ids[:, 8:] != 0, asked[:, 8:])
    for row in range(200):
        known = dict(zip(keys[row].tolist(), values[row].tolist(), strict=True))
        found = dict(zip(ids[row, asked[row]].tolist(), targets[row, asked[row]].tolist(), strict=True))
        assert found == known
    # The first place is drawn with weight 1 of Σ n^-0.99 = 4.0, four times without replacement.
    first, last = asked[:, 8].float().mean(), asked[:, 62].float().mean()
    assert 0.6 < first < 0.85
    assert last < 0.15


@pytest.mark.slow
def test_a_comparison_trains_and_is_not_repeated(
    run_benchmark: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["mqar.py", "--out", str(tmp_path), "--only", "additive,softmax", "--length", "16", "--pairs", "2"]
    given += [
        "--vocabulary",
        "16",
        "--dim",
        "8",
        "--minutes",
        "0.002",
        "--batch",
        "4",
        "--model",
        "heads=2",
        "--rate",
        "1e-3",
    ]
    given += ["--picture", str(tmp_path / "a.png")]
    run_benchmark(*given)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["name"] for row in rows] == ["additive", "softmax"]
    assert all(0 <= row["accuracy"] <= 1 and row["steps"] > 0 and row["environment"]["processor"] for row in rows)
    # Two layers of keys and values, 16 x 8 float32 each, the convolution's last inputs, and the count of positions.
    assert rows[1]["state_bytes"] == 2 * (2 * 16 * 8 + 3 * 8) * 4 + 8
    assert rows[0]["state_bytes"] < rows[1]["state_bytes"]
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > picture.height
    first = capsys.readouterr().out
    run_benchmark(*given)
    assert capsys.readouterr().out == first
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


def test_what_was_stopped_goes_on(run_benchmark: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["mqar.py", "--out", str(tmp_path), "--only", "additive", "--length", "16", "--pairs", "2"]
    given += ["--vocabulary", "16", "--dim", "8", "--minutes", "0.002", "--batch", "4", "--rate", "1e-3"]
    save = torch.save

    def stopped(what: Any, path: Any) -> None:
        save(what, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(*given)
    (file,) = tmp_path.glob("*.pt")
    steps = torch.load(file, weights_only=True)["done"]["steps"]
    monkeypatch.setattr(torch, "save", save)
    run_benchmark(*given)
    # Its time was over.
    assert json.loads((tmp_path / "results.jsonl").read_text())["steps"] == steps
    assert not file.exists()


def test_impossible_sizes_are_refused(
    run_benchmark: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_benchmark("mqar.py", "--out", str(tmp_path), "--length", "16", "--pairs", "5")
    assert "at least 4 tokens per pair" in capsys.readouterr().err


def test_the_best_of_several_rates_and_settings_of_one_entry(
    run_benchmark: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["mqar.py", "--out", str(tmp_path), "--only", "additive:forget=input:heads=2", "--rate", "1e-9,3e-2"]
    given += ["--length", "16", "--pairs", "2", "--vocabulary", "16", "--dim", "8", "--minutes", "0.002"]
    run_benchmark(*given)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["rate"] for row in rows] == [1e-9, 3e-2]
    best = max(rows, key=lambda row: row["accuracy"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "additive" in line]
    assert "| additive:forget=input:heads=2 |" in line
    assert f"| {best['rate']:g} " in line
