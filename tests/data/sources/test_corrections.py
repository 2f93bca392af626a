"""Rows of `data.corrections`, which training reads in addition to the data."""

import json
from pathlib import Path
from typing import Any

import pytest

from longspan import UserError, recipes
from longspan.data.sources.loading import load


def written(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(folder: Path, corrections: Path | str) -> Any:
    rows = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(20)]
    data = written(folder / "data.jsonl", rows)
    test = written(folder / "test.jsonl", [{"text": "text 1000", "label": "a"}])
    given = [f"data.path={data}", f"data.test={test}", f"data.corrections={corrections}"]
    recipe = recipes.load("classify", given)
    return load(recipe.data, recipe.task.columns(recipe.data), stratify="label").splits


def test_they_replace_rows_of_the_same_document_and_the_last_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read(tmp_path, "")
    text = before["train"]["text"][0]
    held = before["validation"]["text"][0]
    rows = [
        {"text": "new", "label": "a", "corrected": "2026-01-01"},
        {"text": text, "label": "a"},
        {"text": text, "label": "b"},
        {"text": "text 1000", "label": "b"},
        {"text": held, "label": "a"},
    ]
    splits = read(tmp_path, written(tmp_path / "corrections.jsonl", rows))
    train = dict(zip(splits["train"]["text"], splits["train"]["label"], strict=True))
    assert len(train) == len(splits["train"]) == len(before["train"]) + 1
    assert (train["new"], train[text]) == ("a", "b")
    for split in ("validation", "test"):
        assert splits[split].to_dict() == before[split].to_dict()
    assert "2 of 4 documents in data.corrections are validation or test data" in capsys.readouterr().err


def test_mistakes_are_said(tmp_path: Path) -> None:
    for rows, told in (([{"text": "x", "label": "c"}], "got 'c'"), ([{"text": "x"}], "expected a column 'label'")):
        with pytest.raises(UserError, match=told):
            read(tmp_path, written(tmp_path / "corrections.jsonl", rows))
    with pytest.raises(UserError, match="data that are read whole"):
        recipes.load("nodes", ["data.path=x", "data.corrections=y"])
