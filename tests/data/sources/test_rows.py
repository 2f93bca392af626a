"""Files are read exactly, whatever is in them, and mistakes in them are named with their place."""

import gzip
import io
import json
import lzma
import os
import re
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longspan.data.columns.kinds import Column, Label, Text, Words
from longspan.data.columns.values import label_text
from longspan.data.sources.formats.folders import document_file, list_classes, read_files
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.formats.schema import schema_of
from longspan.data.sources.paths import read_paths
from longspan.errors import UserError
from longspan.tasks.document_classification.options import ClassificationData

BROKEN = "broken UTF-8"
TEXT = Text("text", "text_column")
LABELLED: list[Column] = [TEXT, Label("label", "label_column")]


class Found(NamedTuple):
    text: Any
    label: Any
    where: str
    problem: str


def rows(path: Path, columns: Sequence[Column] = LABELLED, **settings: Any) -> list[Found]:
    found = read_paths([path], columns, ClassificationData(**settings))
    return [Found(row.values.get("text"), row.values.get("label"), row.where, row.problem) for row in found]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_csv_with_quotes_line_breaks_and_byte_order_mark(tmp_path: Path) -> None:
    content = '\ufefflabel, text \r\n1,"two\nlines, ""quoted"""\r\n\r\n 2.5 ,a "b" c\r\nx,Grüße 😀\n'
    assert rows(write(tmp_path / "a.csv", content)) == [
        ('two\nlines, "quoted"', "1", "a.csv, row 1", ""),
        ('a "b" c', "2.5", "a.csv, row 2", ""),
        ("Grüße 😀", "x", "a.csv, row 3", ""),
    ]


def test_tsv_and_any_case_of_suffix(tmp_path: Path) -> None:
    assert rows(write(tmp_path / "a.TSV", "text\tlabel\na, b\tpos\n")) == [("a, b", "pos", "a.TSV, row 1", "")]


def test_fields_beyond_the_limit_of_the_csv_module(tmp_path: Path) -> None:
    text = "word " * 60_000
    assert rows(write(tmp_path / "a.csv", f"text,label\n{text},pos\n"))[0].text == text


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson"])
def test_json_lines(tmp_path: Path, suffix: str) -> None:
    lines = ['{"text": "a\\nb", "label": 1}', "", '{"label": true, "text": "c"}', '{"text": "d"}', '{"label": null}']
    name = f"a{suffix}"
    assert rows(write(tmp_path / name, "\ufeff" + "\n".join(lines))) == [
        ("a\nb", "1", f"{name}, line 1", ""),
        ("c", "true", f"{name}, line 3", ""),
        ("d", None, f"{name}, line 4", "no label"),
        (None, None, f"{name}, line 5", "no text"),
    ]


def test_a_column_may_be_missing_in_the_first_json_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": "b", "label": "x"}\n')
    assert [row.label for row in rows(path)] == [None, "x"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    texts = pa.array([f"text {i}" for i in range(600)] + [None]).cast(kind)
    labels = pa.array([float(i % 3) for i in range(600)] + [float("nan")])
    pq.write_table(pa.table({"label": labels, "other": labels, "text": texts}), tmp_path / "a.parquet")
    found = rows(tmp_path / "a.parquet")
    assert found[0] == ("text 0", "0", "a.parquet, row 1", "")
    assert found[599] == ("text 599", "2", "a.parquet, row 600", "")
    assert found[600] == (None, None, "a.parquet, row 601", "no text")


@pytest.mark.parametrize(("name", "content"), [("a.csv", "text,label\nä,1\n"), ("a.jsonl", '{"text":"ä","label":1}')])
def test_packed_files(tmp_path: Path, name: str, content: str) -> None:
    for suffix, kind, pack in ((".gz", "gzip", gzip.compress), (".XZ", "xz", lzma.compress)):
        packed = write(tmp_path / f"{name}{suffix}", pack(content.encode()))
        assert [row[:2] for row in rows(packed)] == [("ä", "1")]
        with pytest.raises(UserError, match=f"is not a complete {kind} file"):
            rows(write(tmp_path / f"cut.{name}{suffix}", pack(content.encode() * 999)[:-20]))


def test_without_label_column(tmp_path: Path) -> None:
    assert rows(write(tmp_path / "a.csv", "text\nhello\n"), [TEXT]) == [("hello", None, "a.csv, row 1", "")]


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a.csv", b"text,label\nok,1\nbad \xff,1\nok,2\n", "a.csv, row 2"),
        ("a.csv", b"text,label\nok,1\nbad,\xff\nok,2\n", "a.csv, row 2"),
        (
            "a.jsonl",
            b'{"text":"ok","label":1}\n{"text":"\xff","label":1}\n{"text":"ok","label":2}\n',
            "a.jsonl, line 2",
        ),
        (
            "a.jsonl",
            b'{"text":"ok","label":1}\n{"text":"\\ud800","label":1}\n{"text":"ok","label":2}\n',
            "a.jsonl, line 2",
        ),
    ],
)
def test_broken_utf8_is_named_and_the_rest_read(tmp_path: Path, name: str, content: bytes, where: str) -> None:
    found = rows(write(tmp_path / name, content))
    assert [row.text for row in found] == ["ok", None, "ok"]
    assert found[1] == (None, None, where, BROKEN)


@pytest.mark.parametrize(
    ("name", "bad", "where", "problem"),
    [
        ("a.csv", "c,1,2", "a.csv, row 2 (line 4)", r"wrong number of fields \(expected 2 as in the header, got 3\)"),
        ("a.csv", "c", "a.csv, row 2 (line 4)", r"wrong number of fields \(expected 2 as in the header, got 1\)"),
        ("a.jsonl", '{"text" "b"}', "a.jsonl, line 2", r"not a JSON object \(.* at column 9\)"),
        ("a.jsonl", '["b", 1]', "a.jsonl, line 2", r"not a JSON object \(got a value of type list\)"),
        ("a.jsonl", '{"text": ' + "9" * 5000 + "}", "a.jsonl, line 2", r"not a JSON object \(.+\)"),
        ("a.jsonl", "[" * 100_000, "a.jsonl, line 2", r"not a JSON object \(.+\)"),
    ],
)
def test_malformed_rows_are_named_and_the_rest_read(
    tmp_path: Path, name: str, bad: str, where: str, problem: str
) -> None:
    good = ['text,label\n"o\nk",1', "ok,2"] if name == "a.csv" else ['{"text":"o\\nk","label":1}', '{"text":"ok"}']
    first, found, last = rows(write(tmp_path / name, f"{good[0]}\n{bad}\n{good[1]}\n"))
    assert (first.text, last.text) == ("o\nk", "ok")
    assert found[:3] == (None, None, where)
    # What is wrong inside a line is said in Python's words.
    assert re.fullmatch(problem, found.problem)


def test_a_wrong_column_is_found_among_malformed_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"tixt": "a", "label": 1}\n{"text"\n')
    with pytest.raises(UserError, match=r"expected a column 'text' in .*, got 'tixt', 'label'"):
        rows(path)


def test_broken_utf8_in_parquet(tmp_path: Path) -> None:
    text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff"]).buffers())
    pq.write_table(pa.table({"text": text, "label": [1, 2]}), tmp_path / "a.parquet")
    assert [row.problem for row in rows(tmp_path / "a.parquet")] == ["", BROKEN]
    pq.write_table(pa.table({"text": text.dictionary_encode(), "label": [1, 2]}), tmp_path / "a.parquet")
    assert [row.problem for row in rows(tmp_path / "a.parquet", encoding="latin-1")] == ["", BROKEN]
    for kind in (pa.list_, pa.large_list):
        lists = pa.ListArray.from_arrays([0, 1, 2], text).cast(kind(pa.string()))
        pq.write_table(pa.table({"text": lists}), tmp_path / "a.parquet")
        assert [row.problem for row in rows(tmp_path / "a.parquet", [Words("text", "text_column")])] == ["", BROKEN]


def test_a_parquet_file_damaged_in_the_middle(tmp_path: Path) -> None:
    table = pa.table({"text": [f"text {number}" for number in range(1000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500, use_dictionary=False)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    place = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(1).column(0).data_page_offset
    content[place : place + 200] = bytes(200)
    with pytest.raises(UserError, match=r"a.parquet is damaged after row \d+ \(.*\); write it again"):
        rows(write(tmp_path / "a.parquet", bytes(content)), [TEXT])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "expected rows in .*a.csv', got an empty file"),
        ("a.csv", "text,label\n", "got an empty file"),
        ("a.jsonl", "\n\n", "got an empty file"),
        ("a.csv", "text,lable\na,1\n", "expected a column 'label' in a.csv, got 'text', 'lable'; did you mean 'lable'"),
        ("a.csv", "x,y\na,1\n", "expected a column 'text' in .*, got 'x', 'y'; set data.text_column to one of them"),
        ("a.csv", b"t\xffxt,label\na,1\n", "a.csv, line 1: expected UTF-8, got another encoding"),
        ("a.csv", "text,label\na,1\n".encode("utf-16"), "save the file as UTF-8"),
        ("a.jsonl", '{"text": "a", "lebel": 1}\n', "expected a column 'label' in a.jsonl, got 'text', 'lebel'"),
        ("a.csv", 'text,label\na,1\n"b,1\nc,2\n', r"a.csv, row 2 \(line 3\): .* quotation mark that is never closed"),
        ("a.tsv", 'text\tlabel\n"b" c\t1\n', r"a.tsv, row 1 \(line 2\): expected fields separated by tabs"),
        ("a.jsonl", '{"text": 3, "label": 1}\n', "line 1: expected text in column 'text', got .* type int"),
        (
            "a.jsonl",
            '{"text": "a", "label": [1]}\n',
            "line 1: expected one label in column 'label', got a value of type list",
        ),
        ("a.parquet", "no parquet", "expected a parquet file, got"),
        ("a.xlsx", "", "suffix .csv, .tsv, .jsonl, .ndjson, .parquet .* got 'a.xlsx'"),
        ("a", "", "got 'a'"),
        ("a.parquet.gz", "", "got 'a.parquet.gz'"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        rows(write(tmp_path / name, content))


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "reviews.csv", "")
    with pytest.raises(UserError, match=r"there is no file or folder .*reviews.cvs'; did you mean 'reviews.csv'"):
        rows(tmp_path / "reviews.cvs")
    # Alike in the suffix alone.
    write(tmp_path / "doc_037.txt", "")
    with pytest.raises(UserError, match=r"there is no file or folder .*nosuch.txt'; check the path"):
        rows(tmp_path / "nosuch.txt")
    with pytest.raises(UserError, match="check the path"):
        rows(tmp_path / "nowhere" / "a.csv")
    with pytest.raises(UserError, match="one sub-folder of text files per class"):
        rows(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (float("nan"), None),
        ("  ", None),
        (" a ", "a"),
        (1, "1"),
        (1.0, "1"),
        (1.5, "1.5"),
        (False, "false"),
    ],
)
def test_labels_are_text(value: Any, text: str | None) -> None:
    assert label_text(value) == text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    text, count = "x" * 20_000, 1000
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.table({"text": [text] * count, "label": [1] * count}), path, use_dictionary=False)
    else:
        line = f"{text},1\n" if name == "a.csv" else json.dumps({"text": text, "label": 1}) + "\n"
        write(path, ("text,label\n" if name == "a.csv" else "") + line * count)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_paths([path], LABELLED, ClassificationData())) == count
        # A parquet file comes in pieces of 64 rows.
        assert tracemalloc.get_traced_memory()[1] < len(text) * count * 0.25
    finally:
        tracemalloc.stop()


def make_classes(root: Path, names: Iterator[str] | list[str]) -> None:
    for name in names:
        write(root / name, f"text of {name}")


def test_folder_of_classes(tmp_path: Path) -> None:
    make_classes(tmp_path, ["b/2.txt", "b/1.txt", "a/deep/x", "a/.hidden", ".git/x.txt", "unsup/1.txt", "README"])
    files = list_classes(tmp_path, "label", "train/")
    assert [(file.label, file.where) for file in files.files] == [
        ("a", "train/a/deep/x"),
        ("b", "train/b/1.txt"),
        ("b", "train/b/2.txt"),
    ]
    schema = schema_of(LABELLED, ClassificationData())
    row = Row({"text": "text of a/deep/x", "label": "a"}, "train/a/deep/x", file=Path(files.files[0].path))
    assert next(read_files(files.files, schema)) == row


def test_ratings_in_file_names(tmp_path: Path) -> None:
    make_classes(tmp_path, ["pos/0_10.txt", "neg/1_2.txt"])
    assert [file.label for file in list_classes(tmp_path, "rating").files] == ["2", "10"]
    make_classes(tmp_path, ["pos/x.txt"])
    with pytest.raises(UserError, match=r"names like 12_9.txt \(ID_RATING.txt\), got 'pos/x.txt'"):
        list_classes(tmp_path, "rating")


def test_broken_utf8_in_a_folder_has_file_and_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "a" / "1.txt", b"abc\xff")
    file = document_file(path, "a/1.txt", "a")
    assert list(read_files([file], schema_of(LABELLED, ClassificationData()))) == [
        Row({}, "a/1.txt, byte 3", BROKEN, file=Path(file.path))
    ]


@pytest.mark.parametrize(
    ("names", "column", "message"),
    [
        (["1.txt"], "label", "one sub-folder of text files per class in .*, got no sub-folders"),
        (["a/.hidden"], "label", "expected text files in the sub-folders"),
        (
            ["a/1.txt"],
            "ratings",
            "data.label_column must be 'label' or 'rating' for a folder of classes, got 'ratings'; did you mean "
            "'rating'",
        ),
    ],
)
def test_folders_without_classes(tmp_path: Path, names: list[str], column: str, message: str) -> None:
    make_classes(tmp_path, names)
    with pytest.raises(UserError, match=message):
        list_classes(tmp_path, column)


def lines(content: bytes, columns: Sequence[Column] = (TEXT,), **settings: Any) -> list[Row]:
    return list(read_paths(["-"], columns, ClassificationData(**settings), stdin=io.BytesIO(content)))


def test_standard_input() -> None:
    found = lines(b'a line\r\n{"text": "from json", "id": 1}\n{"other": 1}\n{not json}\n\xff\xfe\n\n{"text": 5}')
    assert [row.values.get("text") for row in found] == ["a line", "from json", None, "{not json}", None, "", "5"]
    assert [row.problem for row in found] == ["", "", "no text", "", BROKEN, "no text", ""]
    assert [row.where for row in found] == [f"standard input, line {number}" for number in range(1, 8)]
    assert lines(b'{"body": "b", "text": "t"}', text_column="body")[0].values == {"text": "b"}
    assert lines(b"[" * 100_000 + b"\n{" + b"[" * 100_000)[1].values == {"text": "{" + "[" * 100_000}
    assert lines(b'{"text": "\\ud800"}')[0].problem == BROKEN
    assert lines(b"") == []


def test_standard_input_of_words() -> None:
    words = Words("tokens", "text_column")
    found = lines(b'the cat\n{"text": ["a b", "c"]}\n["d e"]\n', [words])
    assert [row.values["tokens"] for row in found] == [["the", "cat"], ["a b", "c"], ["d e"]]


def test_standard_input_of_several_columns_is_json() -> None:
    pair = [TEXT, Text("other", "label_column")]
    good, plain, partial, last = lines(b'{"text": "a", "label": "b"}\na line\n{"text": "a"}\n[]\n', pair)
    assert good.values == {"text": "a", "other": "b"}
    assert (plain.values, plain.where) == ({}, "standard input, line 2")
    assert re.fullmatch(r"not a JSON object \(.* at column 1\)", plain.problem)
    assert partial.problem == "no other"
    assert last.problem == "not a JSON object (got a value of type list)"


def test_standard_input_stays_open_and_is_read_as_it_comes() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as stdin, open(writing, "wb", buffering=0) as other:  # noqa: PTH123
        found = read_paths(["-"], [TEXT], ClassificationData(), stdin=stdin)
        other.write(b"first\n")
        assert next(found).values == {"text": "first"}
        other.write(b"second\n")
        assert next(found).values == {"text": "second"}
        other.close()
        assert list(found) == []
        assert not stdin.closed


def test_a_dash_is_a_file_where_there_is_no_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there is no file or folder '-'; check the path"):
        read_paths(["-"], [TEXT], ClassificationData())


def test_text_files_and_folders_are_documents(tmp_path: Path) -> None:
    write(tmp_path / "all" / "b.txt", "two\nlines")
    write(tmp_path / "all" / "inner" / "a.md", b"abc\xff")
    write(tmp_path / "all" / "c.txt", "")
    write(tmp_path / "all" / "picture.png", b"\xff")
    whole = Row({"text": "two\nlines"}, "b.txt", file=tmp_path / "all" / "b.txt")
    assert list(read_paths([tmp_path / "all" / "b.txt"], [TEXT], ClassificationData())) == [whole]
    assert list(read_paths([tmp_path / "all"], [TEXT], ClassificationData())) == [
        whole,
        Row({"text": ""}, "c.txt", "no text", file=tmp_path / "all" / "c.txt"),
        Row({}, "inner/a.md, byte 3", BROKEN, file=tmp_path / "all" / "inner" / "a.md"),
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"expected text files in the folder '.*', got an empty folder"):
        read_paths([tmp_path / "empty"], [TEXT], ClassificationData())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text,label,label\na,x,y\n"),
        ("a.tsv", "label\ttext\tlabel\nx\ta\ty\n"),
        ("a.jsonl", '{"text": "a", "label": "x", "more": {"label": 1}, "label": "y"}\n'),
    ],
)
def test_two_columns_of_one_name_are_refused(tmp_path: Path, name: str, content: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=rf"{name}: expected one column 'label', got 2; rename or remove the others"):
        rows(path)
    # Those that nobody reads do no harm.
    assert [row.text for row in rows(path, [Text("text", "text_column")])] == ["a"]
