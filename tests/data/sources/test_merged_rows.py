"""Rows about segments of one recording become one row."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from longspan import UserError
from longspan.data.columns.segments import Segments, WholeRecording
from longspan.data.config import SourceData
from longspan.data.sources.loading import load


@dataclass(frozen=True)
class Settings(SourceData):
    recording_column: str = "recording"
    segments_column: str = "segments"


COLUMNS = [WholeRecording("recording", "recording_column"), Segments("segments", "segments_column")]


def read(folder: Path, *rows: str, **settings: object) -> list[dict[str, object]]:
    for name in "abc":
        (folder / f"{name}.wav").write_bytes(name.encode())
    (folder / "table.csv").write_text("\n".join(["recording,start,end,label", *rows]) + "\n", encoding="utf-8")
    given = {"validation": str(folder / "table.csv"), **settings}
    found = load(Settings(**given), COLUMNS, training=False)  # type: ignore[arg-type]
    assert found.skipped == ({} if not settings else found.skipped)
    return [
        {"file": Path(row["recording"]["path"]).name, **row["segments"], "where": row["where"]}
        for row in found.splits["validation"]
    ]


def test_rows_of_one_file_are_one_in_the_order_of_times(tmp_path: Path) -> None:
    one, other = read(tmp_path, "b.wav,2,3,y", "a.wav,0,1,x", "b.wav,0.5,2,x")
    assert one == {"file": "b.wav", "start": [0.5, 2], "end": [2, 3], "label": ["x", "y"], "where": "table.csv, row 1"}
    assert other == {"file": "a.wav", "start": [0], "end": [1], "label": ["x"], "where": "table.csv, row 2"}


def test_a_bad_row_makes_all_of_its_file_bad(tmp_path: Path) -> None:
    rows = ["a.wav,0,1,x", "b.wav,0,1,x", "a.wav,2,1,x", "c.wav,0,2,x", "c.wav,1,3,y"]
    with pytest.raises(UserError, match=r"table\.csv, row 3: no segments \(.*got one from 2 to 1 s\); fix it, or set"):
        read(tmp_path, *rows)
    (found,) = read(tmp_path, *rows, skip_bad_rows=True)
    assert found["file"] == "b.wav"


def test_a_column_for_the_label_is_needed(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("recording,start,end\na.wav,0,1\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"expected a column 'label' in table\.csv"):
        load(Settings(validation=str(tmp_path / "table.csv")), COLUMNS, training=False)


def test_rows_of_one_recording_that_is_no_file_are_refused(tmp_path: Path) -> None:
    """Each alone would say that the other segment is outside of all."""
    rows = [
        {"recording": {"bytes": content, "path": "a.wav"}, "start": start, "end": start + 1.0, "label": "x"}
        for content, start in ((b"a", 0.0), (b"b", 0.0), (b"a", 2.0))
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "table.parquet")
    given = Settings(validation=str(tmp_path / "table.parquet"))
    with pytest.raises(UserError, match=r"row 3: a recording that is no file and is in a row before"):
        load(given, COLUMNS, training=False)
