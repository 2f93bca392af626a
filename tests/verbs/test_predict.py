"""Labelling documents: order, windows, broken ones, and every kind of input."""

import ast
import csv
import dataclasses
import gzip
import io
import json
import os
import re
from typing import Any

import datasets
import pytest
import torch
from decisive_words import write_run
from safetensors.torch import load_file, save_file

from longspan import cli, predict
from longspan.data.sources import paths
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.paths import read_paths
from longspan.errors import UserError
from longspan.report.card import model_card
from longspan.results import TrainingResult
from longspan.results.predictions import NumberPrediction
from longspan.tasks.base import answering
from longspan.tasks.base.classes import ClassPrediction, classification_scores
from longspan.tasks.document_classification.options import ClassificationData
from longspan.tasks.document_classification.task import DocumentClassification
from longspan.verbs import predict as predicting
from longspan.verbs.predict import print_predictions
from longspan.verbs.runs import load_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run that answers "yes" to documents with the word "good", and reads only their last four words."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    return write_run(folder, ["no", "yes"], "good", "yes", "good bad film", ["data.max_length=4", "data.keep=last"])


@pytest.fixture(scope="module")
def run(run_dir):
    return load_run(run_dir)


def rows(*texts):
    return [
        Row({}, f"row {number}", "no text") if text is None else Row({"text": text}, f"row {number}")
        for number, text in enumerate(texts, 1)
    ]


def test_labels_in_order(run):
    answers: list[ClassPrediction] = list(predict(run, rows("good film", "bad " * 300, "film " * 7 + "good")))
    assert [answer.label for answer in answers] == ["yes", "no", "yes"]
    assert [answer.where for answer in answers] == ["row 1", "row 2", "row 3"]
    assert answers[0].probabilities is not None
    assert answers[1].probabilities is not None
    assert sum(answers[0].probabilities.values()) == pytest.approx(1)
    assert answers[1].probabilities["no"] == pytest.approx(1 / (1 + 2.718281828**-1))


def test_documents_are_cut_as_in_training(run):
    cut, kept = predict(run, rows("good film film film film", "film film film film good"))
    assert (cut.label, kept.label) == ("no", "yes")


def test_the_model_card_shows_how_to_get_the_same_from_a_pipeline(run, run_dir, capsys, monkeypatch):
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(TrainingResult)}
    scores = classification_scores(torch.eye(2), torch.arange(2), ["no", "yes"])
    values |= {
        "scores": {"test": scores},
        "data": {},
        "details": {"labels": ["no", "yes"]},
        "parameters": 1,
        "seconds": 1.0,
    }
    card = model_card(run.recipe, TrainingResult(**values), ["additive"], "(nothing)")
    code = card.split("```python\n")[1].split("```")[0]
    text = "good good film film film film film film good"
    monkeypatch.chdir(run_dir)
    exec(code.replace("Some text.", text), {})
    (answer,) = predict(run, rows(text))
    printed = ast.literal_eval(capsys.readouterr().out.strip())
    assert printed[0]["label"] == answer.label
    assert printed[0]["score"] == pytest.approx(answer.probabilities[answer.label], abs=1e-6)


def test_broken_documents_keep_their_place(run):
    answers = list(predict(run, rows("good", "", None, "  \n", "bad")))
    assert [getattr(answer, "label", None) for answer in answers] == ["yes", None, None, None, "no"]
    assert answers[1].to_dict() == {"where": "row 2", "error": "empty document"}
    assert answers[2].to_dict() == {"where": "row 3", "error": "no text"}
    assert [answer.error for answer in predict(run, rows("", ""))] == ["empty document"] * 2
    assert list(predict(run, [])) == []


def test_reads_no_further_than_a_window(run, monkeypatch):
    monkeypatch.setattr(answering, "WINDOW_EXAMPLES", 3)
    read = []

    def source():
        for row in rows(*["good"] * 10):
            read.append(row.where)
            yield row

    answers = predict(run, source())
    next(answers)
    assert len(read) == 3
    assert len(list(answers)) == 9
    monkeypatch.setattr(answering, "WINDOW_CHARACTERS", 5)
    read.clear()
    next(predict(run, source()))
    assert len(read) == 2


def test_windows_change_nothing(run, monkeypatch):
    texts = rows(*[" ".join(["good"] * (n % 3) + ["bad"] * n) for n in range(1, 20)])
    whole = list(predict(run, texts))
    monkeypatch.setattr(answering, "WINDOW_EXAMPLES", 4)
    for one, other in zip(whole, predict(run, texts), strict=True):
        assert one.label == other.label
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-6)


def test_what_was_read_before_a_failure_is_labelled(run):
    def source():
        yield from rows("good", "bad")
        raise UserError("reviews.csv, row 3: broken.")

    answers = predict(run, source())
    assert [next(answers).label, next(answers).label] == ["yes", "no"]
    with pytest.raises(UserError, match="row 3"):
        next(answers)


def read(path, stdin=b""):
    """What the task's columns make of a source: the text or None, and its place."""
    config = ClassificationData()
    columns = [column for column in DocumentClassification("mine").columns(config) if not column.target]
    found = read_paths([str(path)], columns, config, stdin=io.BytesIO(stdin))
    return [(None if row.problem else row.values["text"], row.where) for row in found]


def test_standard_input():
    stdin = b'a line\r\n{"text": "from json", "id": 1}\n{"other": 1}\n{not json}\n\xff\xfe\n\n{"text": 5}'
    assert [text for text, _ in read("-", stdin)] == ["a line", "from json", None, "{not json}", None, None, "5"]
    assert read("-", b"x")[0][1] == "standard input, line 1"


def test_files_and_folders(tmp_path):
    (tmp_path / "b.txt").write_text("two\nlines")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/a.txt").write_bytes(b"\xff")
    assert read(tmp_path / "b.txt") == [("two\nlines", "b.txt")]
    assert read(tmp_path) == [("two\nlines", "b.txt"), (None, "inner/a.txt, byte 0")]
    (tmp_path / "rows.csv").write_text('text,label\n"one, two",x\nthree,y\n')
    assert [text for text, _ in read(tmp_path / "rows.csv")] == ["one, two", "three"]
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.write('{"text": "zipped"}\n')
    assert [text for text, _ in read(tmp_path / "rows.jsonl.gz")] == ["zipped"]


def test_what_cannot_be_read(tmp_path):
    for path, message in (
        (tmp_path / "gone.csv", "there is no file or folder"),
        (tmp_path, "expected text files .* got an empty folder"),
    ):
        with pytest.raises(UserError, match=message):
            read(path)
    (tmp_path / "rows.csv").write_text("words,label\nx,y\n")
    with pytest.raises(UserError, match="'text'"):
        read(tmp_path / "rows.csv")


def test_the_command_counts_what_failed(run_dir, tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"text": "good"}\n{"text": ""}\n{"text": "bad"}\n')
    assert cli.main(["predict", str(run_dir), str(tmp_path / "rows.jsonl")]) == 2
    captured = capsys.readouterr()
    answers = [json.loads(line) for line in captured.out.splitlines()]
    assert [answer.get("label") for answer in answers] == ["yes", None, "no"]
    assert captured.err == "longspan: there are no predictions for 1 of 3 examples; their lines say why.\n"


def test_malformed_lines_keep_their_place(run_dir, tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"text": "good"}\n{"text": "go\n{"text": "bad"}\n')
    assert cli.main(["predict", str(run_dir), str(tmp_path / "rows.jsonl")]) == 2
    captured = capsys.readouterr()
    first, bad, last = (json.loads(line) for line in captured.out.splitlines())
    assert (first["label"], last["label"]) == ("yes", "no")
    assert bad["where"] == "rows.jsonl, line 2"
    assert bad["error"].startswith("not a JSON object (")
    assert captured.err == "longspan: there are no predictions for 1 of 3 examples; their lines say why.\n"


def test_the_command_reads_standard_input(run_dir, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"good\nbad film\n")))
    assert cli.main(["predict", str(run_dir), "--json"]) == 0
    assert [json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()] == ["yes", "no"]


def test_a_folder_of_a_run_and_a_path_are_enough(run_dir, tmp_path):
    (tmp_path / "rows.csv").write_text("text\ngood film\nbad film\n")
    for source in (tmp_path / "rows.csv", str(tmp_path / "rows.csv")):
        assert [one.label for one in predict(run_dir, source)] == ["yes", "no"]
    # Standard input as bytes, for those who have it from elsewhere.
    assert [one.label for one in predict(str(run_dir), "-", stdin=io.BytesIO(b"good\n"))] == ["yes"]


def test_a_prediction_prints_what_it_holds(run):
    (one,) = predict(run, rows("good"))
    assert isinstance(one, ClassPrediction)
    assert one.to_dict() == {"where": "row 1", "label": "yes", "probabilities": one.probabilities}


def predicted(capsys, *arguments):
    """Run the verb on the command line; return its exit code, what it says of each place, and its last words."""
    capsys.readouterr()
    code = cli.main(["predict", *map(str, arguments)])
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    return code, {line["where"]: line.get("label") or line["error"] for line in lines}, captured.err


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Files of every kind, in folders of classes too, below the current directory."""
    for name, content in {
        "a.txt": "good film",
        "b.csv": "text,label\ngood,x\nbad,y\n",
        "news/alt.good/10001": "good",
        "news/alt.good/10002.old": "good",
        "news/rec.bad/10001": "bad",
        "news/rec.bad/deep/er/readme.md": "**bad**",
        "news/rec.bad/page.html": "<style>good{}</style><p>bad <b>good</b>",
        "news/rec.bad/picture.png": "",
        "news/rec.bad/.hidden": "bad",
        "other/a.txt": "bad film",
        "c.csv": "body;n\nGrüße good;1\n",
        "d.tsv": "bad\tgood\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="latin-1" if name == "c.csv" else "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


NEWS = {
    "alt.good/10001": "yes",
    "alt.good/10002.old": "yes",
    "rec.bad/10001": "no",
    "rec.bad/deep/er/readme.md": "no",
    "rec.bad/page.html": "yes",
}


def test_folders_of_classes_with_any_suffix_and_none(run_dir, sources, capsys):
    code, found, told = predicted(capsys, run_dir, "news")
    assert (code, found) == (0, NEWS)
    first, second = told.splitlines()
    assert first == "longspan: not read: 1 .png file (not in a format that is read as text)."
    assert second.startswith("longspan: 1 of 5 documents have more than the 4 tokens")
    assert predicted(capsys, run_dir, "news/rec.bad/deep/er/readme.md")[1] == {"readme.md": "no"}
    # A file by itself may have any suffix.
    (sources / "a.lock").write_text("good")
    assert predicted(capsys, run_dir, "a.lock")[1] == {"a.lock": "yes"}


def test_several_paths_in_their_order_and_with_their_names(run_dir, sources, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"good\n")))
    news = sources / "news"
    code, found, _ = predicted(capsys, run_dir, "a.txt", "b.csv", "-", f"{news}/", "other/a.txt", "./other")
    expected = {"a.txt": "yes", "b.csv, row 1": "yes", "b.csv, row 2": "no", "standard input, line 1": "yes"}
    expected |= {f"{news}/{where}": label for where, label in NEWS.items()}
    expected |= {"other/a.txt": "no", "./other/a.txt": "no"}
    assert (code, found) == (0, expected)
    assert list(found) == list(expected)
    answers = list(predict(run_dir, ["a.txt", sources / "b.csv"]))
    assert [answer.where for answer in answers] == ["a.txt", f"{sources}/b.csv, row 1", f"{sources}/b.csv, row 2"]
    assert list(predict(run_dir, [])) == []


def test_all_paths_are_looked_at_first_and_messages_name_the_one(run_dir, sources, capsys):
    code, found, told = predicted(capsys, run_dir, "a.txt", "other/b.txt")
    assert (code, found) == (2, {})
    assert told == "longspan: there is no file or folder 'other/b.txt'; check the path.\n"
    (sources / "other/b.csv").write_text("txt\ngood\n")
    code, found, told = predicted(capsys, run_dir, "b.csv", "other/b.csv")
    assert (code, len(found)) == (2, 2)
    assert told == "longspan: other/b.csv: expected a column 'text' in b.csv, got 'txt'; did you mean 'txt'?\n"
    assert predicted(capsys, run_dir, "-", "a.txt", "-")[2].startswith("longspan: expected standard input at most once")


def test_columns_encodings_and_separators_that_differ_from_training(run_dir, sources, capsys):
    _, _, told = predicted(capsys, run_dir, "c.csv")
    assert told.endswith("got 'body;n'; its fields seem to be separated by semicolons: set --delimiter semicolon.\n")
    _, _, told = predicted(capsys, run_dir, "c.csv", "--delimiter", ";")
    assert told.endswith("got 'body', 'n'; set --text-column to one of them.\n")
    given = ["c.csv", "--delimiter", "semicolon", "--text-column", "body"]
    code, found, told = predicted(capsys, run_dir, *given)
    assert (code, found) == (2, {"c.csv, row 1": "broken UTF-8"})
    assert told.endswith("their lines say why, and --encoding auto finds out encodings.\n")
    code, found, told = predicted(capsys, run_dir, *given, "--encoding", "auto")
    assert (code, found) == (0, {"c.csv, row 1": "yes"})
    assert told == "longspan: 1 of 1 documents is not in UTF-8: 1 latin-1.\n"
    assert predicted(capsys, run_dir, *given, "--encoding", "latin-1")[:2] == (code, found)
    _, _, told = predicted(capsys, run_dir, "d.tsv", "--no-header")
    assert told.endswith("without a header, columns are numbered from 1: set --text-column.\n")
    for column, label in (("1", "no"), ("2", "yes")):
        code, found, _ = predicted(capsys, run_dir, "d.tsv", "--no-header", "--text-column", column)
        assert (code, found) == (0, {"d.tsv, row 1": label})
    assert "did you mean 'latin" in predicted(capsys, run_dir, "a.txt", "--encoding", "latin-11")[2]
    assert [one.label for one in predict(run_dir, "d.tsv", header=False, text_column="2")] == ["yes"]


def test_data_sets_and_the_installed_packages(run_dir, sources, capsys, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", sources / "cache")
    (sources / "hub").mkdir()
    for split, text in (("train", "good"), ("test", "bad")):
        (sources / "hub" / f"{split}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    code, found, _ = predicted(capsys, run_dir, "hub:./hub", "a.txt")
    assert code == 0
    assert list(found.values()) == ["yes", "no", "yes"]
    installed = [paths.Row({"text": "good"}, "one/a.py")]
    monkeypatch.setattr(paths, "list_packages", lambda *_: installed)
    monkeypatch.setattr(paths, "read_packages", lambda rows, *_: iter(rows))
    assert predicted(capsys, run_dir, "packages")[:2] == (0, {"one/a.py": "yes"})


@pytest.mark.timeout(20)
def test_what_is_not_a_file_is_refused(run_dir, sources, capsys):
    (sources / "loop").symlink_to("loop")
    os.mkfifo(sources / "pipe.txt")
    (sources / "other" / "again").symlink_to(sources)
    for path, message in (("loop", "leads back to itself"), ("pipe.txt", "a named pipe"), ("other", "contains it")):
        code, found, told = predicted(capsys, run_dir, "a.txt", path)
        assert (code, found) == (2, {})
        assert message in told
        assert told.count("\n") == 1
    (sources / "two\nlines").mkdir()
    (sources / "two\nlines" / "a\tb.txt").write_text("good")
    code, found, told = predicted(capsys, run_dir, "a.txt", "two\nlines")
    assert (code, found) == (0, {"a.txt": "yes", r"two\nlines/a\tb.txt": "yes"})


def test_truncated_documents_say_so(run_dir, tmp_path, capsys):
    run = load_run(run_dir)
    short = dataclasses.replace(
        run, recipe=dataclasses.replace(run.recipe, data=dataclasses.replace(run.recipe.data, max_length=3))
    )
    (tmp_path / "long.txt").write_text("one two three four five six")
    (tmp_path / "short.txt").write_text("one")
    found = {one.where: one for one in predict(short, [tmp_path / "long.txt", tmp_path / "short.txt"])}
    long, other = (next(one for where, one in found.items() if name in where) for name in ("long", "short"))
    assert long.tokens_read == 3
    assert long.tokens_total > 3
    assert long.to_dict()["tokens_read"] == 3
    assert "tokens_read" not in other.to_dict()
    told = capsys.readouterr().err
    assert told.count("1 of 2 documents have more than the 3 tokens") == 1


def test_predictions_that_are_not_used_up_say_nothing(run_dir, capfd):
    """Python closes them at its end, when there is nothing left to say anything with."""
    answers = predict(load_run(run_dir), ["one two three four five six"] * 2)
    assert next(answers).tokens_read == 4
    answers.close()
    assert capfd.readouterr() == ("", "")


def test_weights_that_are_not_finite_give_no_predictions(tmp_path, capsys):
    folder = write_run(tmp_path / "mine", ["no", "yes"], "good", "yes", "good bad film")
    weights = load_file(folder / "model.safetensors")
    weights["classifier.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "text.txt").write_text("good film")
    code, found, told = predicted(capsys, folder, tmp_path / "text.txt")
    assert (code, found) == (2, {})
    assert "expected finite outputs of the model" in told
    assert told.count("\n") == 1


def test_error_rows_have_the_fields_of_the_task(run_dir, tmp_path):
    (tmp_path / "empty.txt").write_text(" ")
    (found,) = predict(run_dir, tmp_path / "empty.txt")
    assert (found.error, found.label, found.probabilities) == ("no text", None, None)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("some text that is no path", "got the text 'some text that is no path'; give a list of texts"),
        ("some\ntext", "got the text"),
        ({"text": "good"}, "expected a list of values for 'text', got text of 4 characters"),
        (3, "expected a list of texts, a DataFrame or a Dataset, got a number"),
        ([3], "row 1 of the list: expected text in column 'text', got a value of type int"),
    ],
)
def test_data_in_memory_are_refused_in_a_sentence(run_dir, source, told):
    with pytest.raises(UserError, match=told):
        list(predict(run_dir, source))


def test_any_key_of_the_data_can_be_set(run_dir, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("body,other\ngood,bad\n")
    code = cli.main(["predict", str(run_dir), str(tmp_path / "a.csv"), "data.text_column=body"])
    assert code == 0
    assert json.loads(capsys.readouterr().out)["label"] in ("yes", "no")
    assert cli.main(["predict", str(run_dir), str(tmp_path / "a.csv"), "data.text_colum=body"]) == 2
    assert "did you mean '--text-column'" in capsys.readouterr().err
    assert cli.main(["predict", str(run_dir), str(tmp_path / "a.csv"), "data.tokens=bytes"]) == 2
    assert "is what the model was trained with" in capsys.readouterr().err


def written(run_dir, capsys, *arguments):
    """Exit code of `predict` and what it says."""
    code = cli.main(["predict", str(run_dir), *map(str, arguments)])
    shown = capsys.readouterr()
    assert not shown.out
    return code, shown.err


def test_a_file_has_what_would_be_printed(run_dir, tmp_path, capsys):
    source, found = tmp_path / "films.csv", tmp_path / "found.csv"
    source.write_text("text\ngood film\n\nbad film\n", encoding="utf-8")
    _, printed, _ = predicted(capsys, run_dir, source)
    assert written(run_dir, capsys, source, "--output", found)[0] == 0
    table = found.read_text(encoding="utf-8")
    assert {row["where"]: row["label"] for row in csv.DictReader(io.StringIO(table))} == printed
    assert cli.main(["predict", str(run_dir), str(source), "--format", "csv"]) == 0
    assert capsys.readouterr().out == table
    code, said = written(run_dir, capsys, source, "--output", found)
    assert (code, found.read_text(encoding="utf-8")) == (2, table)
    assert "which exists; name another one, or --overwrite it" in said
    assert written(run_dir, capsys, source, "--output", found, "--overwrite")[0] == 0


def test_a_file_keeps_what_was_predicted_before_an_error(run_dir, tmp_path, capsys):
    source, found = tmp_path / "films.csv", tmp_path / "found.csv"
    source.write_text('text\ngood film\n""\n', encoding="utf-8")
    code, said = written(run_dir, capsys, source, "--output", found)
    assert code == 2
    assert "no predictions for 1 of 2 examples" in said
    assert len(found.read_text(encoding="utf-8").splitlines()) == 3

    (tmp_path / "more.csv").write_bytes(b'text\nbad film\n"never closed')
    code, said = written(run_dir, capsys, source, tmp_path / "more.csv", "--output", found, "--overwrite")
    assert code == 2
    assert len(found.read_text(encoding="utf-8").splitlines()) >= 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--output", "found.doc"], r"ends in \.csv, \.tsv, \.jsonl, \.parquet, \.xlsx, got 'found\.doc'; rename it"),
        (["--output", "found"], r"ends in \.csv, .* got 'found'"),
        (["--output", "nowhere/found.csv"], "expected a folder at 'nowhere' to write 'found.csv' to, got none"),
        (["--format", "parquet"], "expected --output FILE with --format parquet, which is not text"),
        (["--format", "csw"], r"--format .*csv"),
        (["missing.csv", "--output", "found.csv"], r"there is no file or folder 'missing\.csv'"),
        (["--json", "--format", "csv"], r"--json or --format csv, got both"),
        (["--json", "--output", "found.csv"], r"ends in \.json with --format json, got 'found\.csv'"),
        (
            ["--format", "tsv", "--output", "found.csv"],
            r"ends in \.tsv with --format tsv, got 'found\.csv'",
        ),
    ],
)
def test_files_that_cannot_be_written(run_dir, tmp_path, monkeypatch, capsys, arguments, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "films.csv").write_text("text\ngood film\n", encoding="utf-8")
    code, said = written(run_dir, capsys, "films.csv", *arguments)
    assert code == 2
    assert re.search(told, said)
    assert [path.name for path in tmp_path.iterdir()] == ["films.csv"]


def test_labels_below_a_probability_are_left_out(run, run_dir, tmp_path, capsys):
    documents = rows("good film", "film film", None)
    sure, unsure, bad = predict(run, documents, min_probability=0.999)
    shares = [one.probabilities for one in predict(run, documents)]
    in_memory = predicting.predict_given(run, ["good film", "film film"], min_probability=0.999)
    assert [one.to_dict().get("label") for one in in_memory] == ["yes", None]
    assert (sure.label, unsure.label, bad.label) == ("yes", None, None)
    assert max(shares[1].values()) < 0.999 < max(shares[0].values())
    assert unsure.to_dict() == {"where": "row 2", "probabilities": shares[1]}
    assert (
        "1 of 3 examples have no label, as the probability of the likeliest is below 0.999" in capsys.readouterr().err
    )
    (tmp_path / "films.txt").write_text("film film", encoding="utf-8")
    assert cli.main(["predict", str(run_dir), str(tmp_path / "films.txt"), "--min-probability", "0.999"]) == 0
    assert "label" not in json.loads(capsys.readouterr().out)
    assert cli.main(["predict", str(run_dir), str(tmp_path / "films.txt"), "--min-probability", "80"]) == 2
    assert "expected --min-probability from 0 to 1, got 80" in capsys.readouterr().err


def test_a_least_probability_needs_classes(run, monkeypatch):
    monkeypatch.setattr(type(run.task), "prediction", NumberPrediction)
    with pytest.raises(UserError, match=r"with a task that has one class per example, got .* NumberPrediction"):
        predict(run, rows("good"), min_probability=0.5)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_tables_on_a_terminal_do_not_control_it(run_dir, monkeypatch, kind):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    label = "\x1b]0;owned\x07"
    monkeypatch.setattr(
        predicting, "predict", lambda *_, **__: iter([ClassPrediction("row 1", None, label, {label: 1.0})])
    )
    out = Terminal()
    print_predictions(run_dir, ["-"], out, stdin=io.BytesIO(), format=kind)
    assert not {"\x1b", "\x07"} & set(out.getvalue())
    assert "owned" in out.getvalue()
