"""Whole documents from any source, in splits that share no text, with every mistake named before training."""

import gzip
import json
import lzma
import os
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import Dataset, DatasetDict

from longspan.data.columns.kinds import Label, Text
from longspan.data.config import DataConfig
from longspan.data.fingerprints import fingerprint
from longspan.data.sources import caching, loading
from longspan.data.sources.formats import folders
from longspan.data.sources.loading import Splits
from longspan.errors import UserError
from longspan.tasks.document_classification.options import ClassificationData

LABELLED = [Text("text", "text_column"), Label("label", "label_column")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "cache" / "downloads")
    return tmp_path / "cache"


def load(path: Path | str = "", *, training: bool = True, lines: bool = False, **settings: Any) -> Splits:
    columns = [Text("text", "text_column", lines=lines)]
    return loading.load(DataConfig(path=str(path), **settings), columns, training=training)


def write(path: Path, content: str | bytes = "some text\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def texts(splits: Splits) -> dict[str, list[str]]:
    return {name: split["text"][:] for name, split in splits.splits.items()}


@pytest.mark.parametrize("name", ["input.txt", "README.md", "main.py", "enwik8", "a.text.gz", "a.txt.xz", "b.XZ"])
def test_a_text_file_is_one_document_whatever_its_suffix(tmp_path: Path, name: str) -> None:
    content = "\ufeffGrüße 😀\r\nand more\n".encode()
    packed = {".gz": gzip.compress(content), ".xz": lzma.compress(content)}
    path = write(tmp_path / name, packed.get(Path(name).suffix.lower(), content))
    found = load(path, validation_fraction=0.0)
    assert isinstance(found.splits, DatasetDict)
    assert found.splits["train"].column_names == ["text", "where"]
    assert found.splits["train"][:] == {"text": ["Grüße 😀\r\nand more\n"], "where": [name]}


@pytest.mark.parametrize("text", ["0123456789" * 10, "Grüße aus Köln, 文字 😀😀 " * 7])
def test_the_end_of_a_single_document_is_held_out(tmp_path: Path, text: str) -> None:
    found = texts(load(write(tmp_path / "a.txt", text), test_fraction=0.2))
    assert list(found) == ["train", "validation", "test"]
    assert "".join(part for (part,) in found.values()) == text
    sizes = [len(part.encode()) / len(text.encode()) for (part,) in found.values()]
    # Up to three bytes of a character.
    assert sizes == pytest.approx([0.7, 0.1, 0.2], abs=4 / len(text.encode()))


@pytest.mark.parametrize(
    ("size", "fractions", "parts"),
    [
        # Tiny Shakespeare, of which int(0.9 * length) usually is for training; and enwik8's 90, 5 and 5 million.
        (1_115_394, {"validation": 0.1}, {"train": 1_003_854, "validation": 111_540}),
        (10_000_000, {"validation": 0.05, "test": 0.05}, {"train": 9_000_000, "validation": 500_000, "test": 500_000}),
    ],
)
def test_parts_are_as_large_as_is_usual(
    tmp_path: Path, size: int, fractions: dict[str, float], parts: dict[str, int]
) -> None:
    settings: dict[str, Any] = {f"{split}_fraction": fraction for split, fraction in fractions.items()}
    found = load(write(tmp_path / "a.txt", b"x" * size), **settings)
    assert {split: len(rows["text"][0]) for split, rows in found.splits.items()} == parts
    assert found.splits["validation"]["where"][0].startswith(f"a.txt, bytes {parts['train']} to ")


def test_documents_of_a_folder_are_held_out_whole(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path / "books" / ("deep" if number % 2 else "") / f"{number}.md", f"text {number}")
    for name in ("cover.png", "notes.csv", ".hidden.txt", ".git/config.txt"):
        write(tmp_path / "books" / name, b"\xff")
    for name in ("10001", "10002.message"):
        write(tmp_path / "news" / name, name)
    found = load(tmp_path / "books", test_fraction=0.2)
    assert {split: len(rows) for split, rows in found.splits.items()} == {"train": 14, "validation": 2, "test": 4}
    every = [text for rows in texts(found).values() for text in rows]
    assert sorted(every) == sorted(f"text {number}" for number in range(20))
    assert "deep/1.md" in [where for rows in found.splits.values() for where in rows["where"]]
    # Any suffix or none.
    assert texts(load(tmp_path / "news", validation_fraction=0.0)) == {"train": ["10001", "10002.message"]}
    again = load(tmp_path / "books", test_fraction=0.2)
    other = load(tmp_path / "books", test_fraction=0.2, split_seed=1)
    assert texts(again) == texts(found)
    assert texts(other) != texts(found)
    assert fingerprint(again.splits["train"]) == fingerprint(found.splits["train"])


@pytest.mark.parametrize("names", [("valid", "test"), ("validation", "test"), ("dev",)])
def test_folders_that_are_splits(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in ("train", *names):
        write(tmp_path / "all" / name / "author" / "a.txt", name)
        write(tmp_path / "all" / name / "b.txt", name)
    write(tmp_path / "all" / "README.md", "about it")
    found = texts(load(tmp_path / "all", validation_fraction=0.5))
    assert found["train"] == ["train", "train"]
    assert found["validation"] == [names[0]] * 2
    assert found.get("test", ["test"] * 2) == ["test"] * 2
    assert len(found) == 1 + len(names)


def test_files_that_are_splits(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        write(tmp_path / "wiki" / f"wiki.{name}.tokens", name)
        write(tmp_path / "plain" / f"{name}.txt", name)
        write(tmp_path / "tests" / f"test_{name}.py", name)
    write(tmp_path / "plain" / "README.md", "about it")
    expected = {"train": ["train"], "validation": ["valid"], "test": ["test"]}
    assert texts(load(tmp_path / "wiki")) == texts(load(tmp_path / "plain")) == expected
    # These are three tests, and what they are about.
    assert set(texts(load(tmp_path / "tests", test_fraction=0.3))) == {"train", "validation", "test"}
    assert len(load(tmp_path / "tests", validation_fraction=0.0).splits["train"]) == 3


def test_splits_without_training_are_for_evaluation_only(tmp_path: Path) -> None:
    for name in ("valid", "test"):
        write(tmp_path / "files" / f"{name}.txt", name)
        write(tmp_path / "folders" / name / "a.txt", name)
    for kind in ("files", "folders"):
        found = load(tmp_path / kind, training=False, test_fraction=0.5)
        assert texts(found) == {"validation": ["valid"], "test": ["test"]}
        with pytest.raises(
            UserError, match=rf"expected training data, got only test and validation data in '.*{kind}'; set"
        ):
            load(tmp_path / kind)
    assert texts(load(tmp_path / "files" / "test.txt", training=False, validation_fraction=0.0)) == {"train": ["test"]}


def test_files_per_split(tmp_path: Path) -> None:
    train = write(tmp_path / "train.txt", "of all")
    table = tmp_path / "v.jsonl"
    table.write_text('{"text": "one"}\n{"text": "two"}\n')
    write(tmp_path / "held" / "a.txt", "out")
    settings: dict[str, Any] = {"validation": str(table), "test": str(tmp_path / "held")}
    expected = {"train": ["of all"], "validation": ["one", "two"], "test": ["out"]}
    assert texts(load(train=str(train), **settings)) == texts(load(train, **settings)) == expected


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "jsonl.xz", "parquet", "hub"])
def test_rows_of_tables_and_data_sets_are_documents_or_lines(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = ["= Title =\n", "", "first line", "second\n"]
    dataset = Dataset.from_dict({"body": rows, "other": [1, 2, 3, 4]})
    if form in ("parquet", "hub"):
        (tmp_path / "hub").mkdir()
        dataset.to_parquet(tmp_path / "hub" / "train.parquet")
        path = "hub:./hub" if form == "hub" else "hub/train.parquet"
    elif form.startswith("jsonl"):
        content = "".join(json.dumps({"body": row}) + "\n" for row in rows).encode()
        path = str(write(tmp_path / f"a.{form}", lzma.compress(content) if form.endswith("xz") else content))
    else:
        separator = "," if form == "csv" else "\t"
        content = "".join(f'1{separator}"{row}"\n' for row in rows).encode()
        path = str(write(tmp_path / f"a.{form}", f"other{separator}body\n".encode() + content))
    settings: dict[str, Any] = {"text_column": "body", "validation_fraction": 0.0}
    joined = load(path, lines=True, **settings)
    assert texts(joined) == {"train": ["= Title =\n\nfirst line\nsecond\n"]}
    with pytest.raises(UserError, match=r"expected text in every row, in UTF-8, got .* with no text in 1 row"):
        load(path, **settings)
    apart = load(path, skip_bad_rows=True, **settings)
    assert texts(apart) == {"train": [rows[0], *rows[2:]]}
    assert apart.skipped == {"no text": 1}
    with pytest.raises(UserError, match=r"expected a column 'bodi' in .*, got .*; did you mean 'body'"):
        load(path, **{**settings, "text_column": "bodi"})


def test_hub_data_sets_have_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any) -> DatasetDict:
        names = ("train", "validation", "test")
        return DatasetDict({name: Dataset.from_dict({"text": [f"{name} {i}" for i in range(2)]}) for name in names})

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert texts(load("hub:owner/name", lines=True)) == {
        name: [f"{name} 0\n{name} 1\n"] for name in ("train", "validation", "test")
    }


@pytest.mark.slow
def test_packages_are_documents_by_file() -> None:
    found = load("packages", classes=2, files_per_class=10, test_fraction=0.2)
    assert [len(split) for split in found.splits.values()] == [14, 2, 4]
    assert found.splits["train"].column_names == ["text", "where"]


def test_a_second_run_reads_nothing_and_a_changed_file_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.txt", "first of all " * 9)
    first = load(path)
    with monkeypatch.context() as patch:
        patch.setattr(folders, "read_document", lambda *_: pytest.fail("read again"))
        assert texts(load(path)) == texts(first)
    before = path.stat()
    write(path, "FIRST OF ALL " * 9)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert texts(load(path))["train"][0].startswith("FIRST")


def test_other_code_does_not_use_what_was_cached_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.txt", "first of all " * 9)
    first = fingerprint(load(path).splits["train"])
    assert fingerprint(load(path).splits["train"]) == first
    code = tmp_path / "code"
    for package in ("sources", "columns"):
        shutil.copytree(Path(caching.__file__).parents[1] / package, code / package)
    monkeypatch.setattr(resources, "files", lambda name: code / name.rpartition(".")[2])
    caching._rows_version.cache_clear()
    assert fingerprint(load(path).splits["train"]) == first
    # The wording of a problem, say.
    for changed in (code / "columns" / "values.py", code / "sources" / "formats" / "tables.py"):
        before = changed.read_text(encoding="utf-8")
        write(changed, before + "\n")
        caching._rows_version.cache_clear()
        assert fingerprint(load(path).splits["train"]) != first
        write(changed, before)
    caching._rows_version.cache_clear()


def test_documents_and_labelled_rows_of_one_file_do_not_meet_in_the_cache(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\n" + "".join(f"a{n},x\nb{n},y\n" for n in range(9)))
    config = ClassificationData(path=str(path))
    for _ in range(2):
        labelled = loading.load(config, LABELLED, stratify="label").splits["train"]
        assert labelled.column_names == ["text", "label", "where"]
        assert load(path).splits["train"].column_names == ["text", "where"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", r"expected text in 'a.txt', got an empty file; choose a file with text\."),
        ("a.txt", " \n\n", "expected text in 'a.txt', got an empty file"),
        ("a.txt", b"abc\xff", "expected text in UTF-8, got another encoding or no text at a.txt, byte 3; save"),
        ("a.txt", "text".encode("utf-16"), "another encoding or no text at a.txt, byte 0"),
        ("a.txt.gz", gzip.compress(b"abc" * 999, mtime=0)[:-9], "a.txt.gz is not a complete gzip file"),
        ("a.txt.xz", lzma.compress(b"abc" * 999)[:-9], "a.txt.xz is not a complete xz file"),
        ("a.txt.xz", b"abc", "a.txt.xz is not a complete xz file"),
        ("a.csv", "", "expected rows in .*a.csv', got an empty file"),
        ("a.csv", "body\nb\n", "expected a column 'text' in a.csv, got 'body'"),
        ("a.txt", "x", r"for each of the splits train, validation, got only 1 bytes in a.txt; use more text"),
    ],
)
def test_files_that_cannot_be_learned_from(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = write(tmp_path / name, content)
    for _ in range(2):
        with pytest.raises(UserError, match=message) as error:
            load(path)
        assert "\n" not in str(error.value)


def test_folders_that_cannot_be_learned_from(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"expected text files in the folder '.*empty', got an empty folder; choose"):
        load(tmp_path / "empty")
    write(tmp_path / "pictures" / "a.png")
    write(tmp_path / "pictures" / "b.png")
    with pytest.raises(UserError, match=r"folder '.*pictures', got only others \(.png\); choose"):
        load(tmp_path / "pictures")
    write(tmp_path / "two" / "a.txt")
    write(tmp_path / "two" / "b.txt", "other text")
    with pytest.raises(UserError, match=r"each of the splits train, validation, test, got 2; add"):
        load(tmp_path / "two", test_fraction=0.1)
    write(tmp_path / "imdb" / "train" / "a.txt")
    with pytest.raises(UserError, match=r"data.train must be .* which contains train/; set data.path to it"):
        load(train=str(tmp_path / "imdb"))
    with pytest.raises(UserError, match=r"data.path: there is no file or folder '.*imbd'; did you mean 'imdb'"):
        load(tmp_path / "imbd")
    with pytest.raises(UserError, match=r"expected training data, got none; set data.path to a file"):
        load()


def test_broken_documents_of_a_folder_stop_or_are_dropped_and_counted(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / "all" / f"{number}.txt", f"text {number}")
    write(tmp_path / "all" / "bad.txt", b"abc\xff")
    write(tmp_path / "all" / "empty.txt", "")
    message = r"with broken UTF-8 in 1 row \(first: bad.txt, byte 3\) and no text in 1 row \(first: empty.txt\); fix"
    with pytest.raises(UserError, match=message):
        load(tmp_path / "all")
    found = load(tmp_path / "all", skip_bad_rows=True)
    assert found.skipped == {"broken UTF-8": 1, "no text": 1}
    assert sum(map(len, found.splits.values())) == 4


def test_only_a_text_by_itself_has_lines(tmp_path: Path) -> None:
    columns = [Text("text", "text_column", lines=True), Label("label", "label_column")]
    with pytest.raises(ValueError, match="column 'text' has lines of one document, and must be the only one"):
        loading.load(ClassificationData(path=str(write(tmp_path / "a.csv", "text,label\na,x\n"))), columns)
