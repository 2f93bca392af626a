"""Rows that only a processor finds to be bad, such as damaged recordings: refused, or skipped and counted."""

import importlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import outside
import pytest

from longspan import UserError, compare, evaluate, predict, train
from longspan.data.processor import Unreadable
from longspan.results import TrainingResult

SKIP = "data.skip_bad_rows=true"
SMALL = ["model.dim=8", "model.heads=2", "training.num_train_epochs=1"]
CLASSES = ("slow", "middle", "fast")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's modules and recordings; the rows of 0 to 59 train, those of 60 to 89 validate, the others test."""
    outside.write(tmp_path)
    for name, numbers in (("train", range(60)), ("validation", range(60, 90)), ("test", range(90, 120))):
        listed(tmp_path / f"{name}.csv", numbers)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def listed(table: Path, numbers: Sequence[int]) -> None:
    rows = [f"waves/{n}.{'npy' if n % 2 else 'csv'},{CLASSES[n % 3]}" for n in numbers]
    table.write_text("\n".join(["recording,label", *rows]) + "\n", encoding="utf-8")


def damage(folder: Path, kind: str, number: int) -> None:
    file = folder / f"waves/{number}.{'npy' if number % 2 else 'csv'}"
    if kind == "missing":
        file.unlink()
    elif kind == "wide":
        values = np.zeros((20, 3))
        np.save(file, values) if number % 2 else np.savetxt(file, values, delimiter=",")
    else:
        file.write_text({"junk": "no numbers", "empty": ""}[kind], encoding="utf-8")


def trained(name: str, *more: str) -> TrainingResult:
    given = ["data.train=train.csv", "data.validation=validation.csv", "data.test=test.csv", *SMALL, *more]
    return train("sensors.toml", given, f"runs/{name}", progress=False, allow_imports=["sensors"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 7, 65, 110])
@pytest.mark.parametrize("kind", ["junk", "wide"])
def test_one_is_refused_with_its_row_and_file(kind: str, number: int, folder: Path) -> None:
    damage(folder, kind, number)
    table, first = next((name, at) for name, at in (("test", 90), ("validation", 60), ("train", 0)) if number >= at)
    with pytest.raises(UserError) as error:
        trained("refused")
    told = str(error.value)
    assert told.startswith(f"{table}.csv, row {number - first + 1}: expected rows of ")
    assert str(Path("waves") / str(number)) in told
    assert told.endswith("restore it, or set data.skip_bad_rows=true to drop and count such rows.")


@pytest.mark.slow
def test_they_are_skipped_and_counted_in_every_split(folder: Path) -> None:
    for number, kind in {0: "wide", 3: "junk", 8: "wide", 9: "missing", 13: "empty", 70: "junk", 101: "wide"}.items():
        damage(folder, kind, number)
    result = trained("skipped", SKIP)
    counted = {"no recording": 1, "unreadable": 6}
    assert result.data["skipped"] == counted
    assert json.loads(Path(result.folder, "metrics.json").read_text(encoding="utf-8"))["data"]["skipped"] == counted
    sizes = [result.data[name]["documents"] for name in ("train", "validation", "test")]
    assert sizes == [60 - 5, 29, 29]
    for split in ("validation", "test"):
        again = evaluate(result.folder, split=split, allow_imports=["sensors"])
        # Of those that only reading shows, the ones of the split.
        assert again.skipped == {"no recording": 1, "unreadable": 1}
        assert again.details["documents"] == 29
        assert again.scores.numbers() == pytest.approx(result.scores[split].numbers())


@pytest.mark.slow
def test_the_others_are_learned_as_without_them(folder: Path) -> None:
    damage(folder, "wide", 0)
    damage(folder, "junk", 13)
    damage(folder, "junk", 64)
    skipping = trained("skipping", SKIP)
    listed(folder / "train.csv", [n for n in range(60) if n not in (0, 13)])
    listed(folder / "validation.csv", [n for n in range(60, 90) if n != 64])
    without = trained("without")
    assert skipping.scores == without.scores
    both = [Path(run.folder, "processor.json").read_text(encoding="utf-8") for run in (skipping, without)]
    assert both[0] == both[1]


@pytest.mark.slow
def test_other_data_are_scored_without_them(folder: Path) -> None:
    result = trained("good")
    for number, kind in {91: "junk", 94: "wide"}.items():
        damage(folder, kind, number)
    with pytest.raises(UserError, match=r"^test.csv, row 2: .*or set data.skip_bad_rows=true to drop"):
        evaluate(result.folder, "test.csv", allow_imports=["sensors"])
    found = evaluate(result.folder, "test.csv", overrides=[SKIP], allow_imports=["sensors"])
    assert found.skipped == {"unreadable": 2}
    assert found.details["documents"] == 28
    told = list(predict(result.folder, ["test.csv"], allow_imports=["sensors"]))
    assert [number for number, one in enumerate(told) if one.error] == [1, 4]


@pytest.mark.slow
@pytest.mark.usefixtures("compared_here")
def test_a_comparison_counts_them(folder: Path) -> None:
    damage(folder, "junk", 5)
    damage(folder, "junk", 61)
    given = ["data.train=train.csv", "data.validation=validation.csv", *SMALL, SKIP]
    compared = compare("sensors.toml", ["additive", "lstm"], 1, given, "runs/both", allow_imports=["sensors"])
    assert [run.error for run in compared.runs] == [None, None]
    written = list((folder / "runs/both").rglob("metrics.json"))
    assert len(written) == 2
    for file in written:
        assert json.loads(file.read_text(encoding="utf-8"))["data"]["skipped"] == {"unreadable": 2}


@pytest.mark.slow
def test_only_bad_rows_are_one_error(folder: Path) -> None:
    good = trained("good")
    for number in range(60):
        damage(folder, "junk", number)
    with pytest.raises(UserError, match=r"^expected examples that can be read, got only bad rows .*train.csv, row 1: "):
        trained("bad", SKIP)
    with pytest.raises(UserError, match="got only bad rows"):
        evaluate(good.folder, "train.csv", overrides=[SKIP], allow_imports=["sensors"])


def test_a_split_of_bad_rows_is_no_split(folder: Path) -> None:
    for number in range(90, 120):
        damage(folder, "junk", number)
    result = trained("untested", SKIP)
    assert result.data["skipped"] == {"unreadable": 30}
    assert "test" not in result.scores


@pytest.mark.slow
def test_classes_are_those_of_good_rows(folder: Path) -> None:
    for number in range(0, 60, 3):
        damage(folder, "junk", number)
    with pytest.raises(UserError, match=r"expected only labels of the training data in the validation data.*'slow'"):
        trained("classes", SKIP)
    for name, numbers in (("validation", range(60, 90)), ("test", range(90, 120))):
        listed(folder / f"{name}.csv", [number for number in numbers if number % 3])
    assert set(trained("classes", SKIP).details["labels"]) == {"middle", "fast"}


@pytest.mark.slow
def test_bad_rows_are_no_copies_of_each_other(folder: Path) -> None:
    for number in (3, 5, 7, 67):
        damage(folder, "empty", number)
    assert trained("copies", SKIP).data["duplicates"] == {}


@pytest.mark.slow
def test_a_mended_processor_reads_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a processor could not read is not remembered: its code may have been mended."""
    sensors = importlib.import_module("sensors")
    read = sensors.read

    def picky(path: str, channels: int | None = None) -> Any:
        if path.endswith("70.csv"):
            raise Unreadable(f"expected another name than {path}; rename it.")
        return read(path, channels)

    monkeypatch.setattr(sensors, "read", picky)
    assert trained("picky", SKIP).data["skipped"] == {"unreadable": 1}
    monkeypatch.setattr(sensors, "read", read)
    assert trained("mended", SKIP).data["skipped"] == {}


def test_a_processor_that_learns_nothing_skips_them_too(folder: Path) -> None:
    rows = (folder / "digits.csv").read_text(encoding="utf-8").splitlines()
    rows[3], rows[50] = "1x,x1", "²,²"
    (folder / "digits.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")

    def digits(name: str, *more: str) -> TrainingResult:
        given = ["data.path=digits.csv", *SMALL, *more]
        return train("digits.toml", given, f"runs/{name}", progress=False, allow_imports=["digits"])

    with pytest.raises(UserError, match=re.escape("digits.csv, row 3: the digits: expected digits, got '1x'")):
        digits("refused")
    result = digits("skipped", SKIP)
    assert result.data["skipped"] == {"unreadable": 2}
    assert sum(result.data[name]["documents"] for name in ("train", "validation")) == 198
