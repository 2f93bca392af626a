"""Labels of words from the command line: reading, training, scoring, prediction, pipelines, mistakes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from drawing import drawn
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from longspan import cli, evaluate, explain, predict, recipes, train
from longspan.errors import UserError
from longspan.testing import check_task

PLACES = ["Rome", "Lisbon", "Kyoto", "New York", "Port Said"]
SMALL = [
    *("data.vocab_size=300", "model.dim=16", "model.heads=2", "model.depth=1", "model.feed_forward_dim=16"),
    *("model.word_buckets=2000", "model.dropout=0.0"),
]


def documents(number: int, first: int = 0) -> list[list[tuple[list[str], list[str]]]]:
    """Documents of two sentences in which places are spans."""
    found = []
    for n in range(first, first + number):
        sentences = []
        for verb, place in (("saw", PLACES[n % 5]), ("left", PLACES[n % 3])):
            words = place.split()
            labels = ["O", "O", "B-LOC", *["I-LOC"] * (len(words) - 1), "O"]
            sentences.append((["She" if n % 2 else "He", verb, *words, "."], labels))
        found.append(sentences)
    return found


def write_columns(path: Path, number: int, first: int = 0) -> Path:
    lines = []
    for n, sentences in enumerate(documents(number, first)):
        lines.append(f"# newdoc id = {n}")
        for words, labels in sentences:
            lines += [*(f"{word}\tX\t{label}" for word, label in zip(words, labels, strict=True)), ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_table(path: Path, number: int) -> Path:
    rows = [
        {"tokens": [word for words, _ in sentences for word in words],
         "labels": [label for _, labels in sentences for label in labels],
         "sentences": [len(words) for words, _ in sentences]}
        for sentences in documents(number)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("places")
    for split, number, first in (("train", 60, 0), ("dev", 10, 60), ("test", 10, 70)):
        write_columns(folder / f"{split}.txt", number, first)
    learning = ["training.num_train_epochs=12", "training.learning_rate=0.01", "training.batch_tokens=256"]
    overrides = [f"data.path={folder}", *SMALL, *learning, "data.max_length=0"]
    train(recipes.load("ner", overrides), run=folder / "run", progress=False)
    return folder / "run"


Command = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def give(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        return code, *capsys.readouterr()

    return give


@pytest.mark.slow
def test_what_the_verbs_rely_on(tmp_path: Path) -> None:
    table = write_table(tmp_path / "rows.jsonl", 60)
    check_task("token_classification", table, [*SMALL, "model.crf=true", "model.word_characters=true"])


@pytest.mark.slow
def test_it_learns_scores_and_shows_its_errors(run: Path, command: Command) -> None:
    code, out, _ = command("evaluate", str(run))
    assert code == 0
    assert "read by document" in out
    result = json.loads((run / "evaluation/metrics.json").read_text())
    assert result["f1"] > 0.9
    assert result["per_type"]["LOC"]["support"] == 20
    assert drawn(run / "evaluation/confusion.png")
    code, out, _ = command("evaluate", str(run), "data.unit=sentence", "--json")
    assert code == 0
    assert json.loads(out)["data_summary"]["documents"] == 20


@pytest.mark.slow
def test_documents_longer_than_a_limit_are_read_in_windows(run: Path) -> None:
    scores = evaluate(run, overrides=["data.max_length=8"])
    assert scores.details["data_summary"]["windows"] > 10
    assert scores.scores.per_type["LOC"]["support"] == 20


def test_a_word_of_a_padded_document_is_explained(run: Path) -> None:
    words = ["She", "saw", "Rome", "."] * 9
    # Batches are padded to lengths such as 36 and 40, and this document has a length between them.
    found = explain(run, [{"tokens": [*words, "He"]}], at=3)
    assert found.prediction["label"] == "B-LOC"
    assert len(found.pieces()) == 37


@pytest.mark.slow
def test_raw_text_and_words_get_labels_where_they_are(run: Path, tmp_path: Path, command: Command) -> None:
    text = "He saw New York.\n\nShe left  Rome.\n"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    code, out, _ = command("predict", str(run), str(tmp_path / "a.txt"))
    assert code == 0
    found = json.loads(out)
    assert [text[start:end] for start, end in found["offsets"]] == found["tokens"]
    assert found["sentences"] == [5, 4]
    spans = [(span["type"], span["text"], text[span["start"] : span["end"]]) for span in found["spans"]]
    assert spans == [("LOC", "New York", "New York"), ("LOC", "Rome", "Rome")]
    (tmp_path / "b.jsonl").write_text(
        '{"tokens": ["He", "saw", "Rome", "."]}\n{"tokens": []}\n{"tokens": ["x", 3]}\n{"tokens": "He saw Rome."}\n'
    )
    rows = list(predict(run, tmp_path / "b.jsonl"))
    assert [row.error for row in rows] == [None, "no tokens", rows[2].error, None]
    assert rows[0].to_dict()["labels"] == rows[3].to_dict()["labels"] == ["O", "O", "B-LOC", "O"]
    code, out, _ = command("predict", str(run), str(tmp_path / "a.txt"), "--format", "conll")
    assert code == 0
    assert out.splitlines()[:6] == ["# newdoc id = a.txt", "He\tO", "saw\tO", "New\tB-LOC", "York\tI-LOC", ".\tO"]
    code, _, err = command("predict", str(run), str(tmp_path / "a.txt"), "--format", "conl")
    assert code == 2
    assert "did you mean 'conll'" in err


@pytest.mark.slow
def test_a_pipeline_finds_the_same_spans(run: Path) -> None:
    model, tokenizer = AutoModelForTokenClassification.from_pretrained(run), AutoTokenizer.from_pretrained(run)
    text = "He saw New York. She left Port Said."
    label = pipeline("token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="simple")
    found = [(part["entity_group"], text[part["start"] : part["end"]].strip()) for part in label(text)]
    assert found == [("LOC", "New York"), ("LOC", "Port Said")]
    label = pipeline("token-classification", model=model, tokenizer=tokenizer)
    assert {part["entity"] for part in label(text)} == {"B-LOC", "I-LOC"}


@pytest.mark.slow
def test_a_label_that_training_lacks_counts_as_an_error(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "new.txt"
    path.write_text("He X O\nsaw X O\nRome X B-LOC\n. X O\n\nKim X B-PER\n")
    found = evaluate(run, str(path))
    assert found.scores.per_type["PER"]["recall"] == 0.0
    assert found.scores.recall == 0.5


@pytest.mark.slow
def test_labels_that_break_the_scheme(tmp_path: Path, command: Command) -> None:
    path = write_columns(tmp_path / "train.txt", 30)
    path.write_text(path.read_text() + "\nRome\tX\tI-LOC\n\nRome\tX\tO\n")
    code, _, err = command("train", "ner", f"data.path={path}", *SMALL)
    assert code == 2
    assert "expected labels in IOB2, got an I- that begins a span 1 times in the train data (first: 'I-LOC' of" in err
    for more, skipped in (("data.mend_labels=true", {}), ("data.skip_bad_rows=true", {"labels not in IOB2": 1})):
        given = [f"data.path={path}", "training.num_train_epochs=1", *SMALL, more]
        result = train("ner", given, run=tmp_path / more, progress=False)
        assert result.data["skipped"] == skipped


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["data.unit=page"], "data.unit"),
        (["data.strip=("], "expected data.strip to be a regular expression, got '('"),
        (["model.crf=true", "training.label_smoothing_factor=0.1"], "expected no label smoothing with model.crf"),
        (["data.label_column=7"], "expected a column '7' in train.txt, got the columns 1 to 3; set data.label_column"),
        (["data.label_column=1"], "one column; write the label of each word after it"),
        (["model.pooling=max"], "model.pooling is not for the task 'token_classification'"),
    ],
)
def test_mistakes(tmp_path: Path, overrides: list[str], told: str) -> None:
    path = write_columns(tmp_path / "train.txt", 30)
    with pytest.raises(UserError) as error:
        train("ner", [f"data.path={path}", *SMALL, *overrides], run=tmp_path / "run", progress=False)
    assert told in str(error.value)


def test_a_feature_of_words_is_read_and_asked_for(tmp_path: Path) -> None:
    path = write_columns(tmp_path / "train.txt", 30)
    given = [f"data.path={path}", "data.feature_column=2", "training.num_train_epochs=1", *SMALL]
    train("ner", given, run=tmp_path / "run", progress=False)
    (tmp_path / "a.txt").write_text("Rome X O\nis X O\n")
    (row,) = predict(tmp_path / "run", tmp_path / "a.txt")
    assert row.error is None
    (tmp_path / "b.txt").write_text("Rome is old.")
    (row,) = predict(tmp_path / "run", tmp_path / "b.txt")
    assert row.error == "no feature"


def test_the_baseline_reads_the_same_sentences(tmp_path: Path) -> None:
    from longspan.tasks.token_classification.baselines.crf import Crf

    recipe: Any = recipes.load("ner", [f"data.path={write_columns(tmp_path / 'train.txt', 30)}"])
    fitted = Crf().fit(recipe)
    assert fitted.scores["validation"].f1 == 1.0
    assert fitted.parameters > 0


@pytest.mark.parametrize("column", ["sentence_id", "Sentence #"])
@pytest.mark.parametrize("memory", [False, True])
def test_one_word_a_row_is_an_error(tmp_path: Path, column: str, memory: bool, run: Path) -> None:
    """Words read alone have no context, whatever their sentences are called."""
    lines = []
    for n, sentences in enumerate(documents(10)):
        for words, labels in sentences:
            lines += [f"{n},{word},{label}" for word, label in zip(words, labels, strict=True)]
    path = tmp_path / "words.csv"
    path.write_text("\n".join([f"{column},word,label", *lines]), encoding="utf-8")
    given: Any = pandas.read_csv(path) if memory else path
    settings = ["data.text_column=word", "data.label_column=label"]
    with pytest.raises(UserError, match=r"the words of a sentence in each row, got one word in each of") as error:
        train(
            "ner",
            [*settings, *([] if memory else [f"data.path={path}"])],
            data=given if memory else None,
            run=tmp_path / "run",
            progress=False,
        )
    if not memory:
        assert f"table.groupby(table[{column!r}].ffill(), sort=False)[['word', 'label']].agg(list)" in str(error.value)
    rows = [{"tokens": [word], "labels": ["O"]} for word in ("He", "saw", "Rome")]
    with pytest.raises(UserError, match="the words of a sentence in each row"):
        evaluate(run, rows)


@pytest.mark.parametrize("words", [1, 2])
def test_predictions_of_single_words_say_so(run: Path, words: int, capsys: pytest.CaptureFixture[str]) -> None:
    list(predict(run, [{"tokens": ["He", "saw"][:words]}] * 12))
    assert capsys.readouterr().err.count("each of the first 10 rows has one word") == (words == 1)
