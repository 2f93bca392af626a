"""The run that `train` and `load` return, and the verbs on data in memory."""

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
from transformers.utils import logging

import longspan
from longspan import TrainedRun, UserError, recipes
from longspan.results import Comparison, Evaluation
from longspan.results.tables import Predictions
from longspan.verbs.predict import print_predictions

SETTINGS: dict[str, Any] = {
    "tokens": "words",
    "vocab_size": 60,
    "test_fraction": 0.2,
    "dim": 8,
    "heads": 2,
    "depth": 1,
    "num_train_epochs": 2,
    "learning_rate": 0.02,
}


@pytest.fixture(scope="module")
def frame(animals: Path) -> pd.DataFrame:
    return pd.read_csv(animals)


@pytest.fixture(scope="module")
def run(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    folder = tmp_path_factory.mktemp("trained") / "run"
    return longspan.train("quickstart", data=frame, run=folder, progress=False, **SETTINGS)


@pytest.mark.slow
def test_a_frame_is_learned_as_its_file_is(run: TrainedRun, frame: pd.DataFrame, animals: Path, tmp_path: Path) -> None:
    placed = recipes.load("quickstart", settings=SETTINGS)
    of_file = longspan.train(placed.reading(animals), run=tmp_path / "file", progress=False)
    assert of_file.scores == run.scores
    assert run.scores["test"].to_dict()["accuracy"] > 0.9
    by_word = ["data.tokens=words", "data.vocab_size=60", "data.test_fraction=0.2", "model.dim=8", "model.heads=2"]
    by_word += ["model.depth=1", "training.num_train_epochs=2", "training.learning_rate=0.02"]
    assert recipes.load("quickstart", by_word) == placed


@pytest.mark.slow
def test_a_loaded_run_is_the_trained_one(run: TrainedRun) -> None:
    again = longspan.load(run.folder)
    assert again == run
    assert json.loads(Path(run.folder, "metrics.json").read_text(encoding="utf-8")) == again.to_dict()
    assert again.recipe.task == run.recipe.task
    assert again.model.config.to_dict() == run.model.config.to_dict()
    assert again.processor.fingerprint() == run.processor.fingerprint()
    unfinished = longspan.load(run.folder, checkpoint="last")
    assert not unfinished.scores
    assert unfinished.predict(["a purr"])[0].error is None


@pytest.mark.slow
def test_predictions_are_those_of_the_command_line(run: TrainedRun, frame: pd.DataFrame, animals: Path) -> None:
    found = run.predict(frame)
    assert isinstance(found, Predictions)
    out = io.StringIO()
    print_predictions(run.loaded, [animals], out, stdin=io.BytesIO())
    printed = [json.loads(line) for line in out.getvalue().splitlines()]
    for own, line, number in zip(found.to_dicts(), printed, range(1, 241), strict=True):
        assert own.pop("where") == f"row {number} of the DataFrame"
        assert line.pop("where") == f"animals.csv, row {number}"
        assert own == line
    texts = frame["text"].tolist()
    for form in (texts, iter(texts), {"text": texts}, [{"text": text} for text in texts], frame["text"]):
        assert [one.to_dict()["label"] for one in run.predict(form)] == [one["label"] for one in printed]
    assert [one.to_dict()["label"] for one in longspan.predict(run, texts)] == [one["label"] for one in printed]


@pytest.mark.slow
def test_an_iterator_is_answered_as_it_comes(run: TrainedRun) -> None:
    taken = []

    def texts() -> Iterator[str]:
        for number in range(5000):
            taken.append(number)
            yield "meow"

    found = run.predict(texts())
    assert not isinstance(found, Predictions)
    assert next(iter(found)).to_dict()["label"] == "cat"
    assert len(taken) < 2000


@pytest.mark.slow
def test_rows_that_cannot_be_read_have_errors(run: TrainedRun) -> None:
    found = run.predict(["meow", "", None])
    assert [one.error for one in found] == [None, "no text", "no text"]
    assert not list(run.predict([]))


@pytest.mark.slow
def test_evaluation_of_data_in_memory(run: TrainedRun, frame: pd.DataFrame, animals: Path) -> None:
    of_file, of_frame = run.evaluate(animals), run.evaluate(frame)
    assert of_file.scores == of_frame.scores
    assert (of_frame.data, of_frame.split) == ("the DataFrame", "all")
    assert run.evaluate({"test": frame[:20]}).details["documents"] == 20
    assert run.evaluate().scores == run.scores["test"]
    pair = (frame["text"], frame["label"])
    assert longspan.evaluate(run, pair).scores == of_file.scores


@pytest.mark.slow
@pytest.mark.usefixtures("compared_here")
def test_comparison_of_data_in_memory(frame: pd.DataFrame, tmp_path: Path) -> None:
    found = longspan.compare("quickstart", ["additive"], 1, run=tmp_path / "cmp", data=frame, **SETTINGS)
    assert [one.error for one in found.runs] == [None]
    assert "model.dim=8" in found.overrides
    # Its recipe names the copy, so that other processes find the data.
    own = recipes.load(str(tmp_path / "cmp/additive-0"))
    assert pd.read_parquet(own.data.path).equals(frame)


@pytest.mark.slow
def test_a_run_continues_with_the_same_data_in_memory(frame: pd.DataFrame, tmp_path: Path) -> None:
    first = longspan.train("quickstart", data=frame, run=tmp_path / "run", progress=False, **SETTINGS)
    more = {**SETTINGS, "num_train_epochs": 3}
    longer = longspan.train("quickstart", data=frame, run=tmp_path / "run", resume=True, progress=False, **more)
    assert longer.steps > first.steps
    with pytest.raises(UserError, match=r"data\.path"):
        longspan.train("quickstart", data=frame[:200], run=tmp_path / "run", resume=True, progress=False, **more)


@pytest.mark.slow
def test_several_threads_use_one_run(run: TrainedRun, frame: pd.DataFrame) -> None:
    texts = frame["text"].tolist()[:60]
    own = longspan.train.__globals__["trained"](run)
    wanted = [run.predict([text])[0].to_dict() for text in texts]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda text: own.predict([text])[0].to_dict(), texts * 3))
    assert found == wanted * 3


@pytest.mark.slow
def test_notebooks_show_tables_and_figures(run: TrainedRun, frame: pd.DataFrame) -> None:
    page = run._repr_html_() or ""
    assert "<table>" in page
    assert "data:image/png;base64," in page
    assert "accuracy" in page
    evaluation = run.evaluate(frame)
    assert isinstance(evaluation, Evaluation)
    assert evaluation.html().count("<img") == 2
    shown = run.predict(["<script>alert(1)</script> meow"] * 30)._repr_html_()
    assert shown.count("<tr>") == 21
    assert "10 more" in shown
    unfit = Comparison("<b>", "t", type(run.scores["test"]), [], str(run.folder), [], [])
    assert "<b>" not in unfit.html()


@pytest.mark.slow
def test_names_in_pages_are_escaped(frame: pd.DataFrame, tmp_path: Path) -> None:
    named = frame.assign(label=frame["label"].map({"cat": "<img src=x>", "dog": "dog"}))
    made = longspan.train("quickstart", data=named, run=tmp_path / "run", progress=False, **SETTINGS)
    assert "<img src=x>" not in made.predict(["meow"])._repr_html_()


def test_bars_are_hidden_for_a_run_and_back_afterwards(
    frame: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (logging.is_progress_bar_enabled(), datasets.is_progress_bar_enabled())
    longspan.train("quickstart", data=frame[:100], run=tmp_path / "run", progress=False, **SETTINGS)
    assert (logging.is_progress_bar_enabled(), datasets.is_progress_bar_enabled()) == before
    assert "%|" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_is_one_sentence(run: TrainedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", refused)
    with pytest.raises(UserError, match="expected to write to 'me/mine' on the Hugging Face Hub"):
        run.push_to_hub("me/mine")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_cache": True}, r"got 'use_cache', which is model\.use_cache and training\.use_cache; write model="),
        ({"dimm": 3}, r"unknown key 'dimm'; did you mean 'model\.dim'\?"),
        ({"lr": 3}, r"unknown key 'lr'; did you mean 'training\.learning_rate'\?"),
        ({"crf": True}, "crf is not for the task 'document_classification' but for 'token_classification'"),
        ({"dim": "wide"}, r"model\.dim expected an integer, got 'wide'"),
        ({"vocab_size": "x"}, r"data\.vocab_size expected an integer"),
        ({"id2label": {}}, r"model\.id2label is set from the data; leave it out"),
        ({"model": 3}, r"expected model to be a dict of its keys, got 3; write model=\{\.\.\.\}\."),
        ({"model": {"dimm": 3}}, r"unknown key 'model\.dimm'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        longspan.train("quickstart", data=frame, run=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_settings_take_what_python_has(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": {"use_cache": False}, "mixers": ("additive", "lstm"), "train": tmp_path / "a.csv"}
    made = recipes.load("classify", settings=given)
    assert made.model["mixers"] == ["additive", "lstm"]
    assert made.model["use_cache"] is False
    assert made.data.train == str(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda frame: frame.rename(columns={"text": "words"}), "expected a column 'text' in the DataFrame"),
        (lambda frame: frame.assign(label=None), "the DataFrame with no label in 240 rows"),
        (lambda frame: frame.assign(label=["a", 1.5] * 120), "expected values of one type in column 'label'"),
        (lambda frame: frame[:0], "expected rows in the DataFrame"),
        (lambda frame: (["a", "b"], ["x"]), "expected as many values in each column of the pair"),
        (lambda frame: pd.concat([frame, frame]), "expected an index that names each row"),
        (lambda frame: 3, "expected a path, a DataFrame"),
        (lambda frame: {"test": frame}, "expected training data, got only a test split; add a split 'train'"),
    ],
)
def test_bad_data_leave_nothing(data: Any, message: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as error:
        longspan.train("quickstart", data=data(frame), run=tmp_path / "run", progress=False)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_texts_and_paths_are_told_apart(run: TrainedRun, animals: Path) -> None:
    with pytest.raises(UserError, match="expected the path of a file or folder, got the text 'a cat'; give a list"):
        longspan.predict(run, "a cat")
    with pytest.raises(UserError, match="expected either texts or paths of files and folders, got the text 'a cat'"):
        longspan.predict(run, ["a cat", str(animals)])
    with pytest.raises(UserError, match="there is no file or folder 'animal'"):
        longspan.predict(run, ["animal"])
    with pytest.raises(UserError, match="expected a list of texts, a DataFrame or a Dataset, got text of 5 characters"):
        run.predict("a cat")
    # A text, though it names a file.
    assert run.predict([str(animals)])[0].error is None
