"""Every kind of column is read the same from csv, JSON, parquet and data sets of the Hub; bad cells are named."""

import csv
import errno
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from longspan.data.columns.files import File
from longspan.data.columns.kinds import (
    Column,
    Flags,
    Label,
    Labels,
    Number,
    Numbers,
    Text,
    WordLabels,
    Words,
)
from longspan.data.config import DataConfig
from longspan.data.fingerprints import fingerprint
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.formats.schema import source_names
from longspan.data.sources.loading import Splits, load
from longspan.data.sources.paths import read_paths
from longspan.errors import UserError


class Settings:
    """Settings with a column of a task, called "x" in the source."""

    def __init__(self, path: Path | str = "", **settings: Any) -> None:
        self.x_column = "x"
        self.y_column = "y"
        vars(self).update(vars(DataConfig(path=str(path), **{"validation_fraction": 0.0, **settings})))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "cache" / "downloads")


def write(path: Path, cells: list[Any], **more: list[Any]) -> Path:
    rows = [dict(zip(("x", *more), values, strict=True)) for values in zip(cells, *more.values(), strict=True)]
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["x", *more])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def values(path: Path, column: Column) -> list[Any]:
    found = list(read_paths([path], [column], Settings()))
    assert [row.problem for row in found] == [""] * len(found)
    return [row.values[column.name] for row in found]


NUMBER = Number("score", "x_column")
NUMBERS = Numbers("scores", "x_column")
WORDS = Words("tokens", "x_column")
LABELS = Labels("labels", "x_column")


@pytest.mark.parametrize(
    ("column", "cells", "expected", "kinds"),
    [
        (Text("text", "x_column"), ["a b", " c "], ["a b", " c "], ".csv .jsonl .parquet"),
        (Label("label", "x_column"), [" good ", "bad"], ["good", "bad"], ".csv .jsonl .parquet"),
        (Label("label", "x_column"), [1.0, 2.5], ["1", "2.5"], ".jsonl .parquet"),
        (NUMBER, ["-1.5", " 2e3 ", ".5"], [-1.5, 2000.0, 0.5], ".csv .jsonl .parquet"),
        (NUMBER, [3, 2**60], [3.0, 2.0**60], ".csv .jsonl .parquet"),
        (NUMBERS, ["[1, 2.5]", " 3  -4 ", "0"], [[1.0, 2.5], [3.0, -4.0], [0.0]], ".csv .jsonl .parquet"),
        (NUMBERS, [[1, 2], [3]], [[1.0, 2.0], [3.0]], ".csv .jsonl .parquet"),
        (WORDS, ['["a b", "c"]', " d  e\t[f] ", "[1]", "[ x"], [["a b", "c"], ["d", "e", "[f]"], ["[1]"], ["[", "x"]],
         ".csv .jsonl .parquet"),
        (WORDS, [["a b", "c"], ["d"]], [["a b", "c"], ["d"]], ".jsonl .parquet"),
        (LABELS, ['["a, b", 1]', "c, d,c,", "[]", " "], [["a, b", "1"], ["c", "d"], [], []], ".csv .jsonl .parquet"),
        (LABELS, [["a", "b", "a"], []], [["a", "b"], []], ".jsonl .parquet"),
        (Labels("labels", "x_column", separator="|"), ["a, b|c"], [["a, b", "c"]], ".csv .jsonl .parquet"),
        (Labels("labels", "x_column", separator=""), ["a, b"], [["a, b"]], ".csv .jsonl .parquet"),
    ],
)  # fmt: skip
def test_values(tmp_path: Path, column: Column, cells: list[Any], expected: list[Any], kinds: str) -> None:
    for kind in kinds.split():
        path = write(tmp_path / f"a{kind}", cells)
        assert values(path, column) == expected
        rows = load(Settings(path), [column], training=False).splits["train"]
        assert rows.column_names == [column.name, "where"]
        assert rows.features[column.name] == column.feature
        assert rows[column.name][:] == expected


@pytest.mark.parametrize(
    ("column", "cell", "problem"),
    [
        (Text("text", "x_column"), " \n", "no text"),
        (Text("premise", "x_column"), None, "no premise"),
        (Label("label", "x_column"), float("nan"), "no label"),
        (NUMBER, "", "no score"),
        (NUMBER, None, "no score"),
        (NUMBER, "three", "no score (expected a number such as 3.5, got text of 5 characters)"),
        (NUMBER, "nan", "no score (expected a number such as 3.5, got text of 3 characters)"),
        (NUMBER, float("nan"), "no score (expected a number such as 3.5, got a number that is not finite)"),
        (NUMBER, float("inf"), "no score (expected a number such as 3.5, got a number that is not finite)"),
        (NUMBER, True, "no score (expected a number such as 3.5, got true)"),
        (NUMBER, "1_000", "no score (expected a number such as 3.5, got text of 5 characters)"),
        (NUMBER, "1,5", "no score (expected a number such as 3.5, got text of 3 characters)"),
        (NUMBER, "9" * 400, "no score (expected a number such as 3.5, got text of 400 characters)"),
        (NUMBER, 10**400, "no score (expected a number such as 3.5, got a number that is not finite)"),
        (NUMBERS, "1 two", "no scores (expected a list of numbers, got text of 3 characters)"),
        (NUMBERS, [1, None], "no scores (expected a list of numbers, got null)"),
        (NUMBERS, [], "no scores"),
        (WORDS, "", "no tokens"),
        (
            WORDS,
            '["a", ',
            "no tokens (expected a list of words, got text of 6 characters, which is not a readable list)",
        ),
        (WORDS, ["a", 3], "no tokens (expected a list of words, got a number among them)"),
        (LABELS, None, "no labels"),
        (
            LABELS,
            '["a"',
            "no labels (expected a list of labels, got text of 4 characters, which is not a readable list)",
        ),
        (LABELS, ["a", None], "no labels (expected a list of labels, got null among them)"),
        (LABELS, ["a", ["b"]], "no labels (expected a list of labels, got a list of 1 among them)"),
        (LABELS, ["a\ud800"], "broken UTF-8"),
    ],
)
def test_bad_cells(tmp_path: Path, column: Column, cell: Any, problem: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"x": cell}) + "\n")
    (row,) = read_paths([tmp_path / "a.jsonl"], [column], Settings())
    assert (row.where, row.problem) == ("a.jsonl, line 1", problem)
    with pytest.raises(UserError, match=r"a.jsonl, line 1.* data.skip_bad_rows=true to drop and count") as error:
        load(Settings(tmp_path / "a.jsonl"), [column], training=False)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        (Text("text", "x_column"), 3, "expected text in column 'x', got a value of type int"),
        (Label("label", "x_column"), ["a"], "expected one label in column 'x', got a value of type list"),
        (LABELS, 3, "expected a list of labels in column 'x', got a value of type int"),
        (WORDS, {"a": 1}, "expected a list of words in column 'x', got a value of type dict"),
        (NUMBERS, 3, "expected a list of numbers in column 'x', got a value of type int"),
        (File("file", "x_column"), 3, "expected the path of a file in column 'x', got a value of type int"),
    ],
)
def test_another_column_is_meant(tmp_path: Path, column: Column, cell: Any, message: str) -> None:
    path = write(tmp_path / "a.jsonl", [cell])
    with pytest.raises(UserError, match=f"a.jsonl, line 1: {message}.* set data.x_column to another column"):
        list(read_paths([path], [column], Settings()))


TAGGED: list[Column] = [Words("tokens", "x_column"), WordLabels("tags", "y_column")]


def test_a_label_for_each_word(tmp_path: Path) -> None:
    cells: dict[str, list[Any]] = {"y": ["D N", "D", '["V", "N", "X"]']}
    path = write(tmp_path / "a.csv", ["the cat", "the cat", '["sat", "on", "it"]'], **cells)
    good, bad, last = read_paths([path], TAGGED, Settings())
    assert good.values == {"tokens": ["the", "cat"], "tags": ["D", "N"]}
    assert last.values == {"tokens": ["sat", "on", "it"], "tags": ["V", "N", "X"]}
    assert bad[1:3] == ("a.csv, row 2", "tags and tokens differ in number (expected 2, got 1)")
    with pytest.raises(
        UserError, match=r"a.csv, row 2: tags and tokens differ .* got 1\); fix it, or set data.skip_bad_row"
    ):
        load(Settings(path), TAGGED)
    found = load(Settings(path, skip_bad_rows=True), TAGGED)
    assert found.skipped == {"tags and tokens differ in number": 1}
    assert found.splits["train"]["tags"][:] == [["D", "N"], ["V", "N", "X"]]


def test_values_that_may_be_missing(tmp_path: Path) -> None:
    columns = [Number("score", "x_column", required=False), Label("label", "y_column", required=False)]
    path = write(tmp_path / "a.csv", ["", "2", "x"], y=["a", "", "b"])
    rows = list(read_paths([path], columns, Settings()))
    assert rows[:2] == [
        Row({"score": None, "label": "a"}, "a.csv, row 1"),
        Row({"score": 2.0, "label": None}, "a.csv, row 2"),
    ]
    # What is there must be right.
    assert rows[2].problem.startswith("no score (")
    (tmp_path / "b.csv").write_text("x\n1\n")
    assert list(read_paths([tmp_path / "b.csv"], columns, Settings())) == [
        Row({"score": 1.0, "label": None}, "b.csv, row 1")
    ]
    found = load(Settings(tmp_path / "b.csv"), columns, training=False).splits["train"]
    assert found[:] == {"score": [1.0], "label": [None], "where": ["b.csv, row 1"]}


def test_targets_are_what_prediction_does_not_read() -> None:
    every: list[Column] = [*TAGGED, NUMBER, LABELS, Number("rating", "y_column", target=True), Label("c", "y_column")]
    assert [column.name for column in every if not column.target] == ["tokens", "score"]


def test_files_are_found_beside_the_table_and_looked_at_each_time(tmp_path: Path) -> None:
    (tmp_path / "in" / "sounds").mkdir(parents=True)
    first, second = tmp_path / "in" / "sounds" / "a.wav", tmp_path / "b.wav"
    first.write_bytes(b"1")
    column = File("file", "x_column")
    path = write(tmp_path / "in" / "a.csv", ["sounds/a.wav", str(second), "sounds", ""])
    problems = [row.problem for row in read_paths([path], [column], Settings())]
    assert problems == [
        "",
        f"no file (expected the path of a file, got {str(second)!r}: {os.strerror(errno.ENOENT)})",
        "no file (expected the path of a file, got 'sounds', which is a folder)",
        "no file",
    ]

    def find() -> Splits:
        return load(Settings(path, skip_bad_rows=True), [column])

    before = find()
    assert before.splits["train"]["file"][:] == [str(first)]
    assert before.skipped == {"no file": 3}
    # The table stays as it is.
    second.write_bytes(b"2")
    after = find()
    assert after.splits["train"]["file"][:] == [str(first), str(second)]
    assert fingerprint(find().splits["train"]) == fingerprint(after.splits["train"])
    second.write_bytes(b"22")
    assert fingerprint(find().splits["train"]) != fingerprint(after.splits["train"])


def test_numbers_of_classes_in_data_sets_of_the_hub_become_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    features = Features({"x": List(Value("string")), "y": List(ClassLabel(names=["O", "PER"]))})
    rows = {"x": [["Ann", "sat"], ["he"]], "y": [[1, 0], [0]]}
    splits = DatasetDict({name: Dataset.from_dict(rows, features=features) for name in ("train", "test")})
    monkeypatch.setattr("datasets.load_dataset", lambda *_: splits)
    found = load(Settings("hub:owner/name"), TAGGED)
    assert found.splits["test"][0] == {
        "tokens": ["Ann", "sat"],
        "tags": ["PER", "O"],
        "where": "owner/name, test, row 1",
    }
    with pytest.raises(UserError, match=r"data.x_column needs files next to the table, got a data set of the Hub"):
        load(Settings("hub:owner/name"), [File("file", "x_column")])


def test_a_pair_of_texts_with_a_number(tmp_path: Path) -> None:
    columns = [Text("first", "x_column"), Text("second", "y_column"), Number("score", "text_column", target=True)]
    path = write(tmp_path / "a.jsonl", ["a", "b", "c"], y=["d", "e", " "], text=[1, 2, 3])
    with pytest.raises(
        UserError, match=r"expected first and second and score .* no second in 1 row \(first: a.jsonl, l"
    ):
        load(Settings(path), columns)
    found = load(Settings(path, skip_bad_rows=True), columns).splits["train"]
    assert found[1] == {"first": "b", "second": "e", "score": 2.0, "where": "a.jsonl, line 2"}


def test_random_splits_keep_an_example_of_each_label_in_training(tmp_path: Path) -> None:
    cells = [f"w{number}" for number in range(20)]
    path = write(
        tmp_path / "a.jsonl", cells, y=[["common"] if number != 7 else ["rare", "common"] for number in range(20)]
    )
    columns = [Text("text", "x_column"), Labels("labels", "y_column")]
    for seed in range(8):
        found = load(Settings(path, validation_fraction=0.5, test_fraction=0.3, split_seed=seed), columns).splits
        assert "w7" in found["train"]["text"][:]
        assert "w0" in found["train"]["text"][:]
        assert sorted(text for split in found.values() for text in split["text"]) == sorted(cells)
        assert {name: len(rows) for name, rows in found.items()} == {"train": 6, "validation": 9, "test": 5}
    small = write(tmp_path / "b.jsonl", ["a", "b"], y=[["x"], ["x"]])
    with pytest.raises(
        UserError, match=r"each of the splits .*, got 2, of which training keeps 1 as the first with a label"
    ):
        load(Settings(small, validation_fraction=0.5), columns)


def test_a_label_that_training_lacks_in_a_list(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", ["the cat", "it"], y=["D N", "P"])
    held = write(tmp_path / "v.jsonl", ["it", "it sat"], y=["P", "P V"])
    with pytest.raises(UserError, match=r"in the validation data, got 'V' \(first: v.jsonl, line 2\); add"):
        load(Settings(train, validation=str(held)), TAGGED)


def test_folders_of_text_have_no_other_columns(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "a.txt").write_text("text")
    columns = [Text("text", "text_column"), NUMBER]
    for path in (tmp_path / "all", "packages"):
        with pytest.raises(
            UserError, match=r"expected a column 'x' \(data.x_column\) in .*, got only 'text'; use a csv"
        ):
            load(Settings(path), columns)
    with pytest.raises(UserError, match=r"expected a column 'x' \(data.x_column\) in .*, got only 'text'; use a csv"):
        read_paths([tmp_path / "all"], columns, Settings())
    optional = [Text("text", "text_column"), Number("score", "x_column", required=False)]
    (row,) = read_paths([tmp_path / "all"], optional, Settings())
    assert row == Row({"text": "text", "score": None}, "a.txt", file=tmp_path / "all" / "a.txt")


def test_columns_that_do_not_go_together() -> None:
    settings = Settings()
    settings.x_column = "y"
    with pytest.raises(UserError, match=r"data.x_column and data.y_column must name two columns, got 'y' for both"):
        source_names(TAGGED, settings)
    settings.x_column = ""
    with pytest.raises(UserError, match=r"data.x_column must be a name, got an empty text; leave it out"):
        source_names(TAGGED, settings)
    settings.x_column = "x"
    for columns, message in (
        ([NUMBER, NUMBER], "different names"),
        ([Text("where", "x_column")], "other than where and problem"),
        ([WordLabels("tags", "y_column", of="words"), WORDS], "is not a Words column"),
    ):
        with pytest.raises(ValueError, match=message):
            source_names(columns, settings)
    with pytest.raises(ValueError, match="stratify must be the name of a Label column"):
        load(settings, TAGGED, stratify="tags")


def test_declaring_columns_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = "import sys; from longspan.data.columns.kinds import Words; Words('a', 'b'); print('\\n'.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(ran.stdout.split()) & {"datasets", "torch", "transformers", "pyarrow", "numpy"}


FLAGS = Flags("labels", "x_columns", labels=("x", "y"))


class Several(Settings):
    """Settings with several columns of a task."""

    def __init__(self, path: Path | str = "", **settings: Any) -> None:
        super().__init__(path, **settings)
        self.x_columns = ["x", "y"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_column_for_each_label(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a.{kind}", ["1", "0", "", " TRUE "], y=["1.0", "false", "0.0", ""])
    rows = list(read_paths([path], [FLAGS], Several()))
    assert [(row.values["labels"], row.problem) for row in rows] == [(["x", "y"], ""), ([], ""), ([], ""), (["x"], "")]
    found = load(Several(path), [Text("text", "text_column", required=False), FLAGS], training=False).splits["train"]
    assert found["labels"][:] == [["x", "y"], [], [], ["x"]]


def test_labels_as_numbers_and_truth_values_and_left_out(tmp_path: Path) -> None:
    lines = [{"x": 1, "y": True}, {"x": 0, "y": False}, {"x": None}, {"x": 1.0, "y": float("nan")}, {}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = [row.values["labels"] for row in read_paths([tmp_path / "a.jsonl"], [FLAGS], Several())]
    assert found == [["x", "y"], [], [], ["x"], []]


@pytest.mark.parametrize(
    ("cell", "got"),
    [
        (2, "a number"),
        ("2", "text of 1 character"),
        ("yes", "text of 3 characters"),
        ([1], "a list of 1"),
        (0.5, "a number"),
    ],
)
def test_what_is_neither_0_nor_1_is_named_with_its_column(cell: Any, got: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"x": 1, "y": cell}) + "\n")
    (row,) = read_paths([tmp_path / "a.jsonl"], [FLAGS], Several())
    assert row.problem == f"no labels (expected 0 or 1, or true or false, got {got} in column 'y')"


def test_a_missing_column_of_a_label(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,why\n1,0\n")
    with pytest.raises(UserError, match=r"expected a column 'y' in a.csv, got 'x', 'why'; .*"):
        list(read_paths([tmp_path / "a.csv"], [FLAGS], Several()))


def test_random_splits_have_their_share_of_each_label(tmp_path: Path) -> None:
    """At random, the validation split would often lack a label of which there are ten among 400."""
    labels = [
        [name for name, every in (("common", 2), ("rare", 40), ("rarer", 57)) if number % every == 0]
        for number in range(400)
    ]
    path = write(tmp_path / "a.jsonl", [f"w{number}" for number in range(400)], y=labels)
    columns = [Text("text", "x_column"), Labels("labels", "y_column")]
    drawn = set()
    for seed in range(5):
        found = load(Settings(path, validation_fraction=0.2, split_seed=seed), columns).splits["validation"]
        counts = Counter(label for row in found["labels"] for label in row)
        assert len(found) == 80
        assert abs(counts["common"] - 40) <= 3
        assert counts["rare"] in (1, 2, 3)
        assert counts["rarer"] in (1, 2)
        drawn.add(tuple(found["text"][:]))
    assert len(drawn) == 5
