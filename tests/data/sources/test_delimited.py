"""csv and tsv with any separator, with and without a header, and what is said where either was not expected."""

from pathlib import Path
from typing import Any

import datasets
import pytest

from longspan.data.columns.kinds import Column, Label, Text, WordLabels, Words
from longspan.data.sources.loading import load
from longspan.data.sources.paths import read_paths
from longspan.errors import UserError
from longspan.tasks.document_classification.options import ClassificationData
from longspan.tasks.token_classification.options import TokenData

LABELLED: list[Column] = [Text("text", "text_column"), Label("label", "label_column")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def rows(path: Path, content: str, **settings: Any) -> list[tuple[Any, Any, str, str]]:
    path.write_text(content, encoding="utf-8")
    found = read_paths([path], LABELLED, ClassificationData(**settings))
    return [(row.values.get("text"), row.values.get("label"), row.where, row.problem) for row in found]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize(
    ("delimiter", "separator"),
    [(";", ";"), ("semicolon", ";"), ("tab", "\t"), ("\t", "\t"), ("\\t", "\t"), ("|", "|"), ("pipe", "|"), (",", ","),
     ("comma", ","), ("space", " "), ("^", "^"), ("¦", "¦")],
)  # fmt: skip
def test_any_separator(tmp_path: Path, name: str, delimiter: str, separator: str) -> None:
    content = f'label{separator}text\nx{separator}"two\nlines, ""quoted""; and | more"\n'
    expected = ('two\nlines, "quoted"; and | more', "x", f"{name}, row 1", "")
    assert rows(tmp_path / name, content, delimiter=delimiter) == [expected]


@pytest.mark.parametrize(
    ("delimiter", "hint"),
    [("", "use what separates"), (";;", "use what"), ('"', "use what"), ("\n", "use what"),
     ("semicolons", "did you mean 'semicolon'"), ("Tab", "did you mean 'tab'")],
)  # fmt: skip
def test_what_is_no_separator(delimiter: str, hint: str) -> None:
    with pytest.raises(UserError, match=rf"data.delimiter must be one character, or auto, comma, .*; {hint}"):
        ClassificationData(delimiter=delimiter)


def test_columns_without_a_header_are_numbered(tmp_path: Path) -> None:
    content = '1,x,"first, of all"\n2,y,second\n\n3,z\n'
    numbered: dict[str, Any] = {"header": False, "text_column": "3", "label_column": "2"}
    assert rows(tmp_path / "a.csv", content, **numbered) == [
        ("first, of all", "x", "a.csv, row 1", ""),
        ("second", "y", "a.csv, row 2", ""),
        (None, None, "a.csv, row 3 (line 4)", "wrong number of fields (expected 3 as in the first row, got 2)"),
    ]
    settings: dict[str, Any] = {"skip_bad_rows": True, "validation_fraction": 0.0, **numbered}
    found = load(ClassificationData(path=str(tmp_path / "a.csv"), **settings), LABELLED)
    assert found.splits["train"]["text"][:] == ["first, of all", "second"]
    # What was cached was read otherwise.
    with pytest.raises(UserError, match="expected a column '3'"):
        load(ClassificationData(path=str(tmp_path / "a.csv"), text_column="3", label_column="2"), LABELLED)


SEMICOLONS = "text;label\nfirst, of all;x\nsecond;y\n"
QUOTED = '"text";"label"\n"first; of all";"x"\n'


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (SEMICOLONS, {}, "expected a column 'text' in a.csv, got 'text;label'; its fields seem to be separated by "
         "semicolons: set data.delimiter=semicolon."),
        (QUOTED, {}, "separated by semicolons: set data.delimiter=semicolon."),
        (QUOTED.replace(";", "|"), {}, "separated by vertical bars: set data.delimiter=pipe."),
        ('"a"|"x"\n"b, c"|"y"\n', {"header": False, "text_column": "1", "label_column": "2"}, "data.delimiter=pipe."),
        ("text\tlabel\na\tx\n", {}, "separated by tabs: set data.delimiter=tab."),
        ("text,label\na,x\n", {"delimiter": ";"}, "separated by commas: set data.delimiter=comma."),
        # Other names, but the rows agree.
        ("body;class\na, b;x\nc;y\n", {}, "separated by semicolons: set data.delimiter=semicolon."),
        ("a b;x\nc;y\n", {"header": False, "text_column": "1", "label_column": "2"}, "delimiter=semicolon."),
        # These are separated by commas.
        ("body,class\na;b,x\nc;d,y\n", {}, "got 'body', 'class'; set data.text_column to one of them."),
        ("texts,label\na,x\n", {}, "got 'texts', 'label'; did you mean 'texts'?"),
        # No names at all.
        ("I liked it. Really!,good\nNot me.,bad\n", {}, "got 2 columns with what looks like data instead of names; "
         "if its first row is data and not the names of the columns, set data.header=false, and data.text_column and "
         "data.label_column to numbers of columns, counted from 1."),
        ("good,0\nbad,1\n", {}, "set data.header=false, and data.text_column and"),
        ("text,label\na,x\n", {"text_column": "1"}, "got 'text', 'label'; if its first row is data and not the names"),
        ("a,x\n", {"header": False}, "got the columns 1 to 2; without a header, columns "
         "are numbered from 1: set data.text_column and data.label_column."),
        ("a,x\n", {"header": False, "text_column": "1"}, "numbered from 1: set data.label_column."),
        ("a,x\n", {"header": False, "text_column": "1", "label_column": "5"}, "got the columns 1 to 2; set"),
    ],
)  # fmt: skip
def test_other_separators_and_headers_than_expected(
    tmp_path: Path, content: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        rows(tmp_path / "a.csv", content, **settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("first", "settings", "hint"),
    [
        ("sep=;", {}, "data.delimiter=semicolon"),
        ("sep=;", {"delimiter": "semicolon"}, "data.delimiter=semicolon"),
        ("SEP=^", {}, r"data.delimiter=\^"),
        ("sep=,", {}, ""),
    ],
)
def test_the_first_line_for_excel_is_named(tmp_path: Path, first: str, settings: Any, hint: str) -> None:
    more = f", and set {hint}" if hint else ""
    with pytest.raises(UserError, match=rf"a.csv, got .*; its first line is for Excel .*: remove it{more}\.$"):
        rows(tmp_path / "a.csv", f"{first}\ntext{first[-1]}label\na{first[-1]}x\n", **settings)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.conll", "a.txt"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_wide_encodings_are_named(tmp_path: Path, name: str, encoding: str) -> None:
    path = tmp_path / name
    path.write_text("the\tO\n\ncat\tO\n", encoding=encoding)
    columns: list[Column] = [Words("tokens", "text_column"), WordLabels("labels", "label_column")]
    with pytest.raises(
        UserError, match=rf"expected UTF-8 in {name}, got {encoding.upper()} .*data.encoding={encoding}"
    ):
        list(read_paths([path], columns, TokenData()))
    if not name.endswith((".csv", ".jsonl")):
        found = list(read_paths([path], columns, TokenData(encoding=encoding)))
        assert [row.values["tokens"] for row in found] == [["the"], ["cat"]]
