"""Every task learns from, scores and answers data in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from datasets import Dataset

import longspan
from longspan.results.outputs import new_file
from longspan.results.tables import FORMATS, PRINTED, Predictions, write_table

TABLES: dict[str, Callable[[Path], pd.DataFrame]] = {
    "csv": pd.read_csv,
    "tsv": lambda path: pd.read_csv(path, sep="\t"),
    "jsonl": lambda path: pd.read_json(path, lines=True),
    "parquet": pd.read_parquet,
    "xlsx": lambda path: pd.read_excel(path, engine="openpyxl"),
}
assert TABLES.keys() == {*FORMATS}
SMALL = {"dim": 8, "heads": 2, "depth": 1, "num_train_epochs": 1, "per_device_train_batch_size": 4}
SOON = {"vocab_size": 300, "min_steps": 0, "max_minutes": 0}
TEXTS = [f"word{n % 7} word{n % 5} some text {n}. More words follow here {n % 3}." for n in range(40)]
LISTS = [["a"] if n % 2 else ["b", "c"] for n in range(40)]


def tagged() -> Dataset:
    words = [["I", "saw", place, f"{n}"] for n in range(20) for place in ("Rome", "Kyoto")]
    return Dataset.from_dict({"tokens": words, "labels": [["O", "O", "B-LOC", "O"]] * 40})


def meetings() -> list[dict[str, Any]]:
    return [
        {"parts": ["Good morning.", f"It costs {n}.", "Fine."], "question": f"What of {n}?", "evidence": [1]}
        for n in range(24)
    ]


def questions() -> Dataset:
    answers = [{"text": [f"{n}"], "answer_start": [12]} for n in range(24)]
    return Dataset.from_list(
        [{"context": f"The code is {n}.", "question": "What is it?", "answers": one} for n, one in enumerate(answers)]
    )


def clicks() -> pd.DataFrame:
    rows = [
        (f"u{user}", f"{topic} number {day}", int((topic == "cup") == (user < 2)), pd.Timestamp(2024, 5, day))
        for user in range(4)
        for day in range(1, 9)
        for topic in ("cup", "rain")
    ]
    return pd.DataFrame(rows, columns=["user", "title", "clicked", "time"])


DATA: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "multi-label": (lambda: pl.DataFrame({"text": TEXTS, "labels": LISTS}), SOON),
    "regression": (lambda: (TEXTS, [n % 5 / 2 for n in range(40)]), SOON),
    "ner": (tagged, {}),
    "evidence": (meetings, {"vocab_size": 300}),
    "question-answering": (questions, {"vocab_size": 300}),
    "news": (clicks, {"vocab_size": 300}),
    "model-text": (lambda: TEXTS * 4, {**SOON, "segment_length": 32}),
    "masked-words": (lambda: {"text": TEXTS * 4}, {**SOON, "segment_length": 32}),
    "masked-spans": (lambda: {"text": TEXTS}, {**SOON, "max_length": 32}),
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", DATA)
def test_data_in_memory(recipe: str, tmp_path: Path) -> None:
    make, settings = DATA[recipe]
    run = longspan.train(recipe, data=make(), run=tmp_path / "run", progress=False, **SMALL, **settings)
    inputs = make()[0] if isinstance(make(), tuple) else make()
    found = run.predict(inputs)
    assert isinstance(found, Predictions)
    assert found
    assert {one.error for one in found} == {None}
    assert found[0].where.startswith("row 1 of the ")
    bad = type(found[0])("row 0", "no text")
    for kind, read in TABLES.items():
        path = tmp_path / f"found.{kind}"
        with new_file(path, binary=kind not in PRINTED) as file:
            write_table([bad, *found], kind, file)
        assert read(path)["where"].tolist() == ["row 0", *(one.where for one in found)]
    assert len(found.to_pandas()) == len(found)
    assert run.evaluate(make()).data.startswith("the ")
    assert longspan.load(run.folder).scores == run.scores
