"""Data in memory: what is taken, what is refused, and that rows are those of the same data in a file."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from longspan import recipes
from longspan.data.columns.kinds import Column, Label, Text
from longspan.data.sources.in_memory import rows_of, settings_for, with_data
from longspan.data.sources.loading import load
from longspan.errors import UserError

CLASSIFY = recipes.load("classify")
COLUMNS: list[Column] = [Text("text", "text_column"), Label("label", "label_column")]
TEXTS, LABELS = ["one cat", "two dogs", "three cats", "four dogs"], ["cat", "dog", "cat", "dog"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def read(data: Any, split: str = "train") -> list[tuple[str, str, str]]:
    """Return the texts, labels and places of rows as training reads them."""
    settings = with_data(replace(CLASSIFY.data, validation_fraction=0.0), COLUMNS, data)
    rows = load(settings, COLUMNS, training=False, stratify="label").splits[split]
    return list(zip(rows["text"], rows["label"], rows["where"], strict=True))


def frame(**more: Any) -> pd.DataFrame:
    return pd.DataFrame({"text": TEXTS, "label": LABELS, **more})


def named_classes() -> Dataset:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["cat", "dog"])})
    return Dataset.from_dict({"text": TEXTS, "label": [0, 1, 0, 1]}, features=features)


def generated() -> Iterator[dict[str, str]]:
    for text, label in zip(TEXTS, LABELS, strict=True):
        yield {"text": text, "label": label}


FORMS: dict[str, tuple[Callable[[], Any], str]] = {
    "pandas": (frame, "the DataFrame"),
    "pandas, other columns of mixed types": (lambda: frame(other=[1, "a", None, b"b"]), "the DataFrame"),
    "pandas, categories": (lambda: frame().astype({"label": "category"}), "the DataFrame"),
    "pandas, an index of its own": (lambda: frame().set_index(pd.Index([7, 5, 3, 1])), "the DataFrame"),
    "polars": (lambda: pl.DataFrame({"text": TEXTS, "label": LABELS}), "the DataFrame"),
    "arrow": (lambda: pa.table({"text": TEXTS, "label": LABELS}), "the Table"),
    "datasets": (named_classes, "the Dataset"),
    "datasets, rows chosen": (lambda: named_classes().select([1, 0, 1, 2, 3]).select([1, 2, 3, 4]), "the Dataset"),
    "columns": (lambda: {"text": TEXTS, "label": np.array(LABELS)}, "the dict"),
    "a pair": (lambda: (TEXTS, LABELS), "the pair"),
    "a pair of series": (lambda: (frame()["text"], frame()["label"]), "the pair"),
    "rows": (lambda: list(generated()), "the list"),
    "pairs": (lambda: list(zip(TEXTS, LABELS, strict=True)), "the list"),
    "a generator": (generated, "the data"),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_are_the_same_rows(form: str) -> None:
    make, name = FORMS[form]
    wanted = [(*pair, f"row {number} of {name}") for number, pair in enumerate(zip(TEXTS, LABELS, strict=True), 1)]
    assert read(make()) == wanted


def test_splits_are_kept_apart_and_may_be_files(tmp_path: Path) -> None:
    file = tmp_path / "more.csv"
    frame().to_csv(file, index=False)
    data = {"train": frame(), "dev": file, "test": (["a cat"], ["cat"])}
    settings = with_data(CLASSIFY.data, COLUMNS, data)
    assert not settings.path
    splits = load(settings, COLUMNS, training=False).splits
    assert {name: rows["where"][0] for name, rows in splits.items()} == {
        "train": "row 1 of the train DataFrame",
        "validation": "more.csv, row 1",
        "test": "row 1 of the test pair",
    }
    hub = DatasetDict({"train": named_classes(), "unsupervised": named_classes()})
    assert settings_for(hub, COLUMNS, CLASSIFY.data).keys() == {"train"}


def test_equal_data_have_one_copy_and_other_data_another(cache: Path) -> None:
    first = settings_for(frame(), COLUMNS, CLASSIFY.data)
    written = Path(first["path"]).stat().st_mtime_ns
    assert settings_for(frame(), COLUMNS, CLASSIFY.data) == first
    assert Path(first["path"]).stat().st_mtime_ns == written
    other = settings_for(frame().iloc[::-1], COLUMNS, CLASSIFY.data)
    assert other != first
    assert not list(cache.rglob("*.part"))


def test_missing_values_are_missing_and_numbers_are_labels() -> None:
    rows = rows_of({"text": ["a", None, float("nan")], "label": [1, 2, np.nan]}, COLUMNS, CLASSIFY.data)
    assert [(row.values["text"], row.values["label"], row.problem) for row in rows] == [
        ("a", "1", ""),
        (None, "2", "no text"),
        (None, None, "no text"),
    ]
    masked = pd.DataFrame({"text": ["a", pd.NA], "label": pd.array([1, None], dtype="Int64")})
    assert [row.problem for row in rows_of(masked, COLUMNS, CLASSIFY.data)] == ["", "no text"]


def test_lists_of_classes_get_their_names() -> None:
    features = Features({"tokens": List(Value("string")), "labels": List(ClassLabel(names=["O", "B-X"]))})
    tagged = Dataset.from_dict({"tokens": [["a", "b"]], "labels": [[0, 1]]}, features=features)
    ner = recipes.load("ner")
    (row,) = rows_of(tagged, ner.task.columns(ner.data), ner.data)
    assert row.values["labels"] == ["O", "B-X"]


def test_an_iterator_is_read_as_far_as_rows_are_asked_for() -> None:
    taken = []

    def texts() -> Iterator[str]:
        for number in range(1000):
            taken.append(number)
            yield f"text {number}"

    rows = rows_of(texts(), COLUMNS[:1], CLASSIFY.data)
    assert [next(rows).where for _ in range(3)] == ["row 1 of the data", "row 2 of the data", "row 3 of the data"]
    assert len(taken) == 3


def fails() -> Iterator[dict[str, str]]:
    yield {"text": "a", "label": "b"}
    raise ConnectionError("gone")


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no rows": (lambda: frame()[:0], "expected rows in the DataFrame, got none; give some."),
    "ragged": (
        lambda: {"text": TEXTS, "label": LABELS[:3]},
        "expected as many values in each column of the dict, got 3 of 'label' and 4 of 'text'; give one value per row.",
    ),
    "a generator that ends early": (
        lambda: (TEXTS, (label for label in LABELS[:1])),
        "expected as many values in each column of the pair, got 1 of 'label' and 4 of 'text'; give one value per row.",
    ),
    "labels of several types": (
        lambda: (TEXTS, [None, 0, "cat", 1.0]),
        "expected values of one type in column 'label' of the pair, got int in row 2 and str in row 3; convert them to "
        "one.",
    ),
    "an index with copies": (
        lambda: pd.concat([frame(), frame()]),
        "expected an index that names each row of the DataFrame once, got 0 more than once, as after pandas.concat; "
        r"call reset_index\(drop=True\) if the rows are right.",
    ),
    "series with other indices": (
        lambda: (frame()["text"], frame()["label"][::-1]),
        "expected inputs and targets with the same index, got two that differ",
    ),
    "two columns of a name": (
        lambda: pd.DataFrame([["a", "b", "c"]], columns=["text", "label", "label"]),
        "expected one column of each name in the DataFrame, got 'label' twice; rename one.",
    ),
    "an unknown split": (
        lambda: {"train": frame(), "tests": frame()},
        "expected splits called train, validation, valid, val, dev, test, got 'tests' among them; rename it.",
    ),
    "one split twice": (
        lambda: {"valid": frame(), "dev": frame()},
        "expected one validation split, got two, the second called 'dev'; join them.",
    ),
    "half a character": (
        lambda: (["\ud800"], ["a"]),
        "expected text in column 'text' of the pair, got half a character",
    ),
    "rows of two kinds": (
        lambda: [("a", "b"), "c"],
        "expected rows of one kind, got text of 1 character in row 2 of the list.",
    ),
    "a text for a column": (
        lambda: {"text": "abc", "label": ["a"]},
        "expected a list of values for 'text', got text of 3 characters; give one per row.",
    ),
    "a number": (lambda: 3, "expected a path, a DataFrame, .* got a value of type int; give one of them."),
    "nothing": (lambda: None, "got a value of type NoneType"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_data_are_refused_in_one_sentence(bad: str, cache: Path) -> None:
    make, message = BAD[bad]
    with pytest.raises(UserError, match=message) as error:
        settings_for(make(), COLUMNS, CLASSIFY.data)
    assert "\n" not in str(error.value)
    if not isinstance(make(), dict):
        # Of a dict, splits before the bad one may be there.
        assert not list(cache.rglob("*.parquet"))


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UserError, match="expected a column 'text' in the DataFrame, got 'txt', 'label'"):
        read(frame().rename(columns={"text": "txt"}))
    with pytest.raises(UserError, match=r"the DataFrame with no label in 1 row \(first: row 3 of the DataFrame\)"):
        read(frame().assign(label=["a", "b", None, "a"]))
    with pytest.raises(UserError, match="expected a column 'text' in the data, got 'txt'"):
        rows_of(({"txt": text} for text in TEXTS), COLUMNS, CLASSIFY.data)
    # No other column could be the label.
    with pytest.raises(UserError, match=r"expected a column 'label' in the list, got 'text'; add it\.$"):
        read(TEXTS)


@pytest.mark.parametrize("splits", [{"train": frame(), "test": frame()}, DatasetDict(test=named_classes())])
def test_rows_are_those_of_one_table(splits: Any) -> None:
    with pytest.raises(UserError, match=r"expected one table, got a dict with the splits .*'test'; give one of its"):
        rows_of(splits, COLUMNS, CLASSIFY.data)
    # A column may have the name of a split.
    assert len(list(rows_of({"text": TEXTS, "test": TEXTS}, COLUMNS[:1], CLASSIFY.data))) == len(TEXTS)


def test_an_error_of_the_data_is_passed_on(cache: Path) -> None:
    with pytest.raises(ConnectionError, match="gone") as error:
        settings_for(fails(), COLUMNS, CLASSIFY.data)
    assert error.value.__notes__ == ["This came after row 1 of the data."]
    assert not cache.exists()


def test_a_pair_needs_one_input_and_one_target() -> None:
    evidence = recipes.load("evidence")
    with pytest.raises(UserError, match=r"expected a table with the columns .*, got a pair without names"):
        settings_for((TEXTS, LABELS), evidence.task.columns(evidence.data), evidence.data)
