"""Texts with spans, as annotation tools write them: read, refused with their place, and written."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import longspan
from longspan.data.columns.annotations import WRITERS, Span
from longspan.data.sources.loading import load
from longspan.errors import UserError
from longspan.tasks.token_classification.labelled_documents import columns
from longspan.tasks.token_classification.options import TokenData
from longspan.verbs.predict import print_predictions
from longspan.verbs.trained import TrainedRun

TEXT = "Ann Lee went to Köln.\nBo-Ba stayed in Rome, didn't she?"
SPANS = [Span(0, 7, "PER"), Span(16, 20, "LOC"), Span(38, 42, "LOC")]
WORDS = [
    "Ann",
    "Lee",
    "went",
    "to",
    "Köln",
    ".",
    "Bo",
    "-",
    "Ba",
    "stayed",
    "in",
    "Rome",
    ",",
    "did",
    "n't",
    "she",
    "?",
]
LABELS = ["B-PER", "I-PER", "O", "O", "B-LOC", *["O"] * 6, "B-LOC", *["O"] * 5]
LISTS = [list(span[:3]) for span in SPANS]
OBJECTS = [{"start": a, "end": b, "label": label} for a, b, label, _ in SPANS]
VALUES = [{"start": a, "end": b, "text": TEXT[a:b], "labels": [label]} for a, b, label, _ in SPANS]
TASK: dict[str, Any] = {
    "data": {"text": TEXT},
    "annotations": [{"result": [{"type": "labels", "value": one} for one in VALUES]}],
}
FORMS: dict[str, Any] = {
    "spaCy": {"text": TEXT, "entities": LISTS},
    "spaCy pair": [TEXT, {"entities": LISTS}],
    "Doc.to_json": {"text": TEXT, "ents": OBJECTS},
    "Prodigy": {"text": TEXT, "spans": OBJECTS, "answer": "accept"},
    "doccano label": {"id": 1, "text": TEXT, "label": LISTS, "Comments": []},
    "doccano labels": {"text": TEXT, "labels": LISTS},
    "doccano relations": {
        "text": TEXT,
        "entities": [{"id": 3, "label": c, "start_offset": a, "end_offset": b} for a, b, c, _ in SPANS],
        "relations": [],
    },
    "Label Studio": TASK,
    "Label Studio, other name": TASK | {"data": {"review": TEXT, "number": 3}},
    "Label Studio JSON-MIN": {"text": TEXT, "id": 5, "label": VALUES, "annotator": 1},
}


def read(path: Path, **settings: Any) -> dict[str, list[Any]]:
    data = TokenData(path=str(path), validation_fraction=0.0, **settings)
    return load(data, columns(data)).splits["train"].to_dict()


def written(path: Path, rows: Any) -> Path:
    lines = "\n".join(map(json.dumps, rows)) if path.suffix == ".jsonl" else json.dumps(rows)
    path.write_text(lines, encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_spans_is_read_as_words_and_labels(tmp_path: Path, form: str, suffix: str) -> None:
    # Once more without spans: all words are outside.
    found = read(written(tmp_path / f"a{suffix}", [FORMS[form], {"text": "No one.", "entities": []}]))
    assert found["tokens"] == [WORDS, ["No", "one", "."]]
    assert found["labels"] == [LABELS, ["O"] * 3]
    assert found["sentences"] == [[6, 11], [3]]


def test_the_words_are_those_of_the_tool_where_it_names_them(tmp_path: Path) -> None:
    places = [(0, 3), (4, 7), (7, 8), (8, 10)]
    text = "Ann 300\nkm"
    row = {
        "text": text,
        "tokens": [{"text": text[a:b], "start": a, "end": b} for a, b in places],
        "spans": [{"start": 4, "end": 10, "label": "X"}],
    }
    found = read(written(tmp_path / "a.jsonl", [row]))
    assert found["tokens"] == [["Ann", "300", "km"]]
    assert found["labels"] == [["O", "B-X", "I-X"]]
    # A span over a line break joins the lines.
    assert found["sentences"] == [[3]]


def test_spans_of_two_texts_are_refused(tmp_path: Path) -> None:
    results = [{"type": "labels", "to_name": f"text{number}", "value": one} for number, one in enumerate(VALUES)]
    path = written(tmp_path / "spans.jsonl", [TASK | {"annotations": [{"result": results}]}])
    with pytest.raises(UserError, match="spans of several texts"):
        read(path)


def test_each_character_can_be_a_word(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [{"text": "我爱北京。", "entities": [[2, 4, "LOC"]]}])
    with pytest.raises(UserError, match=r"ends inside a word.*data.tokens=characters"):
        read(path)
    assert read(path, tokens="characters")["labels"] == [["O", "O", "B-LOC", "I-LOC", "O"]]


def of(*spans: object, text: str = TEXT, **more: object) -> dict[str, object]:
    return {"text": text, "entities": [*spans], **more}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (of([0, 7, "A"], [4, 12, "B"]), r"overlapping spans \(0 to 7 and 4 to 12 of 55 .*'B' at 'Ann \[Lee went\] to"),
        (of([0, 7, "A"], [0, 7, "A"]), "overlapping spans"),
        (of([0, 5, "A"]), r"ends inside a word \(0 to 5 .* at '\[Ann L\]ee went"),
        (of([0, 99, "A"]), "outside the text.*0 to 99 of 55"),
        (of([-3, 3, "A"]), "outside the text"),
        (of([3, 3, "A"]), "empty span"),
        (of([7, 4, "A"]), "empty span"),
        (of([0, 4, "A"]), r"white space at the end of a span .*'\[Ann \]Lee"),
        (of(["0", 4, "A"]), "span without offsets"),
        (of([0, 3, None]), "span without one label"),
        (of([0, 3]), "no spans"),
        (of("Ann"), "no spans"),
        (of(["x", "y"], labels=[[0, 3, "A"]]), "two lists of spans .'labels' and 'entities'.*data.label_column"),
        ({"text": TEXT, "spans": OBJECTS, "answer": "reject"}, "annotation that was rejected"),
        ({"text": TEXT, "label": [{"start": 0, "end": 3, "labels": ["A", "B"]}]}, "span without one label"),
        ({"text": TEXT, "label": [{"start": 0, "end": 3, "text": "Bob", "labels": ["A"]}]}, "which is to be 'Bob'"),
        ({"data": {"text": TEXT}, "annotations": []}, "no labels"),
        ({"data": {"text": TEXT}, "annotations": TASK["annotations"] + [{"result": []}]}, "annotations that differ"),
        ({"data": {"a": TEXT, "b": TEXT}, "annotations": []}, "no text .expected data.text"),
        (of([8, 12, "LOC"], text="Käse im Köln"), None),
        (of([9, 14, "LOC"], text="Käse im Köln"), "bytes of UTF-8"),
        (of([3, 6, "PER"], text="😀 Ann left."), "UTF-16 units"),
    ],
)
def test_what_is_wrong_with_a_span_is_said_with_its_place(tmp_path: Path, row: object, message: str | None) -> None:
    path = written(tmp_path / "a.jsonl", [of([0, 7, "PER"]), row])
    if message is None:
        assert len(read(path)["tokens"]) == 2
        return
    with pytest.raises(UserError, match=message) as error:
        read(path)
    assert "a.jsonl, line 2" in str(error.value)
    assert len(read(path, skip_bad_rows=True)["tokens"]) == 1


def test_offsets_that_can_be_read_in_two_ways_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # As UTF-16 units, the span is "a".
    found = read(written(tmp_path / "a.jsonl", [of([3, 4, "X"], text="😀 a,b")]))
    assert found["labels"] == [["O", "O", "B-X", "O"]]
    assert "they are read as characters" in capsys.readouterr().err


def test_words_with_labels_are_read_as_before_beside_a_text(tmp_path: Path) -> None:
    row = {"text": "A b", "tokens": ["A", "b"], "labels": ["X", "Y"], "label": "news"}
    found = read(written(tmp_path / "a.jsonl", [row]))
    assert found["tokens"] == [["A", "b"]]
    assert found["labels"] == [["X", "Y"]]


def rows(count: int) -> list[dict[str, Any]]:
    names, cities = ["Ann Lee", "Bo", "Cy Day"], ["Rome", "Köln", "New York"]
    found = []
    for number in range(count):
        name, city = names[number % 3], cities[number // 3 % 3]
        text = f"{name} went to {city}, didn't she?\nNo {number}."
        start = text.index(city)
        found.append(
            {"text": text, "entities": [[0, len(name), "PER"], [start, start + len(city), "LOC"]]},
        )
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun[Any]:
    settings: dict[str, Any] = {"dim": 16, "heads": 2, "num_train_epochs": 6, "progress": False}
    return longspan.train("ner", data=rows(60), run=tmp_path_factory.mktemp("spans") / "run", **settings)


@pytest.mark.parametrize("tool", WRITERS)
def test_what_is_predicted_is_read_back(
    run: TrainedRun[Any], tmp_path: Path, tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "data.jsonl", rows(9))
    out = tmp_path / ("out.json" if tool == "label-studio" else "out.jsonl")
    print_predictions(run.folder, [path], io.StringIO(), stdin=io.BytesIO(), format=tool, output=out)
    if tool == "label-studio":
        tasks = json.loads(out.read_text(encoding="utf-8"))
        # As a person accepts them.
        accepted = [{"data": task["data"], "annotations": task["predictions"]} for task in tasks]
        out.write_text(json.dumps(accepted), encoding="utf-8")
    right, found = read(path), read(out)
    assert found["tokens"] == right["tokens"]
    assert found["labels"] == right["labels"], "learned by heart"
    assert longspan.evaluate(run.folder, data=str(out)).scores.f1 == 1
    assert [one.text for one in longspan.predict(run.folder, out)] == [row["text"] for row in rows(9)]


def test_rows_that_cannot_be_predicted_are_noted(
    run: TrainedRun[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    path = written(tmp_path / "data.jsonl", [*rows(1), {"text": " "}])
    with pytest.raises(UserError, match="no predictions for 1 of 2"):
        print_predictions(run.folder, [path], io.StringIO(), stdin=io.BytesIO(), format="label-studio", output=out)
    assert len(json.loads(out.read_text())) == 1
    assert re.search(r"data.jsonl, line 2: no ", capsys.readouterr().err)


@pytest.mark.parametrize("kind", ["dicts", "pairs", "frame", "tasks"])
def test_spans_in_memory(run: TrainedRun[Any], kind: str) -> None:
    given = rows(9)
    data: Any = given
    if kind == "pairs":
        data = [(row["text"], {"entities": [tuple(one) for one in row["entities"]]}) for row in given]
    if kind == "frame":
        data = pd.DataFrame(given)
    if kind == "tasks":
        values = [[{"value": {"start": a, "end": b, "labels": [c]}} for a, b, c in row["entities"]] for row in given]
        data = [
            {"data": {"text": row["text"]}, "annotations": [{"result": value}]}
            for row, value in zip(given, values, strict=True)
        ]
    assert run.evaluate(data).scores.f1 == 1
    found: Any = run.predict(data)
    assert [one.spans[0]["text"] for one in found][:2] == ["Ann Lee", "Bo"]
    if kind == "dicts":
        assert "text" not in found[0].to_dict()
        assert "text" not in found.to_pandas()


def test_plain_labels_are_a_span_for_each_word() -> None:
    from longspan.tasks.token_classification.prediction import WordsPrediction

    one = WordsPrediction("", None, ["a", "b"], ["X", "O"], [1, 1], [[0, 1], [2, 3]], [2], None, "a b")
    assert json.loads(one.annotated("spacy")) == {"text": "a b", "entities": [[0, 1, "X"]]}
