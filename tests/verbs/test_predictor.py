"""Predictions of batches: every kind of batch, in every process, with the columns of `longspan predict --output`."""

import dataclasses
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decisive_words import write_run
from drawn_images import write_shapes
from sounds import write_tones

from longspan import Predictor, load, predict, recipes, tasks, train
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.results.tables import prediction_schema, table_row, write_table
from longspan.verbs.runs import load_run

TEXTS = ["good film", None, "film film film film good", "", "bad"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that answers "yes" to documents with the word "good", and reads only their last four words."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    return write_run(folder, ["no", "yes"], "good", "yes", "good bad film", ["data.max_length=4", "data.keep=last"])


def written(run: Any, source: Any) -> pa.Table:
    """What `--output FILE.parquet` contains."""
    file = io.BytesIO()
    write_table(predict(run, source), "parquet", file)
    return pq.read_table(file)


def test_batches_of_each_kind_have_the_columns_of_predict(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame({"text": TEXTS}, index=list("abcde"))
    wanted = written(run, frame)
    capsys.readouterr()
    predictor: Predictor = pickle.loads(pickle.dumps(Predictor(run)))
    table = pa.table({"text": TEXTS})
    places = wanted["where"].to_pylist()
    for batch, name in ((table, "Table"), (table.to_batches()[0], "Table")):
        found = predictor(batch)
        assert found.schema == wanted.schema == predictor.schema
        assert found["where"].to_pylist() == [place.replace("DataFrame", name) for place in places]
        assert found.drop(["where"]).equals(wanted.drop(["where"]))
    of_frame = predictor(frame)
    assert list(of_frame.index) == list("abcde")
    assert of_frame.reset_index(drop=True).equals(wanted.to_pandas())
    for columns in ({"text": TEXTS}, {"text": np.array(TEXTS, object)}):
        of_columns = predictor(columns)
        assert {**of_columns, "where": places} == wanted.to_pydict()
    assert of_columns["error"] == [None, "no text", None, "no text", None]
    # What `predict` says about all rows would be said for each batch.
    assert capsys.readouterr().err == ""


def test_a_batch_without_answers_and_an_empty_one_have_all_columns(run: Path) -> None:
    predictor = Predictor(run, min_probability=0.99)
    assert predictor(pa.table({"text": ["", None]})).schema == predictor.schema
    assert predictor(pa.table({"text": pa.array([], pa.string())})).schema == predictor.schema
    assert list(predictor(pd.DataFrame({"text": []})).columns) == predictor.schema.names
    assert predictor({"text": ["good", "bad"]})["label"] == ["yes", None]


def test_columns_are_kept_beside_predictions(run: Path) -> None:
    predictor = Predictor(run, keep=["id"])
    frame = pd.DataFrame({"id": [7, 8], "text": ["good", None]})
    found = predictor(frame)
    assert list(found.columns) == ["id", *predictor.schema.names]
    assert found[["id", "label"]].iloc[0].to_list() == [7, "yes"]
    assert found[["id", "error"]].iloc[1].to_list() == [8, "no text"]
    assert predictor(frame.to_dict("list"))["id"] == [7, 8]
    assert predictor(pa.Table.from_pandas(frame))["id"].to_pylist() == [7, 8]
    with pytest.raises(UserError, match="expected the column 'id' to keep, got 'text'; name one"):
        predictor({"text": ["good"]})
    with pytest.raises(UserError, match="write \\['id'\\]"):
        Predictor(run, keep="id")
    with pytest.raises(UserError, match="of different columns to keep, got 'id' twice; leave one out"):
        Predictor(run, keep=["id", "text", "id"])
    with pytest.raises(UserError, match="other names than those of predictions, got 'label'; rename it"):
        Predictor(run, keep=["label"])({"text": ["good"], "label": ["yes"]})


def test_mistakes_are_found_before_batches_come(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run folder"):
        Predictor(tmp_path / "none")
    with pytest.raises(UserError, match="without 'sort_into', got it; leave it out"):
        Predictor(run, sort_into="sorted")
    with pytest.raises(UserError, match="text"):
        Predictor(run)(pd.DataFrame({"words": ["good"]}))
    with pytest.raises(UserError, match="beams"):
        Predictor(run, beams=3)
    with pytest.raises(UserError, match="expected text_column to be text, a number or a list, got PosixPath"):
        Predictor(run, text_column=Path("text"))


def test_a_loaded_run_is_the_one_of_its_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ["no", "yes"], "good", "yes", "good bad film")
    (folder / "metrics.json").write_text("{}", encoding="utf-8")
    assert Predictor(load(folder)).digest == Predictor(load_run(folder)).digest == Predictor(folder).digest
    trained = load(folder)
    trained.__dict__["loaded"] = dataclasses.replace(load_run(folder), checkpoint=5)
    for other in [trained, trained.loaded, load_run(folder, overrides=["data.encoding=auto"])]:
        with pytest.raises(UserError, match="one that was loaded with a checkpoint or settings of its own; give its"):
            Predictor(other)


def test_another_model_at_the_path_is_not_used(tmp_path: Path) -> None:
    predictor = Predictor(write_run(tmp_path / "run", ["no", "yes"], "good", "yes", "good bad film"))
    write_run(tmp_path / "run", ["no", "yes"], "bad", "yes", "good bad film")
    with pytest.raises(UserError, match=r"got another model at '.*run' on this machine; copy the run there"):
        predictor({"text": ["good"]})


def test_a_run_that_is_trained_again_is_another_one(run: Path, tmp_path: Path) -> None:
    # `datasets` looks for results of `map` by the pickle of its function.
    first = Predictor(run)
    assert pickle.dumps(first) == pickle.dumps(Predictor(str(run)))
    write_run(tmp_path / "run", ["no", "yes"], "bad", "yes", "good bad film")
    assert Predictor(tmp_path / "run").digest != first.digest


@pytest.mark.parametrize("name", tasks.names())
def test_each_task_has_a_schema_whatever_its_predictions_are(name: str) -> None:
    kind: Any = tasks.load(name).prediction
    schema = prediction_schema(kind, ["a", "b"])
    fields = {"probabilities": {"a": 0.25, "b": 0.75}} if "probabilities" in kind.__dataclass_fields__ else {}
    assert schema.names == list(table_row(kind("here", **fields)))
    types = {field.name: str(field.type) for field in schema}
    assert types["where"] == types["error"] == "string"
    assert all(types[column] == "double" for column in types if column.startswith("probabilities."))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["images", "audio"])
def test_files_of_images_and_recordings_are_named_by_paths(kind: str, tmp_path: Path) -> None:
    write, recipe, column = {
        "images": (write_shapes, "images", "image"),
        "audio": (write_tones, "audio", "recording"),
    }[kind]
    folder = write(tmp_path / "files", 6)
    small = ["model.dim=16", "model.heads=2", "model.depth=1", "data.validation_fraction=0.3"]
    small += ["training.num_train_epochs=1", "training.max_minutes=0"]
    train(recipes.load(recipe, [f"data.path={folder}", *small]), run=tmp_path / "run", progress=False)
    files = [*sorted(map(str, folder.rglob("*.*"))), str(tmp_path / "none.png")]
    predictor = Predictor(tmp_path / "run")
    columns = {column.name: column for column in predictor.loaded.task.inputs(predictor.loaded.recipe.data)}
    assert list(columns) == [column]
    setting = columns[column].setting
    frame = pd.DataFrame({getattr(predictor.loaded.recipe.data, setting): files})
    found = predictor(pa.Table.from_pandas(frame))
    assert found.schema == predictor.schema
    assert found["error"].to_pylist()[-1] is not None
    assert found.drop(["where"]).slice(0, len(files) - 1).equals(written(tmp_path / "run", frame[:-1]).drop(["where"]))
    assert found["error"].to_pylist().count(None) == len(files) - 1


def test_rows_that_were_read_are_predicted_as_they_are(run: Path) -> None:
    (answer,) = Predictor(run).predictions([Row({"text": "good"}, "here, row 3")])
    assert (answer.where, answer.error) == ("here, row 3", None)
