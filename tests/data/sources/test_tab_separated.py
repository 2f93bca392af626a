"""Fields separated by tabs, read many rows at a time."""

import gzip
from pathlib import Path

import pytest

from longspan.data.sources.formats import tab_separated
from longspan.data.sources.formats.tab_separated import first_fields, read_unquoted
from longspan.errors import UserError


def rows(path: Path, encoding: str = "utf-8") -> list[tuple[object, ...]]:
    return [
        row
        for found in read_unquoted(path, ["a", "b"], encoding)
        for row in zip(*(column.to_pylist() for column in (*found.columns.values(), *found[1:])), strict=True)
    ]


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_places_count_lines_left_out_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b'1\t"x', b"", b"2", b"3\ty\tz", b"  ", b"4\t", b"\t", b"\xff\tz", b"5\tNA\r"]
    path = write(tmp_path / "t.tsv", b"\xef\xbb\xbf" + b"\n".join(lines))
    expected = [
        ("1", '"x', "t.tsv, line 1", ""),
        ("4", "", "t.tsv, line 6", ""),
        ("", "", "t.tsv, line 8", "broken UTF-8"),
        ("5", "NA", "t.tsv, line 9", ""),
        ("", "", "t.tsv, line 3", "wrong number of fields between tabs (expected 2, got 1)"),
        ("", "", "t.tsv, line 4", "wrong number of fields between tabs (expected 2, got 3)"),
    ]
    assert rows(path) == expected
    monkeypatch.setattr(tab_separated, "_BLOCK", 12)
    assert rows(path) == expected
    assert first_fields(path, "utf-8") == ["1", '"x']


def test_other_encodings_and_compression(tmp_path: Path) -> None:
    content = "1\té\n2\tü\n".encode("latin-1")
    assert [row[1] for row in rows(write(tmp_path / "a.tsv", content), "latin-1")] == ["é", "ü"]
    assert [row[1] for row in rows(write(tmp_path / "a.tsv.gz", gzip.compress(content)), "auto")] == ["é", "ü"]
    assert [row[3] for row in rows(tmp_path / "a.tsv")] == ["broken UTF-8"] * 2
    assert [row[1] for row in rows(write(tmp_path / "b.tsv", "1\té".encode("utf-16")), "utf-16")] == ["é"]


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (b"", b"\n\n"):
        with pytest.raises(UserError, match="got an empty file"):
            rows(write(tmp_path / "a.tsv", content))
    assert first_fields(tmp_path / "a.tsv", "utf-8") == []
    with pytest.raises(UserError, match="not a complete gzip file"):
        rows(write(tmp_path / "a.tsv.gz", gzip.compress(b"1\t2\n" * 10000)[:-9]))
    with pytest.raises(UserError, match="another encoding"):
        rows(write(tmp_path / "b.tsv", b"1\t\x82\xff\n"), "shift_jis")
    monkeypatch.setattr(tab_separated, "_BLOCK", 64)
    with pytest.raises(UserError, match="lines of less than 64 bytes"):
        rows(write(tmp_path / "c.tsv", b"1\t" + b"x" * 500 + b"\n2\t3\n"))
