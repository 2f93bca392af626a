"""What of a folder is not read is named: files of other programs, classes without documents, files beside classes."""

from pathlib import Path

import pytest

from longspan.data.columns.kinds import Label, Text
from longspan.data.config import DataConfig
from longspan.data.sources.loading import load
from longspan.data.sources.paths import read_paths

COLUMNS = [Text("text", "text_column"), Label("label", "label_column")]


class Data(DataConfig):
    label_column = "label"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("news", "mail", "scans", "empty"):
        (tmp_path / "inbox" / name).mkdir(parents=True)
    for number in range(12):
        for name in ("news", "mail"):
            (tmp_path / "inbox" / name / f"{number}.txt").write_text(f"{name} {number}\n", encoding="utf-8")
        (tmp_path / "inbox" / "scans" / f"{number}.png").write_bytes(b"\x89PNG")
    for name in ("letter.doc", "note.mp3"):
        (tmp_path / "inbox" / "mail" / name).write_text("From: x\n", encoding="utf-8")
    (tmp_path / "inbox" / "loose.txt").write_text("loose\n", encoding="utf-8")
    return tmp_path / "inbox"


def test_training_names_what_it_does_not_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = load(Data(path=str(folder)), COLUMNS, stratify="label")
    assert set(found.splits["train"]["label"][:]) == {"news", "mail"}
    told = capsys.readouterr().err
    assert "the folder 'scans' is no class, as none of its 12 files is read" in told
    assert "the folder 'empty' is no class, as it is empty" in told
    assert "left out 1 file of 'inbox' that are in no class folder" in told
    assert "not read: 12 .png, 1 .doc, 1 .mp3 files (not in a format that is read as text)" in told


def test_predictions_name_it_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(read_paths([folder], COLUMNS, Data()))) == 24
    assert "'scans' is no class" in capsys.readouterr().err
    assert len(list(read_paths([folder], COLUMNS[:1], Data()))) == 25
    assert "not read: 12 .png, 1 .doc, 1 .mp3 files (not in a format that is read as text)" in capsys.readouterr().err
