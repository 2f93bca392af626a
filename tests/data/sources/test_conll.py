"""Files in columns, a word per line: sentences, documents, comments, and what is wrong with them."""

import lzma
from pathlib import Path
from typing import Any

import pytest

from longspan.data.columns.annotations import Sentences
from longspan.data.columns.kinds import Column, WordLabels, Words
from longspan.data.config import DataConfig
from longspan.data.sources.formats.conll import looks_like_columns
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import load
from longspan.data.sources.paths import read_paths
from longspan.errors import UserError


class Settings(DataConfig):
    x_column = "tokens"
    y_column = "labels"
    z_column = "sentences"


def columns(**options: Any) -> list[Column]:
    words = Words("tokens", "x_column", **options)
    return [words, WordLabels("labels", "y_column", unseen=True), Sentences("sentences", "z_column")]


def rows(path: Path, **options: Any) -> list[Row]:
    return list(read_paths([path], columns(**options), Settings()))


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_sentences_between_empty_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "The DT B-NP\ncat NN I-NP\n\n\n# # O\nsat VBD B-VP\r\n")
    found = rows(path)
    assert [row.values["tokens"] for row in found] == [["The", "cat"], ["#", "sat"]]
    assert [row.values["labels"] for row in found] == [["B-NP", "I-NP"], ["O", "B-VP"]]
    assert [row.where for row in found] == ["a.txt, line 1", "a.txt, line 5"]


def test_documents_where_they_are_marked(tmp_path: Path) -> None:
    text = "# newdoc id = a\n# text = x\nx\tA\n\ny\tB\nz\tA\n\n# newdoc\nx\tB\n"
    found = rows(write(tmp_path / "a.conll", text))
    assert [row.values["tokens"] for row in found] == [["x", "y", "z"], ["x"]]
    assert [row.values["sentences"] for row in found] == [[1, 2], [1]]
    alone = rows(tmp_path / "a.conll", documents=False)
    assert [row.values["tokens"] for row in alone] == [["x"], ["y", "z"], ["x"]]
    started = rows(write(tmp_path / "b.conll", "-DOCSTART- O\n\nx A\n\ny B\n\n-DOCSTART- O\n\nz A\n"))
    assert [row.values["tokens"] for row in started] == [["x", "y"], ["z"]]


def test_columns_of_universal_dependencies(tmp_path: Path) -> None:
    line = "{}\t{}\t_\t{}\t{}\t_\t0\troot\t_\t_\n"
    parts = [("1-2", "don't", "_", "_"), ("1", "do", "AUX", "VBP"), ("2", "n't", "PART", "RB"), ("2.1", "", "_", "_")]
    path = tmp_path / "a.conllu.xz"
    path.write_bytes(lzma.compress(("# sent_id = 1\n" + "".join(line.format(*part) for part in parts)).encode()))
    (found,) = rows(path)
    assert found.values["tokens"] == ["do", "n't"]
    assert found.values["labels"] == ["AUX", "PART"]

    class Specific(Settings):
        y_column = "xpos"

    (found,) = read_paths([path], columns(), Specific())
    assert found.values["labels"] == ["VBP", "RB"]

    class Wrong(Settings):
        y_column = "tag"

    with pytest.raises(UserError, match=r"expected a column 'tag' in a.conllu.xz, got the columns id, form, lemma"):
        list(read_paths([path], columns(), Wrong()))


def test_what_is_wrong_is_said_with_its_line(tmp_path: Path) -> None:
    ragged = rows(write(tmp_path / "a.txt", "x A\ny\n\nz B\n"))
    assert ragged[0].problem == "ragged columns (expected 2 fields as in line 1, got 1 in line 2)"
    assert not ragged[1].problem
    with pytest.raises(UserError, match=r"a.txt, line 1: ragged columns .*; give each word a line with the"):
        load(Settings(path=str(tmp_path / "a.txt")), columns())
    with pytest.raises(UserError, match=r"expected words and labels in b.txt, got one column; write the label"):
        rows(write(tmp_path / "b.txt", "x\ny\n"))
    with pytest.raises(UserError, match="got an empty file"):
        rows(write(tmp_path / "c.txt", "\n\n"))
    (tmp_path / "d.txt").write_bytes(b"caf\xe9 A\n")
    assert rows(tmp_path / "d.txt")[0].problem == "broken UTF-8"


def test_parts_of_words_are_taken_off(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "en:x A\nen:en: B\n")
    assert rows(path, strip="^en:")[0].values["tokens"] == ["x", "en:"]
    assert "leaves nothing" in rows(path, strip="^en:x?")[0].problem


def test_a_folder_with_a_file_for_each_split(tmp_path: Path) -> None:
    for name, word in (("en-ud-train.conllu", "a"), ("en-ud-dev.conllu", "b"), ("en-ud-test.conllu", "c")):
        write(tmp_path / name, f"1\t{word}\t_\tX\n")
    write(tmp_path / "README", "about train and test")
    splits = load(Settings(path=str(tmp_path)), columns()).splits
    assert {name: split["tokens"][0] for name, split in splits.items()} == {
        "train": ["a"], "validation": ["b"], "test": ["c"],
    }  # fmt: skip
    write(tmp_path / "old-train.conllu", "1\ta\t_\tX\n")
    with pytest.raises(UserError, match="expected one file for the train split, got"):
        load(Settings(path=str(tmp_path)), columns())


def test_raw_text_is_told_from_columns(tmp_path: Path) -> None:
    assert looks_like_columns(write(tmp_path / "a.txt", "x A\ny B\n"), "utf-8")
    text = write(tmp_path / "b.txt", "It was late.\nNobody came, and they left.\n")
    assert not looks_like_columns(text, "utf-8")
    (row,) = read_paths([text], [Words("tokens", "x_column", raw=True)], Settings())
    assert row.values["tokens"] == text.read_text()


@pytest.mark.parametrize("name", ["words.conllu", "words.conll", "words.txt"])
def test_conllu_is_recognised_by_its_contents(tmp_path: Path, name: str) -> None:
    """Ranges and empty nodes are no words, whatever the file is called."""
    lines = ["# text = vámonos al mar", "1-2\tvámonos" + "\t_" * 8]
    lines += [f"{n}\t{word}\t_\t{tag}\t_\t_\t{n - 1}\tdep\t_\t_" for n, (word, tag) in enumerate(
        [("vamos", "VERB"), ("nos", "PRON"), ("a", "ADP"), ("mar", "NOUN")], 1)]  # fmt: skip
    lines.insert(4, "2.1\tahora\t_\tADV" + "\t_" * 6)
    (tmp_path / name).write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    (row,) = rows(tmp_path / name)
    assert row.values["tokens"] == ["vamos", "nos", "a", "mar"]
    assert row.values["labels"] == ["VERB", "PRON", "ADP", "NOUN"]
