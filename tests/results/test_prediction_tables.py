"""Tables of predictions: what other tools read back is what was predicted, and nothing in them is executed."""

import io
import json
import math
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from longspan.errors import UserError
from longspan.results import Prediction, tables
from longspan.results.outputs import new_file
from longspan.results.predictions import ClassPrediction, MultiLabelPrediction, NumberPrediction
from longspan.results.tables import Predictions, PredictionStream, index_of, write_table

STRANGE = '=cmd|"/c calc"!A1, "quoted"\nline\t2 äß😀'
ROWS = [
    ClassPrediction("a.csv, row 1", "no text"),
    ClassPrediction(
        "a.csv, row 2",
        None,
        STRANGE,
        {STRANGE: 0.75, "other": 0.25},
        tokens_read=512,
        tokens_total=9000,
        unfamiliar=True,
    ),
    ClassPrediction("http://a.b/row 3", None, "other", {STRANGE: 0.1, "other": 0.9}),
    ClassPrediction("a.csv, row 4", "broken UTF-8 at byte 3"),
]
COLUMNS = ["where", "label", f"probabilities.{STRANGE}", "probabilities.other", "unfamiliar"]
COLUMNS += ["tokens_read", "tokens_total", "error"]


def read(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    if path.suffix == ".xlsx":
        return pd.read_excel(path, engine="openpyxl")
    return pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",")


def write(rows: Iterable[Prediction], path: Path) -> None:
    kind = path.suffix.removeprefix(".")
    with new_file(path, binary=kind not in tables.PRINTED) as file:
        write_table(rows, kind, file)


def values(frame: pd.DataFrame) -> list[list[object]]:
    return [[None if pd.isna(value) else value for value in row] for row in frame.astype(object).values.tolist()]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "xlsx"])
def test_other_tools_read_what_was_predicted(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"found.{kind}"
    write(iter(ROWS), path)
    frame = read(path)
    assert frame.columns.tolist() == COLUMNS
    assert values(frame) == [
        ["a.csv, row 1", None, None, None, None, None, None, "no text"],
        ["a.csv, row 2", STRANGE, 0.75, 0.25, True, 512, 9000, None],
        ["http://a.b/row 3", "other", 0.1, 0.9, None, None, None, None],
        ["a.csv, row 4", None, None, None, None, None, None, "broken UTF-8 at byte 3"],
    ]


def test_json_lines_are_those_that_are_printed(tmp_path: Path) -> None:
    write(iter(ROWS), tmp_path / "found.jsonl")
    lines = (tmp_path / "found.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [one.to_dict() for one in ROWS]


def test_sheets_have_neither_formulas_nor_links(tmp_path: Path) -> None:
    write(iter(ROWS), tmp_path / "found.xlsx")
    with zipfile.ZipFile(tmp_path / "found.xlsx") as book:
        sheet = book.read("xl/worksheets/sheet1.xml").decode()
    assert "<f>" not in sheet
    assert "hyperlink" not in sheet


def test_lists_are_json(tmp_path: Path) -> None:
    several = MultiLabelPrediction("row 1", None, ["b", "a"], {"a": 0.6, "b": 0.9})
    write([several], tmp_path / "found.csv")
    assert json.loads(read(tmp_path / "found.csv")["labels"][0]) == ["b", "a"]
    assert Predictions([several]).to_pandas()["labels"][0] == ["b", "a"]


@pytest.mark.parametrize("kind", tables.FORMATS)
def test_no_rows_and_errors_alone(kind: str, tmp_path: Path) -> None:
    for rows in ([], ROWS[:1]):
        path = tmp_path / f"{len(rows)}.{kind}"
        write(rows, path)
        if kind != "jsonl":
            assert values(read(path)[["where", "error"]]) == [[one.where, one.error] for one in rows]


def test_rows_are_written_as_they_come() -> None:
    out = io.StringIO()

    def predictions() -> Iterator[NumberPrediction]:
        yield NumberPrediction("row 1", None, 2.5)
        assert out.getvalue() == "where,number,unfamiliar,tokens_read,tokens_total,error\nrow 1,2.5,,,,\n"
        yield NumberPrediction("row 2", None, math.inf)

    write_table(predictions(), "csv", out)
    assert out.getvalue().endswith("row 2,inf,,,,\n")


def test_many_groups_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_GROUP", 3)
    rows = [NumberPrediction(f"row {number}", None, float(number)) for number in range(10)]
    write(iter(rows), tmp_path / "found.parquet")
    assert pd.read_parquet(tmp_path / "found.parquet")["number"].tolist() == list(range(10))


def test_what_a_sheet_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "found.xlsx"
    with pytest.raises(UserError, match=r"at most 32,767 characters .* got 40,000 in column 'label' of row 1; choose"):
        write([ClassPrediction("row 1", None, "x" * 40_000, {"a": 1.0})], path)
    monkeypatch.setattr(tables, "_MOST_ROWS", 3)
    with pytest.raises(UserError, match="at most 2 rows"):
        write(ROWS, path)
    monkeypatch.setattr(tables, "_MOST_COLUMNS", 3)
    with pytest.raises(UserError, match=r"at most 3 columns .* got 8"):
        write(ROWS, path)


def test_rows_with_other_columns() -> None:
    rows = [ROWS[1], ClassPrediction("row 9", None, "new", {"new": 1.0})]
    with pytest.raises(UserError, match=r"columns of the first row in row 9, got another one, 'probabilities\.new'"):
        write_table(rows, "csv", io.StringIO())


def test_a_data_frame_keeps_its_index() -> None:
    frame = pd.DataFrame({"text": ["a", "b"]}, index=["x", "y"])
    rows = [NumberPrediction("row 1", None, 1.0), NumberPrediction("row 2", "no text")]
    assert Predictions(rows, index_of(frame)).to_pandas().index.tolist() == ["x", "y"]
    found = PredictionStream(iter(rows), index_of(frame)).to_pandas()
    assert (found["number"]["x"], found["error"]["y"]) == (1.0, "no text")
    assert index_of(["a", "b"]) is None
    assert Predictions(rows, index_of(["a", "b"])).to_pandas().index.tolist() == [0, 1]


def test_types_that_change_after_the_first_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_GROUP", 1)
    rows = [NumberPrediction("row 1", None, None), NumberPrediction("row 2", None, 1.5)]
    with pytest.raises(UserError, match="values of one type in each column of Parquet"):
        write(rows, tmp_path / "found.parquet")
    assert not (tmp_path / "found.parquet").exists()
