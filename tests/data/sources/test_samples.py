"""A share of the rows, `data.sample`: drawn by their places, in every format, and the same ones each time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest

from longspan import recipes
from longspan.data.columns.kinds import Label, Text
from longspan.data.sources import loading
from longspan.data.sources.caching import SmallSample
from longspan.errors import UserError
from longspan.tasks.document_classification.options import ClassificationData
from longspan.tasks.recommendation.options import RecommendationData

COLUMNS = [Text("text", "text_column"), Label("label", "label_column")]
ROWS = 2000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "cache" / "downloads")


def load(path: Path | str, **settings: Any) -> loading.Splits:
    return loading.load(ClassificationData(path=str(path), **settings), COLUMNS, stratify="label")


def texts(splits: loading.Splits) -> set[str]:
    return {text for rows in splits.splits.values() for text in rows["text"]}


def frame(rows: int = ROWS) -> pd.DataFrame:
    # Sorted by class, as tables often are.
    return pd.DataFrame(
        {"text": [f"document {n}" for n in range(rows)], "label": ["a"] * (rows // 2) + ["b"] * (rows // 2)}
    )


def as_folder(folder: Path) -> Path:
    for text, label in frame().itertuples(index=False):
        (folder / "texts" / label).mkdir(parents=True, exist_ok=True)
        (folder / "texts" / label / f"{text}.txt").write_text(text)
    return folder / "texts"


def as_csv(folder: Path) -> Path:
    frame().to_csv(folder / "a.csv", index=False)
    return folder / "a.csv"


def as_parquet(folder: Path) -> Path:
    frame().to_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def as_lines(folder: Path) -> Path:
    frame().to_json(folder / "a.jsonl", orient="records", lines=True)
    return folder / "a.jsonl"


def as_nested(folder: Path) -> Path:
    (folder / "a.json").write_text(json.dumps({"rows": frame().to_dict("records")}))
    return folder / "a.json"


def as_hub(folder: Path) -> str:
    (folder / "hub").mkdir()
    frame().to_parquet(folder / "hub" / "train.parquet")
    return f"hub:{folder / 'hub'}"


@pytest.mark.parametrize("write", [as_folder, as_csv, as_parquet, as_lines, as_nested, as_hub])
def test_a_share_of_the_rows_of_both_classes(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path)
    fifth, tenth = load(path, sample=0.2), load(path, sample=0.1)
    # Five standard deviations of a binomial distribution.
    for share, found in ((0.2, fifth), (0.1, tenth)):
        assert abs(len(texts(found)) - share * ROWS) < 5 * (share * (1 - share) * ROWS) ** 0.5
        assert set(found.splits["train"]["label"]) == {"a", "b"}
    assert texts(tenth) < texts(fifth) < texts(load(path))
    assert texts(load(path, sample=0.2, split_seed=1)) != texts(fifth)
    assert load(path, sample=0.2).splits["train"][:] == fifth.splits["train"][:]


def test_small_validation_data_are_read_whole(tmp_path: Path) -> None:
    path = as_csv(tmp_path)
    frame(100).to_csv(tmp_path / "small.csv", index=False)
    large = pd.DataFrame({"text": [f"{'long ' * 500} {n}" for n in range(600)], "label": ["a", "b"] * 300})
    large.to_csv(tmp_path / "large.csv", index=False)
    assert (tmp_path / "large.csv").stat().st_size > loading.WHOLE_BYTES
    found = load(path, sample=0.1, validation=str(tmp_path / "small.csv"), test=str(tmp_path / "large.csv"))
    assert len(found.splits["validation"]) == 100
    assert 30 < len(found.splits["test"]) < 95


def test_of_a_single_document_the_beginning(tmp_path: Path) -> None:
    text = "".join(f"Zeile {n} über Äpfel.\n" for n in range(1000))
    (tmp_path / "book.txt").write_text(text)
    task = recipes.load("shakespeare").task
    config = task.data_config(path=str(tmp_path / "book.txt"), sample=0.25)
    found = loading.load(config, task.columns(config))
    parts = [found.splits[name]["text"][0] for name in ("train", "validation")]
    read = "".join(parts)
    assert text.startswith(read)
    assert abs(len(read.encode()) - len(text.encode()) / 4) <= 4


def test_a_sample_that_lacks_something_says_so(tmp_path: Path) -> None:
    rows = frame()
    rows.loc[rows.index[-1], "label"] = "rare"
    rows = pd.concat([rows, pd.DataFrame({"text": ["other 1", "other 2"], "label": ["rare", "rare"]})])
    rows.to_csv(tmp_path / "a.csv", index=False)
    frame(10).assign(label="rare").to_csv(tmp_path / "test.csv", index=False)
    assert set(load(tmp_path / "a.csv", test=str(tmp_path / "test.csv")).splits["train"]["label"]) == {"a", "b", "rare"}
    with pytest.raises(SmallSample, match=r"in a sample of 0\.05 of the rows \(data\.sample\), expected"):
        load(tmp_path / "a.csv", sample=0.05, test=str(tmp_path / "test.csv"))
    with pytest.raises(SmallSample, match=r"in a sample of 1e-06 of those in a\.csv, got none; raise data\.sample"):
        load(tmp_path / "a.csv", sample=1e-6)
    # What is wrong with all of the data is an error as before.
    frame().assign(label="a").to_csv(tmp_path / "one.csv", index=False)
    with pytest.raises(UserError) as error:
        load(tmp_path / "one.csv")
    assert not isinstance(error.value, SmallSample)


def test_what_is_read_whole_has_no_sample() -> None:
    with pytest.raises(UserError, match=r"data\.sample must be 0 or 1 for data that are read whole, got 0\.5"):
        RecommendationData(path="a", sample=0.5)
    assert RecommendationData(path="a", sample=1).sample == 1
