"""Quotation marks in files with tabs: rows that they would join stay apart."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longspan import UserError
from longspan.data.columns.kinds import Label, Text
from longspan.data.config import DataConfig
from longspan.data.sources.paths import read_paths

COLUMNS = [Text("text", "text_column"), Label("label", "label_column")]


def rows(path: Path, **settings: Any) -> list[Any]:
    class Data(DataConfig):
        label_column = "label"

    return list(read_paths([path], COLUMNS, Data(**settings)))


def tweets(path: Path, first: str = '"no', last: str = 'yes"') -> Path:
    """Sixty rows, of which one text begins with a quotation mark and a later one ends with one."""
    lines = [f"text {number}\t{'ab'[number % 2]}" for number in range(60)]
    lines[20], lines[31] = f"{first}\ta", f"{last}\tb"
    path.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    return path


def test_marks_that_would_join_rows_are_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(tweets(tmp_path / "tweets.tsv"))
    assert len(found) == 60
    assert found[20].values == {"text": '"no', "label": "a"}
    assert "tweets.tsv is read without quotation marks around fields" in capsys.readouterr().err


def test_a_mark_that_is_never_closed_is_a_character(tmp_path: Path) -> None:
    found = rows(tweets(tmp_path / "tweets.tsv", last="yes"))
    assert [row.values["text"] for row in found][20] == '"no'
    assert len(found) == 60


def test_settings_win(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tweets(tmp_path / "tweets.tsv", first='"no"', last="yes")
    assert rows(path)[20].values["text"] == "no"
    assert rows(path, quoting="none")[20].values["text"] == '"no"'
    assert len(rows(tweets(path), quoting="none")) == 60
    assert len(rows(tweets(path), quoting="quotes")) < 60
    assert not capsys.readouterr().err
    with pytest.raises(UserError, match="quoting"):
        DataConfig(quoting="quote")


def test_fields_that_are_quoted_may_have_tabs_and_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text('text\tlabel\n"a\tb\tb\nc"\tx\n"d\ne"\ty\n', encoding="utf-8")
    assert [row.values["text"] for row in rows(path)] == ["a\tb\tb\nc", "d\ne"]


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("csv"):
        path.write_text("text,label,label\na,b,c\n", encoding="utf-8")
    else:
        table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["text", "label", "label"])
        pq.write_table(table, path)
    with pytest.raises(UserError, match="one column 'label', got 2"):
        rows(path)
