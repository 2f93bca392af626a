"""Documents from any source, in splits that never share a row, with every mistake named before anything is trained."""

import errno
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from longspan.data.columns.kinds import Label, Text
from longspan.data.fingerprints import fingerprint
from longspan.data.sources import loading, locating
from longspan.data.sources.loading import Splits
from longspan.errors import UserError
from longspan.tasks.document_classification.options import ClassificationData

COLUMNS = [Text("text", "text_column"), Label("label", "label_column")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "cache" / "downloads")
    return tmp_path / "cache"


def load(path: Path | str = "", *, training: bool = True, **settings: Any) -> Splits:
    return loading.load(ClassificationData(path=str(path), **settings), COLUMNS, training=training, stratify="label")


def write_rows(path: Path, rows: list[tuple[str | None, Any]]) -> Path:
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    return path


def balanced(count: int) -> list[tuple[str | None, Any]]:
    return [(f"document {i}", "ab"[i % 2]) for i in range(count)]


def make_classes(root: Path, count: int, rating: int = 1) -> Path:
    for label in ("neg", "pos"):
        (root / label).mkdir(parents=True)
        for i in range(count):
            (root / label / f"{i}_{rating + i % 2}.txt").write_text(f"{root.name} {label} {i}")
    return root


def counts(splits: Splits) -> dict[str, Counter[str]]:
    return {split: Counter(rows["label"][:]) for split, rows in splits.splits.items()}


def test_splits_are_stratified_disjoint_and_the_same_again(tmp_path: Path) -> None:
    rows = balanced(80) + [(f"rare {i}", "c") for i in range(3)]
    path = write_rows(tmp_path / "a.jsonl", rows)
    found = load(path, test_fraction=0.2)
    assert isinstance(found.splits, DatasetDict)
    assert list(found.splits) == ["train", "validation", "test"]
    assert found.splits["train"].column_names == ["text", "label", "where"]
    assert counts(found) == {
        "train": {"a": 28, "b": 28, "c": 1},
        "validation": {"a": 4, "b": 4, "c": 1},
        "test": {"a": 8, "b": 8, "c": 1},
    }
    texts = [text for split in found.splits.values() for text in split["text"]]
    assert sorted(texts) == sorted(str(text) for text, _ in rows)
    again, other = load(path, test_fraction=0.2), load(path, test_fraction=0.2, split_seed=1)
    assert again.splits["test"]["text"][:] == found.splits["test"]["text"][:] != other.splits["test"]["text"][:]
    # What is cached further on depends on it.
    assert fingerprint(again.splits["test"]) == fingerprint(found.splits["test"]) != fingerprint(other.splits["test"])


def test_every_split_gets_an_example_of_the_smallest_class(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [(f"document {i}", "ab"[i % 2]) for i in range(6)])
    found = load(path, validation_fraction=0.5, test_fraction=0.49)
    assert counts(found) == {split: {"a": 1, "b": 1} for split in ("train", "validation", "test")}


def test_no_split_is_taken_where_none_is_wanted(tmp_path: Path) -> None:
    assert list(load(write_rows(tmp_path / "a.jsonl", balanced(4)), validation_fraction=0.0).splits) == ["train"]


def test_a_second_run_reads_nothing_and_a_changed_file_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(tmp_path / "a.jsonl", balanced(20))
    first = load(path)
    monkeypatch.setattr(locating, "read_table", lambda *args, **settings: pytest.fail("read again"))
    assert load(path).splits["train"][:] == first.splits["train"][:]
    monkeypatch.undo()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write_rows(path, [(f"new {n}", "ab"[n % 2]) for n in range(20)])
    assert all(text.startswith("new ") for text in load(path).splits["train"]["text"])
    before = path.stat()
    write_rows(path, [(f"NEW {n}", "ab"[n % 2]) for n in range(20)])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert all(text.startswith("NEW ") for text in load(path).splits["train"]["text"])


def test_a_file_may_be_one_split_now_and_another_later(tmp_path: Path) -> None:
    path, other = write_rows(tmp_path / "a.jsonl", balanced(20)), write_rows(tmp_path / "b.jsonl", balanced(20))
    load(path, test=str(other))
    assert counts(load(other, test=str(path)))["test"] == {"a": 10, "b": 10}


def test_folder_of_classes_and_folders_of_splits(tmp_path: Path) -> None:
    assert counts(load(make_classes(tmp_path / "flat", 10))) == {
        "train": {"neg": 9, "pos": 9},
        "validation": {"neg": 1, "pos": 1},
    }
    make_classes(tmp_path / "imdb" / "train", 10)
    (tmp_path / "imdb" / "train" / "unsup").mkdir()
    (tmp_path / "imdb" / "train" / "unsup" / "0_0.txt").write_text("no label")
    make_classes(tmp_path / "imdb" / "test", 6)
    found = load(tmp_path / "imdb", validation_fraction=0.2, test_fraction=0.5)
    assert counts(found) == {
        "train": {"neg": 8, "pos": 8},
        "validation": {"neg": 2, "pos": 2},
        "test": {"neg": 6, "pos": 6},
    }
    assert found.splits["test"][0] == {"text": "test neg 0", "label": "neg", "where": "test/neg/0_1.txt"}
    assert set(counts(load(tmp_path / "imdb", label_column="rating"))["test"]) == {"1", "2"}
    make_classes(tmp_path / "imdb" / "dev", 3)
    assert counts(load(tmp_path / "imdb"))["validation"] == {"neg": 3, "pos": 3}


def test_files_per_split_of_different_formats(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", [("a", "neg"), ("b", "pos")])
    (tmp_path / "validation.csv").write_text("text,label\nc,pos\n")
    settings: dict[str, Any] = {
        "validation": str(tmp_path / "validation.csv"),
        "test": str(make_classes(tmp_path / "test", 2)),
    }
    expected = {"train": {"neg": 1, "pos": 1}, "validation": {"pos": 1}, "test": {"neg": 2, "pos": 2}}
    assert counts(load(train=str(train), **settings)) == expected
    assert counts(load(train, **settings)) == expected


@pytest.mark.slow
def test_packages() -> None:
    found = load("packages", classes=2, files_per_class=10, test_fraction=0.2)
    assert [len(split) for split in found.splits.values()] == [14, 2, 4]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_hub_data_sets(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = {"review": [f"document {i}" for i in range(20)], "grade": [i % 2 for i in range(20)]}
    for split in ("train", "test"):
        dataset = Dataset.from_dict(rows)
        file = tmp_path / "hub" / f"{split}.{form}"
        file.parent.mkdir(exist_ok=True)
        dataset.to_csv(file) if form == "csv" else dataset.to_parquet(file)
    found = load("hub:./hub", text_column="review", label_column="grade")
    assert counts(found) == {"train": {"0": 9, "1": 9}, "validation": {"0": 1, "1": 1}, "test": {"0": 10, "1": 10}}
    assert found.splits["test"][0] == {"text": "document 0", "label": "0", "where": "./hub, test, row 1"}
    again = load("hub:./hub", text_column="review", label_column="grade")
    assert fingerprint(again.splits["train"]) == fingerprint(found.splits["train"])
    with pytest.raises(
        UserError, match=r"expected a column 'reviews' in .*, got 'review', 'grade'; did you mean 'review'"
    ):
        load("hub:./hub", text_column="reviews", label_column="grade")


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_cells_of_a_folder_as_a_data_set_are_those_of_its_file(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        ("the cat", "007"),
        ("None", "None"),
        ("NA", "NA"),
        ("08", "1e3"),
        ("nan", "null"),
        ("12", "1.0"),
        ("a", ""),
    ]
    separator = "," if suffix == "csv" else "\t"
    content = "".join(f"{text}{separator}{label}\n" for text, label in [("text", "label"), *rows])
    file = tmp_path / "hub" / f"train.{suffix}"
    file.parent.mkdir()
    file.write_text(content)
    settings: dict[str, Any] = {"skip_bad_rows": True, "validation_fraction": 0.0}
    alone, found = load(str(file), **settings), load("hub:./hub", **settings)
    assert alone.splits["train"]["label"][:] == [label for _, label in rows if label]
    for name in ("text", "label"):
        assert found.splits["train"][name][:] == alone.splits["train"][name][:]
    assert found.skipped == alone.skipped == {"no label": 1}


@pytest.mark.parametrize(
    ("address", "arguments"),
    [("imdb", ("imdb", None)), ("owner/name", ("owner/name", None)), ("owner/name/config", ("owner/name", "config"))],
)
def test_hub_names_class_names_and_secret_labels(
    monkeypatch: pytest.MonkeyPatch, address: str, arguments: tuple[str, str | None]
) -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    train = Dataset.from_dict({"text": ["a", "b", "c", "d"], "label": [0, 1, 0, 1]}, features=features)
    test = Dataset.from_dict({"text": ["a"], "label": [-1]}, features=features)
    calls = []

    def load_dataset(*args: Any) -> DatasetDict:
        calls.append(args)
        return DatasetDict({"train": train, "test": test, "unsupervised": test})

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(UserError, match=r"with no label in 1 row \(first: .*, test, row 1\)"):
        load(f"hub:{address}")
    found = load(f"hub:{address}", skip_bad_rows=True)
    assert counts(found) == {"train": {"bad": 1, "good": 1}, "validation": {"bad": 1, "good": 1}}
    assert found.skipped == {"no label": 1}
    assert calls == [arguments, arguments]


def test_hub_failures_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*args: Any) -> DatasetDict:
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'no/such' doesn't exist.\nMore.")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(
        UserError, match=r"expected to load the data set 'no/such', got an error \(Dataset .* exist\); check its name"
    ):
        load("hub:no/such")
    with pytest.raises(UserError, match=r"data.path: there is no file or folder 'here'; check the path"):
        load("hub:./here")
    other = DatasetDict({"all": Dataset.from_dict({"text": ["a"]})})
    monkeypatch.setattr("datasets.load_dataset", lambda *args: other)
    with pytest.raises(UserError, match=r"expected a split 'train' in .*, got all"):
        load("hub:odd")


def test_bad_rows_stop_or_are_dropped_and_counted(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [*balanced(8), ("x", None), (" \n", "a"), ("y", " "), (None, "b")])
    with path.open("ab") as file:
        file.write(b'{"text": "\xff", "label": "a"}\n')
    message = (
        r"expected text and label in every row, in UTF-8, got a.jsonl with broken UTF-8 in 1 row "
        r"\(first: a.jsonl, line 13\) and no label in 2 rows \(first: a.jsonl, line 9\) and no text in 2 rows "
        r"\(first: a.jsonl, line 10\); fix them, set data.encoding=auto .* found out, or set data.skip_bad_rows=true"
    )
    for _ in range(2):
        # The second time, they are known from the cache.
        with pytest.raises(UserError, match=message):
            load(path)
    found = load(path, skip_bad_rows=True)
    assert found.skipped == {"no label": 2, "no text": 2, "broken UTF-8": 1}
    assert sum(map(len, found.splits.values())) == 8


@pytest.mark.parametrize(
    ("name", "content", "message", "reason"),
    [
        (
            "a.jsonl",
            '{"text": "a", "label": "x"}\n{"text" "b"}\n[]\n{"text": "b", "label": "y"}\n',
            r"a.jsonl, line 2: not a JSON object \(.* at column 9\); write one such as",
            "not a JSON object",
        ),
        (
            "a.csv",
            "text,label\na,x\nb, b,y\nb\nb,y\n",
            r"a.csv, row 2 \(line 3\): wrong number of fields \(expected 2 as in the header, got 3\); quote fields",
            "wrong number of fields",
        ),
    ],
)
def test_malformed_rows_stop_or_are_dropped_and_counted(
    tmp_path: Path, name: str, content: str, message: str, reason: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=rf"{message}.*, or set data.skip_bad_rows=true to drop and count such rows.$"):
        load(tmp_path / name, validation_fraction=0.0)
    found = load(tmp_path / name, validation_fraction=0.0, skip_bad_rows=True)
    assert found.skipped == {reason: 2}
    assert found.splits["train"]["text"][:] == ["a", "b"]


@pytest.mark.parametrize("kind", ["csv", "folder"])
def test_broken_utf8_is_dropped_from_other_formats_too(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.csv"
    if kind == "csv":
        path.write_bytes(b"text,label\na,x\nb,y\nc,x\nd,y\n\xff,x\n")
    else:
        path = make_classes(tmp_path / "a", 2)
        (path / "neg" / "9_1.txt").write_bytes(b"ab\xff")
    place = r"a.csv, row 5\)" if kind == "csv" else r"neg/9_1.txt, byte 2\)"
    with pytest.raises(UserError, match=rf"broken UTF-8 in 1 row \(first: {place}"):
        load(path)
    found = load(path, skip_bad_rows=True)
    assert found.skipped == {"broken UTF-8": 1}
    assert counts(found)["train"].total() == 2


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([("a", "x"), ("b", "x")], {}, "at least two classes in the training data, got only 'x' as a label"),
        (
            [*balanced(4), ("z", "rare")],
            {},
            r"class 'rare' for each of the splits train, validation, got 1 \(first: a.jsonl, line 5\); "
            r"add examples, remove the class, or set data.validation",
        ),
        (
            [*balanced(6), ("y", "r"), ("z", "r")],
            {"test_fraction": 0.1},
            "example of class 'r' for each of the splits .*, got 2 .* data.test",
        ),
        ([("a", None)], {"skip_bad_rows": True}, "got only bad rows"),
        (
            [("a", "x")],
            {"text_column": "txt"},
            "expected a column 'txt' in a.jsonl, got 'text', 'label'; did you mean 'text'",
        ),
    ],
)
def test_data_that_cannot_be_learned_from(
    tmp_path: Path, rows: list[tuple[str | None, Any]], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load(write_rows(tmp_path / "a.jsonl", rows), **settings)


def test_a_label_that_training_lacks(tmp_path: Path) -> None:
    validation = write_rows(tmp_path / "v.jsonl", [("a", "a"), ("b", "new")])
    with pytest.raises(UserError, match=r"in the validation data, got 'new' \(first: v.jsonl, line 2\)"):
        load(write_rows(tmp_path / "a.jsonl", balanced(4)), validation=str(validation))


def test_one_class_is_enough_where_nothing_is_trained(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [("a", "x"), ("b", "x")])
    found = load(path, validation_fraction=0.0, training=False)
    assert counts(found) == {"train": {"x": 2}}


def test_a_test_alone_is_enough_where_nothing_is_trained(tmp_path: Path) -> None:
    test = write_rows(tmp_path / "a.jsonl", [("a", "x"), ("b", "y")])
    assert counts(load(test=str(test), training=False)) == {"test": {"x": 1, "y": 1}}
    make_classes(tmp_path / "imdb" / "test", 2)
    assert counts(load(tmp_path / "imdb", training=False)) == {"test": {"neg": 2, "pos": 2}}
    with pytest.raises(UserError, match=r"expected training data, got only test data in '.*imdb'; set data.path"):
        load(tmp_path / "imdb")


def test_settings_without_data_or_with_the_wrong_kind(tmp_path: Path) -> None:
    make_classes(tmp_path / "imdb" / "train", 2)
    with pytest.raises(UserError, match=r"expected training data, got only test data; set data.path"):
        load(test=str(tmp_path / "imdb" / "train"))
    with pytest.raises(UserError, match=r"data.path: there is no file or folder .*imbd'; did you mean 'imdb'"):
        load(tmp_path / "imbd")
    with pytest.raises(UserError, match=r"data.train must be .* which contains train/; set data.path to it"):
        load(train=str(tmp_path / "imdb"))
    with pytest.raises(UserError, match=r"got data.text_column='body'; leave"):
        load(tmp_path / "imdb", text_column="body")


def test_a_file_that_vanishes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_classes(tmp_path / "a", 2)
    listed = locating.list_classes(root, "label", "")
    monkeypatch.setattr(locating, "list_classes", lambda *args: listed)
    (root / "pos" / "1_2.txt").unlink()
    with pytest.raises(UserError, match=rf"1_2.txt' \({os.strerror(errno.ENOENT)}"):
        load(root)
