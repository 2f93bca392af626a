"""No message shows what a document says, wherever it stands and whatever is wrong with it or near it."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longspan.data.columns.files import File
from longspan.data.columns.kinds import Column, Label, Labels, Number, Numbers, Text, WordLabels, Words
from longspan.data.sources.loading import load
from longspan.data.sources.paths import read_paths
from longspan.errors import UserError
from longspan.tasks.document_classification.options import ClassificationData

SECRET = "my PIN is 4711, and Alice must never ever hear of it"
PIECES = ("4711", "Alice", "hear", "PIN")


class Settings:
    """Settings with columns x and y."""

    def __init__(self, **settings: Any) -> None:
        self.x_column, self.y_column = "x", "y"
        vars(self).update(vars(ClassificationData(**{"validation_fraction": 0.0, **settings})))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "cache" / "downloads")


def told(call: Callable[[], Any]) -> str:
    """Return the message of a mistake, which must be one short line."""
    with pytest.raises(UserError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 900
    return message


def silent(message: str) -> None:
    assert not [piece for piece in PIECES if piece in message], message


COLUMNS: dict[str, tuple[Column, list[Any]]] = {
    "text": (Text("text", "x_column"), [[SECRET], {"a": SECRET}, 4711]),
    "label": (Label("label", "x_column"), [[SECRET], {SECRET: 1}]),
    "labels": (Labels("labels", "x_column"), [f'["{SECRET}"', [SECRET, None], [[SECRET]], {SECRET: 1}, 4711]),
    "number": (Number("score", "x_column"), [SECRET, [SECRET], {SECRET: 1}]),
    "numbers": (Numbers("scores", "x_column"), [SECRET, [SECRET], [1, [SECRET]], {SECRET: 1}]),
    "words": (Words("tokens", "x_column"), [f'["{SECRET}"', [SECRET, 1], [[SECRET]], {SECRET: 1}]),
    "word labels": (WordLabels("tags", "x_column", of="tokens"), [SECRET, f'["{SECRET}"', [SECRET, None], {SECRET: 1}]),
    "file": (File("file", "x_column"), [SECRET, SECRET * 99, [SECRET], f"{SECRET}\0"]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_cells(tmp_path: Path, kind: str) -> None:
    column, cells = COLUMNS[kind]
    columns = [Words("tokens", "y_column"), column] if kind == "word labels" else [column]
    for number, cell in enumerate(cells):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps({"x": cell, "y": f"{SECRET} {SECRET}"}) + "\n")
        silent(told(lambda path=path: load(Settings(path=str(path)), columns, training=False)))  # type: ignore[misc]
        try:
            silent("".join(row.problem for row in read_paths([path], columns, Settings())))
        except UserError as error:
            silent(str(error))


CSV = {
    "no header": f"{SECRET},good\nb,bad\n",
    "no header, short": "Alice is here.,good\nb,bad\n",
    "another separator": f"{SECRET};good\nb;bad\n",
    "a quotation mark": f'text,label\n"{SECRET},good\n',
    "a quotation mark in the first row": f'"{SECRET},good\n',
    "too many fields": f"text,label\n{SECRET},{SECRET},good\n",
    "a longer row": f"text,label\na,x\n{SECRET}\n",
    "a wrong name": f"txt,label\n{SECRET},good\n",
    "an empty label": f"text,label\n{SECRET},\n",
    "a document as the label of a class": f"label,text\n{SECRET},x\nb,y\n",
    "one class": f"label,text\n{SECRET},x\n",
}


@pytest.mark.parametrize("name", CSV)
def test_csv(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.csv").write_text(CSV[name])
    config = ClassificationData(path=str(tmp_path / "a.csv"), validation_fraction=0.1)
    columns: list[Column] = [Text("text", "text_column"), Label("label", "label_column")]
    silent(told(lambda: load(config, columns, stratify="label")))
    for header in (True, False):
        config = ClassificationData(path=str(tmp_path / "a.csv"), header=header, label_column="lable")
        silent(told(lambda config=config: load(config, columns)))  # type: ignore[misc]


def test_encodings_and_lines(tmp_path: Path) -> None:
    contents = {
        "a.csv": f"text,label\n{SECRET} é,x\n".encode("latin-1"),
        "b.csv": f"{SECRET} é,label\n".encode("latin-1"),
        "a.jsonl": f'{{"text": "{SECRET}\n'.encode(),
        "b.jsonl": f'{{"{SECRET}": 1}}\n'.encode(),
        "c.jsonl": f'["{SECRET}"]\n'.encode(),
        "d.jsonl": "".join(f'{{"{SECRET} {number}": 1}}\n' for number in range(5000)).encode(),
        "a.txt": f"{SECRET} é".encode("latin-1"),
        "b.txt": f"{SECRET} é".encode("utf-16")[2:],
    }
    messages = []
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        for encoding in ("utf-8", "utf-16", "ascii", "auto"):
            config = ClassificationData(path=str(tmp_path / name), encoding=encoding)
            columns: list[Column] = [Text("text", "text_column")]
            try:
                load(config, columns)
                messages.append("")
            except UserError as error:
                messages.append(str(error))
    silent(" ".join(messages))
    assert max(map(len, messages)) < 900
    # Six files are mistakes in any encoding, and "auto" reads the two others.
    assert sum(map(bool, messages)) > 24
    pair: list[Column] = [Text("text", "text_column"), Text("other", "label_column")]
    for row in read_paths(["-"], pair, ClassificationData(), stdin=io.BytesIO(b"\n".join(contents.values()))):
        silent(row.problem)


def test_parquet_and_data_sets(tmp_path: Path) -> None:
    pq.write_table(pa.table({SECRET: [SECRET], "label": [SECRET]}), tmp_path / "a.parquet")
    columns: list[Column] = [Text("text", "text_column"), Label("label", "label_column")]
    silent(told(lambda: load(ClassificationData(path=str(tmp_path / "a.parquet")), columns)))
    (tmp_path / "hub").mkdir()
    lines = [{"text": 1, "label": "x"}, {"text": [SECRET], "label": {SECRET: SECRET}}, {SECRET: SECRET}]
    (tmp_path / "hub" / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    silent(told(lambda: load(ClassificationData(path=f"hub:{tmp_path / 'hub'}"), columns)))


def test_labels_are_shown_as_far_as_they_are_no_documents(tmp_path: Path) -> None:
    columns: list[Column] = [Text("text", "text_column"), Label("label", "label_column")]
    (tmp_path / "a.csv").write_text("text,label\na,good\nb,bad\n")
    for label, shown in ((SECRET, f"text of {len(SECRET)} characters"), ("short", "'short'")):
        (tmp_path / "v.csv").write_text(f'text,label\na,"{label}"\n')
        config = ClassificationData(path=str(tmp_path / "a.csv"), validation=str(tmp_path / "v.csv"))
        message = told(lambda config=config: load(config, columns))  # type: ignore[misc]
        assert f"in the validation data, got {shown} (first: v.csv, row 1)" in message


def test_names_of_files_stay_on_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    (folder / "a\nb\x1b[31m.txt").write_bytes(b"\xff")
    (folder / "c\nd.csv").write_text("x,y\n1,2\n")
    columns: list[Column] = [Text("text", "text_column")]
    message = told(lambda: load(ClassificationData(path=str(folder)), columns))
    assert r"(first: a\nb\x1b[31m.txt, byte 0)" in message
    assert r"in c\nd.csv, got" in told(lambda: load(ClassificationData(path=str(folder / "c\nd.csv")), columns))
    (row,) = read_paths([folder], columns, ClassificationData())
    assert row.where == r"a\nb\x1b[31m.txt, byte 0"
