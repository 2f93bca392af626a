"""The installed packages' sources are found without imports, in a fixed order, and no content comes twice."""

from pathlib import Path

import pytest

from longspan.data.columns.kinds import Label, Text
from longspan.data.sources.formats.packages import SMALLEST, list_packages, read_packages, site_folders
from longspan.data.sources.formats.schema import schema_of
from longspan.errors import UserError
from longspan.tasks.document_classification.options import ClassificationData

SCHEMA = schema_of([Text("text", "text_column"), Label("label", "label_column")], ClassificationData())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for package, count in (("big", 6), ("middle", 4), ("small", 2), ("not-a-package", 9)):
        for number in range(count):
            path = tmp_path / package / ("sub" if number % 2 else "") / f"m{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"# {package} {number}\n" + "x = 1\n" * 50)
    (tmp_path / "big" / "short.py").write_text("x")
    (tmp_path / "big" / "notes.txt").write_text("x" * 1000)
    (tmp_path / "big" / "latin.py").write_bytes(b"# \xff\n" * 100)
    (tmp_path / "small" / "copy.py").write_bytes((tmp_path / "big" / "m0.py").read_bytes())
    (tmp_path / "single.py").write_text("x = 1\n" * 100)
    return tmp_path


def test_the_largest_packages_without_copies_and_tiny_files(folder: Path) -> None:
    files = list_packages([folder], classes=3)
    assert files == list_packages([folder], classes=3)
    rows = list(read_packages(files, SCHEMA))
    assert [row.values["label"] for row in rows] == ["big"] * 6 + ["middle"] * 4 + ["small"] * 2
    assert {row.where for row in rows if row.values["label"] == "small"} == {"small/m0.py", "small/sub/m1.py"}
    assert all(row.values["text"] and len(row.values["text"]) >= SMALLEST for row in rows)
    assert len({row.values["text"] for row in rows}) == len(rows)


def test_at_most_so_many_files(folder: Path) -> None:
    rows = list(read_packages(list_packages([folder], classes=2), SCHEMA, files_per_class=3))
    assert [row.values["label"] for row in rows] == ["big"] * 3 + ["middle"] * 3


def test_too_few_packages(folder: Path) -> None:
    with pytest.raises(UserError, match=r"expected 10 installed Python packages, got 3; lower data.classes"):
        list_packages([folder])


def test_this_machine_has_packages() -> None:
    assert any((folder / "datasets" / "__init__.py").exists() for folder in site_folders())
