"""Labelling documents: order, windows, broken ones, and every kind of input."""

import ast
import gzip
import io
import json

import pytest
import torch
from longspan.predict import read_documents

from longspan import LongspanConfig, LongspanForSequenceClassification, cli, predict, recipes
from longspan.data.files import Row
from longspan.data.tokens import build_tokenizer
from longspan.errors import UserError
from longspan.report import classification
from longspan.runs import load_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run that answers "yes" to documents with the word "good", and reads only their last four words."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    settings = ["data.tokens=words", "data.max_length=4", "data.keep=last", "model.dim=8", "model.depth=0",
                "model.heads=2", "model.position=none", "model.pooling=mean", "model.norm=none"]  # fmt: skip
    recipe = recipes.load("quickstart", settings)
    tokenizer = build_tokenizer(recipe.data, ["good bad film"])
    config = LongspanConfig(vocab_size=len(tokenizer), id2label={0: "no", 1: "yes"}, **recipe.model)
    model = LongspanForSequenceClassification(config)
    with torch.no_grad():
        model.longspan.embeddings.weight.zero_()
        model.longspan.embeddings.weight[tokenizer.convert_tokens_to_ids("good"), 0] = 1.0
        model.classifier.weight.zero_()
        model.classifier.weight[1, 0] = 20.0
        model.classifier.bias.copy_(torch.tensor([1.0, 0.0]))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(run_dir):
    return load_run(run_dir)


def rows(*texts):
    return [Row(text, None, f"row {number}") for number, text in enumerate(texts, 1)]


def test_labels_in_order(run):
    answers = list(predict.predict(run, rows("good film", "bad " * 300, "film " * 7 + "good")))
    assert [answer["label"] for answer in answers] == ["yes", "no", "yes"]
    assert [answer["where"] for answer in answers] == ["row 1", "row 2", "row 3"]
    assert sum(answers[0]["probabilities"].values()) == pytest.approx(1)
    assert answers[1]["probabilities"]["no"] == pytest.approx(1 / (1 + 2.718281828**-1))


def test_documents_are_cut_as_in_training(run):
    cut, kept = predict.predict(run, rows("good film film film film", "film film film film good"))
    assert (cut["label"], kept["label"]) == ("no", "yes")


def test_the_model_card_shows_how_to_get_the_same_from_a_pipeline(run, run_dir, capsys):
    result = {"labels": run.labels, "parameters": 1, "seconds": 1, "tokens_per_second": 1, "peak_memory_bytes": 1}
    code = classification.model_card(run.recipe, {**result, "data": {}}).split("```python\n")[1].split("```")[0]
    text = "good good film film film film film film good"
    exec(code.replace("PATH OF THIS FOLDER", str(run_dir)).replace("Some text.", text), {})
    (answer,) = predict.predict(run, rows(text))
    printed = ast.literal_eval(capsys.readouterr().out.strip())
    assert printed[0]["label"] == answer["label"]
    assert printed[0]["score"] == pytest.approx(answer["probabilities"][answer["label"]], abs=1e-6)


def test_broken_documents_keep_their_place(run):
    answers = list(predict.predict(run, rows("good", "", None, "  \n", "bad")))
    assert [answer.get("label") for answer in answers] == ["yes", None, None, None, "no"]
    assert answers[1] == {"where": "row 2", "error": "empty document"}
    assert answers[2] == {"where": "row 3", "error": "no text"}
    assert [answer.get("error") for answer in predict.predict(run, rows("", ""))] == ["empty document"] * 2
    assert list(predict.predict(run, [])) == []


def test_reads_no_further_than_a_window(run, monkeypatch):
    monkeypatch.setattr(predict, "WINDOW_DOCUMENTS", 3)
    read = []

    def source():
        for row in rows(*["good"] * 10):
            read.append(row.where)
            yield row

    answers = predict.predict(run, source())
    next(answers)
    assert len(read) == 3
    assert len(list(answers)) == 9
    monkeypatch.setattr(predict, "WINDOW_CHARACTERS", 5)
    read.clear()
    next(predict.predict(run, source()))
    assert len(read) == 2


def test_windows_change_nothing(run, monkeypatch):
    texts = rows(*[" ".join(["good"] * (n % 3) + ["bad"] * n) for n in range(1, 20)])
    whole = list(predict.predict(run, texts))
    monkeypatch.setattr(predict, "WINDOW_DOCUMENTS", 4)
    for one, other in zip(whole, predict.predict(run, texts), strict=True):
        assert one["label"] == other["label"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-6)


def test_what_was_read_before_a_failure_is_labelled(run):
    def source():
        yield from rows("good", "bad")
        raise UserError("reviews.csv, row 3: broken.")

    answers = predict.predict(run, source())
    assert [next(answers)["label"], next(answers)["label"]] == ["yes", "no"]
    with pytest.raises(UserError, match="row 3"):
        next(answers)


def read(path, stdin=b""):
    return [(row.text, row.where) for row in read_documents(str(path), "text", io.BytesIO(stdin))]


def test_standard_input():
    stdin = b'a line\r\n{"text": "from json", "id": 1}\n{"other": 1}\n{not json}\n\xff\xfe\n\n{"text": 5}'
    assert [text for text, _ in read("-", stdin)] == ["a line", "from json", None, "{not json}", None, "", "5"]
    assert read("-", b"x")[0][1] == "standard input, line 1"


def test_files_and_folders(tmp_path):
    (tmp_path / "b.txt").write_text("two\nlines")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/a.txt").write_bytes(b"\xff")
    assert read(tmp_path / "b.txt") == [("two\nlines", str(tmp_path / "b.txt"))]
    assert read(tmp_path) == [("two\nlines", str(tmp_path / "b.txt")), (None, str(tmp_path / "inner/a.txt"))]
    (tmp_path / "rows.csv").write_text('text,label\n"one, two",x\nthree,y\n')
    assert [text for text, _ in read(tmp_path / "rows.csv")] == ["one, two", "three"]
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.write('{"text": "zipped"}\n')
    assert [text for text, _ in read(tmp_path / "rows.jsonl.gz")] == ["zipped"]


def test_what_cannot_be_read(tmp_path):
    for path, message in (
        (tmp_path / "gone.csv", "there is no file or folder"),
        (tmp_path, "there are no txt files"),
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
    assert captured.err == "longspan: 1 of 3 documents could not be labelled; their lines say why.\n"


def test_malformed_lines_keep_their_place(run_dir, tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"text": "good"}\n{"text": "go\n{"text": "bad"}\n')
    assert cli.main(["predict", str(run_dir), str(tmp_path / "rows.jsonl")]) == 2
    captured = capsys.readouterr()
    first, bad, last = (json.loads(line) for line in captured.out.splitlines())
    assert (first["label"], last["label"]) == ("yes", "no")
    assert bad["where"] == "rows.jsonl, line 2"
    assert bad["error"].startswith("not a JSON object (")
    assert captured.err == "longspan: 1 of 3 documents could not be labelled; their lines say why.\n"


def test_the_command_reads_standard_input(run_dir, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"good\nbad film\n")))
    assert cli.main(["predict", str(run_dir), "--json"]) == 0
    assert [json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()] == ["yes", "no"]
