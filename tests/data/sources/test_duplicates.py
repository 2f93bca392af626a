"""Copies of a document stay in one split, and are counted where splits are given; without copies nothing changes."""

import csv
import itertools
import json
import random
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from longspan import UserError
from longspan.data.columns.files import File
from longspan.data.columns.kinds import Column, Label, Labels, Number, Text, WordLabels, Words
from longspan.data.config import DataConfig
from longspan.data.sources import duplicates
from longspan.data.sources.duplicates import count_duplicates, documents, folded
from longspan.data.sources.loading import Splits, load
from longspan.data.sources.splitting import deal


@dataclass(frozen=True)
class Data(DataConfig):
    x_column: str = "x"
    y_column: str = "y"


TEXT: list[Column] = [Text("x", "x_column")]
LABELLED: list[Column] = [*TEXT, Label("y", "y_column")]
BOTH: dict[str, Any] = {"validation_fraction": 0.1, "test_fraction": 0.2}


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as the suffix says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(path.stem, lines)
    elif path.suffix:
        path.write_text(lines, encoding="utf-8")
    else:
        for number, row in enumerate(rows):
            file = path / row["y"] / f"{number}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(row["x"], encoding="utf-8")
    return str(path)


def copied(texts: int = 30, copies: int = 6) -> list[dict[str, str]]:
    """Texts with copies in other cases, white space and forms of accents, and labels at random."""
    draw = random.Random(0)
    made: list[Callable[[str], str]] = [
        str,
        str.upper,
        lambda text: f"\t {text}",
        lambda text: text.replace(" ", " \n "),
        lambda text: unicodedata.normalize("NFD", text),
        str.title,
    ]
    rows = [
        {"x": made[n % 6](f"text {t} é"), "y": draw.choice(["pos", "neg"])} for t in range(texts) for n in range(copies)
    ]
    draw.shuffle(rows)
    return rows


def apart(found: Splits, column: str = "x") -> dict[str, int]:
    """Check that no document is in two splits; return how many rows each has."""
    # Another way than the one that is tested: neither digests nor case folding.
    seen: Counter[str] = Counter()
    for rows in found.splits.values():
        seen.update({" ".join(unicodedata.normalize("NFC", text).lower().split()) for text in rows[column]})
    assert set(seen.values()) == {1}
    return {split: len(rows) for split, rows in found.splits.items()}


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.jsonl.zip", "folder"])
def test_copies_stay_in_one_split(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / name, copied())
    # In folders of classes the columns have names of their own.
    names: dict[str, Any] = {"x_column": "text", "y_column": "label"} if name == "folder" else {}
    config = Data(path=path, **names, **BOTH)
    found = load(config, LABELLED, stratify="y")
    assert apart(found) == {"train": 126, "validation": 18, "test": 36}
    assert found.duplicates == {
        "train": {"copies": 105},
        "validation": {"copies": 15, "in_train": 0},
        "test": {"copies": 30, "in_train": 0, "in_validation": 0},
    }
    told = "150 of 180 rows repeat an earlier one (the same document, ignoring case, white space and a final full stop)"
    assert f"{told}; copies stay in one split" in capsys.readouterr().err
    again = load(config, LABELLED, stratify="y")
    assert all(again.splits[split]["where"][:] == rows["where"][:] for split, rows in found.splits.items())
    assert set(found.splits["train"]["y"]) == {"neg", "pos"}


def test_without_stratification_fractions_are_of_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", copied(50, 4))
    assert apart(load(Data(path=path, **BOTH), TEXT)) == {"train": 140, "validation": 20, "test": 40}
    assert apart(load(Data(path=path, validation_fraction=0.05), TEXT))["validation"] in (8, 12)


def test_labels_of_copies_are_dealt_together(tmp_path: Path) -> None:
    rows = [{"x": f"text {n // 3}", "y": ["ab"[n % 2]] if n % 5 else []} for n in range(300)]
    path = write(tmp_path / "a.jsonl", rows)
    sizes = apart(load(Data(path=path, **BOTH), [*TEXT, Labels("y", "y_column")]))
    assert sizes == {"train": 210, "validation": 30, "test": 60}


def test_words_are_compared_as_text(tmp_path: Path) -> None:
    rows = [{"x": [f"w{n // 2}", "Yes" if n % 2 else "yes"], "y": ["A", "O"]} for n in range(40)]
    columns: list[Column] = [Words("x", "x_column"), WordLabels("y", "y_column", of="x")]
    found = load(Data(path=write(tmp_path / "a.jsonl", rows), **BOTH), columns)
    words = [{each[0] for each in rows["x"]} for rows in found.splits.values()]
    assert sum(map(len, words)) == len(set.union(*words)) == 20


def test_all_inputs_make_a_document(tmp_path: Path) -> None:
    rows = [{"x": f"text {n % 10}", "y": n % 20} for n in range(40)]
    pair: list[Column] = [*TEXT, Number("y", "y_column")]
    path = write(tmp_path / "a.jsonl", rows)
    assert sum(row["copies"] for row in load(Data(path=path), pair).duplicates.values()) == 20
    target: list[Column] = [*TEXT, Number("y", "y_column", target=True)]
    assert sum(row["copies"] for row in load(Data(path=path), target).duplicates.values()) == 30


def test_files_are_compared_by_their_bytes(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.bin").write_bytes(b"ABCabc"[number % 3 : number % 3 + 1])
    path = write(tmp_path / "a.jsonl", [{"x": f"{number}.bin"} for number in range(6)])
    found = load(Data(path=path), [File("x", "x_column")])
    contents = [{Path(file).read_bytes() for file in rows["x"]} for rows in found.splits.values()]
    assert contents[0].isdisjoint(contents[1])
    assert set.union(*contents) == {b"A", b"B", b"C"}


def test_copies_across_given_splits_are_counted_and_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = write(tmp_path / "train.jsonl", [{"x": f"text {n}"} for n in range(20)])
    test = write(tmp_path / "test.jsonl", [{"x": f"TEXT\t{n} "} for n in range(15, 30)])
    found = load(Data(train=train, test=test), TEXT)
    shared = found.duplicates["test"]["in_train"], found.duplicates["test"]["in_validation"]
    assert sum(shared) == 5
    assert found.duplicates["train"] == {"copies": 0}
    assert len(found.splits["test"]) == 15
    errors = capsys.readouterr().err
    assert f"{shared[0]} of 15 rows of the test split are in the training split as well" in errors
    assert "repeat" not in errors


def test_given_splits_without_copies_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = write(tmp_path / "train.jsonl", [{"x": f"text {n}"} for n in range(20)])
    test = write(tmp_path / "test.jsonl", [{"x": f"other {n}"} for n in range(20)])
    assert load(Data(train=train, test=test), TEXT).duplicates == {}
    assert "longspan:" not in capsys.readouterr().err


def test_a_large_group_empties_no_split(tmp_path: Path) -> None:
    rows = [{"x": "the same", "y": "ab"[n % 2]} for n in range(80)] + [
        {"x": f"text {n}", "y": "ab"[n % 2]} for n in range(20)
    ]
    path = write(tmp_path / "a.jsonl", rows)
    assert apart(load(Data(path=path), TEXT)) == {"train": 90, "validation": 10}
    assert apart(load(Data(path=path), LABELLED, stratify="y"))["validation"] > 5
    two = write(tmp_path / "two.jsonl", [{"x": "a"}] * 50 + [{"x": "b"}] * 50)
    assert apart(load(Data(path=two), TEXT)) == {"train": 50, "validation": 50}


def test_every_label_stays_in_training(tmp_path: Path) -> None:
    # "rare" is the label of a copy of two documents only.
    rows = [{"x": f"text {n // 3}", "y": "rare" if n in (0, 3) else "ab"[n // 3 % 2]} for n in range(60)]
    path = write(tmp_path / "a.jsonl", rows)
    for seed in range(20):
        found = load(Data(path=path, validation_fraction=0.5, split_seed=seed), LABELLED, stratify="y")
        apart(found)
        assert set(found.splits["train"]["y"]) == {"a", "b", "rare"}


@pytest.mark.parametrize("columns", [TEXT, LABELLED], ids=["documents", "classes"])
def test_copies_of_one_document_cannot_be_split(columns: list[Column], tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"x": "The same", "y": "a"}, {"x": "the same", "y": "b"}] * 5)
    with pytest.raises(UserError, match=r"for each of the splits train, validation, got .* copies of one document"):
        load(Data(path=path), columns, stratify="y" if columns is LABELLED else None)


#: The lines of validation and test that were drawn before copies counted: existing results depend on them.
BEFORE: dict[str, tuple[list[Column], str | None, dict[str, Any], list[int], list[int]]] = {
    "class": (LABELLED, "y", {}, [3, 5, 15, 26, 31, 35], [1, 17, 19, 20, 21, 30, 33, 38]),
    "random": (TEXT, None, {}, [18, 21, 24, 31, 33], [3, 4, 12, 13, 22, 30, 34, 39]),
    "labels": (
        [*TEXT, Labels("y", "y_column")],
        None,
        {"y_column": "l"},
        [9, 14, 16, 22, 23],
        [4, 8, 11, 17, 18, 37, 39, 40],
    ),
    "together": (
        [Text("x", "x_column", together=True)],
        None,
        {"x_column": "q"},
        [28, 29, 30, 31, 32, 33],
        [7, 8, 9, 37, 38, 39, 40],
    ),
}


@pytest.mark.parametrize("kind", BEFORE)
def test_without_copies_splits_are_those_of_before(kind: str, tmp_path: Path) -> None:
    columns, stratify, names, *expected = BEFORE[kind]
    rows = [
        {"x": f"text {n}", "y": "aab"[n % 3], "l": ["ab", "a", "c", ""][n * n % 4].split(), "q": f"c {n // 3}"}
        for n in range(40)
    ]
    config = Data(
        path=write(tmp_path / "a.jsonl", rows), split_seed=3, validation_fraction=0.13, test_fraction=0.2, **names
    )
    found = load(config, columns, stratify=stratify)
    numbers = {
        split: [int(where.rpartition(" ")[2]) for where in rows["where"]] for split, rows in found.splits.items()
    }
    assert [numbers["validation"], numbers["test"]] == expected


def test_folding() -> None:
    assert folded(" Stra\u00dfe\u2003A\u030a\r\n") == folded("STRASSE \u00e5") == "strasse \u00e5"
    assert folded("\u212b") == folded("a\u030a")
    for copy in ("a cat", "\ufeffA cat.", "a c\u200bat \u200b", "a cat . ", "a\u00ad cat...", "a cat\u3002"):
        assert folded(copy) == "a cat"
    assert folded("...") == "..."
    assert folded("3.5") == "3.5"
    assert folded("\u0646\u200c\u0647") != folded("\u0646\u0647")


def test_long_texts_are_folded_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["some wörds " * 40, " SOME  wo\u0308rds\n" * 40, "x" * 300, "X" * 300 + "\n ", "x" * 299, " " * 300]
    texts += ["\ufeff" + "some w\u200bords " * 40 + ".\n" + " " * 60, "some words " * 40 + "\u3002"]
    rows = Dataset.from_dict({"x": texts})
    column = [Text("x", "x_column")]
    monkeypatch.setattr(duplicates, "_PIECE", 50)
    assert documents({"train": rows}, column)["train"].tolist() == [0, 0, 1, 1, 2, 3, 4, 4]


def test_digests_of_many_rows_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Dataset.from_dict({"x": [f"text {n % 1500}" for n in range(2000)]})
    found = documents({"train": rows}, TEXT)["train"]
    assert found.tolist() == [*range(1500), *range(500)]
    monkeypatch.setattr(duplicates, "folded", lambda text: pytest.fail("read again"))
    assert np.array_equal(documents({"train": rows}, TEXT)["train"], found)


def test_counts() -> None:
    given = {"train": np.array([0, 0, 1]), "validation": np.array([2, 1]), "test": np.array([3, 2, 2, 0])}
    assert count_duplicates(given) == {
        "train": {"copies": 1},
        "validation": {"copies": 0, "in_train": 1},
        "test": {"copies": 1, "in_train": 1, "in_validation": 2},
    }
    assert count_duplicates({"train": np.arange(3), "test": np.arange(3, 5)}) == {}


def test_sizes_are_as_near_as_documents_allow() -> None:
    draw = np.random.default_rng
    sizes = np.array([7, 1, 4, 4, 9, 2, 3])
    for seed in range(10):
        parts = deal(list(range(7)), {"validation": 0.2, "test": 0.2}, draw(seed), sizes)
        assert sorted(itertools.chain(*parts.values())) == list(range(7))
        for split in ("validation", "test"):
            # 6 of 30 rows, within half of the smallest document that was left.
            assert abs(sizes[parts[split]].sum() - 6) <= 2
