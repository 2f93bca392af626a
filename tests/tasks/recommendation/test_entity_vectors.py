"""Vectors of entities."""

import gzip
from pathlib import Path

import pytest

from longspan.errors import UserError
from longspan.tasks.recommendation.entities import read_entity_vectors


def test_files_and_folders(tmp_path: Path) -> None:
    for split, lines in {"a_dev": "Q1\t1\t2\t\nQ2\t-0.5\t3e-1\t\n", "b_train": "Q3 0 0\n\nQ1 9 9\n"}.items():
        (tmp_path / split).mkdir()
        (tmp_path / split / "entity_embedding.vec").write_text(lines)
    names, vectors = read_entity_vectors(str(tmp_path))
    assert names == ["Q1", "Q2", "Q3"]
    assert vectors.ravel().tolist() == pytest.approx([1, 2, -0.5, 0.3, 0, 0])
    assert vectors.dtype == "float32"
    (tmp_path / "x.vec.gz").write_bytes(gzip.compress(b"Q1 1 2 3\n"))
    assert read_entity_vectors(str(tmp_path / "x.vec.gz")).vectors.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"Q1 1 2\nQ2 1 2 3\n", "expected vectors of 2 numbers as in x.vec, line 1, got 3 in x.vec, line 2; "),
        (b"Q1 1 two\n", "expected an identifier and numbers in x.vec, line 1"),
        (b"Q1 1 nan\n", "expected an identifier and numbers in x.vec, line 1"),
        (b"Q1\n", "expected an identifier and numbers in x.vec, line 1"),
        (b"\n", "got an empty file"),
        (b"Q\xff 1\n", "x.vec, line 1: expected text in the encoding"),
    ],
)
def test_what_is_wrong(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "x.vec").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        read_entity_vectors(str(tmp_path / "x.vec"))


def test_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a file called entity_embedding.vec in the folder"):
        read_entity_vectors(str(tmp_path))
    with pytest.raises(UserError, match=r"data.entity_vectors: there is no file"):
        read_entity_vectors(str(tmp_path / "none.vec"))
