"""Of HTML pages the text is read, as a browser shows it, whatever somebody made of the markup."""

import gzip
from pathlib import Path

import datasets
import pytest

from longspan.data.columns.kinds import Column, Label, Text
from longspan.data.sources.files.html import html_text
from longspan.data.sources.loading import load
from longspan.data.sources.paths import read_paths
from longspan.errors import UserError
from longspan.machine import imports
from longspan.tasks.document_classification.options import ClassificationData

TEXT: list[Column] = [Text("text", "text_column")]
LABELLED: list[Column] = [*TEXT, Label("label", "label_column")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


PAGE = """<!DOCTYPE html><html><head><title>T</title><style>p { color: red }</style></head><body class=x>
<h1>Grüße &amp; more</h1><p>Hello <b>wor</b>ld,
 again!<script>alert("no")</script></p><ul><li>one<li>two</ul><pre>a
  b</pre>t<br>u<table><tr><td>1<td>2<tr><td>3</table><!-- no -->
<noscript>no</noscript><p>a &lt; b</body></html>"""
SHOWN = "Grüße & more\nHello world, again!\none\ntwo\na\n  b\nt\nu\n1\t2\n3\na < b"


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["a.html", "b.HTM", "c.xhtml", "d.html.gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_pages_are_read_as_they_are_shown(tmp_path: Path, name: str, encoding: str) -> None:
    content = PAGE.encode(encoding)
    path = write(tmp_path / "all" / name, gzip.compress(content) if name.endswith("gz") else content)
    for source in (path, path.parent):
        (row,) = read_paths([source], TEXT, ClassificationData(encoding="auto"))
        assert (row.values["text"], row.problem) == (SHOWN, "")
    if name == "a.html":
        write(tmp_path / "classes" / "x" / name, content)
        write(tmp_path / "classes" / "y" / "b.txt", b"plain")
        config = ClassificationData(path=str(tmp_path / "classes"), encoding="auto", validation_fraction=0.0)
        assert load(config, LABELLED).splits["train"]["text"][:] == [SHOWN, "plain"]
    other = write(tmp_path / "a.md", content)
    (row,) = read_paths([other], TEXT, ClassificationData(encoding=encoding))
    assert row.values["text"] == PAGE


@pytest.mark.parametrize(
    ("markup", "shown"),
    [
        ("", ""),
        (" \n", ""),
        ("<!-- only a comment -->", ""),
        ("<p>", ""),
        ("no markup\nat all", "no markup at all"),
        ("<?xml version='1.0' encoding='latin-1'?><html><body>é</body></html>", "é"),
        ("</p></p>x</div></div>", "x"),
        ("<b><i>x</b>y</i>", "xy"),
        ("a\0b<p>c", "a\ufffdb\nc"),
        ("<p>one</p>  <p>two", "one\ntwo"),
        ("<p>a&nbsp;b &#x1F600; &nonsense;</p>", "a\xa0b 😀 &nonsense;"),
        ("<textarea><b>kept</b></textarea>", "<b>kept</b>"),
        ("x" * 70_000 + "<p>" + "y" * 70_000, "x" * 70_000 + "\n" + "y" * 70_000),
    ],
)
def test_odd_pages(markup: str, shown: str) -> None:
    assert html_text(markup, "a.html") == shown


def test_a_page_without_text_is_a_bad_row(tmp_path: Path) -> None:
    (row,) = read_paths([write(tmp_path / "a.html", b"<img src=a.png><script>x</script>")], TEXT, ClassificationData())
    assert row.problem == "no text"
    (row,) = read_paths([write(tmp_path / "a.html", b"<p>\xff")], TEXT, ClassificationData())
    assert (row.problem, row.where) == ("broken UTF-8", "a.html, byte 3")


BOMBS = {
    "deep": "<div>" * 200_000 + "x",
    "deep and closed": "<div>" * 100_000 + "x" + "</div>" * 100_000,
    "misnested": "<b><p>" * 50_000 + "x",
    "tables in tables": "<table>" * 100_000 + "x",
    "a large attribute": f"<p a='{'y' * 20_000_000}'>x",
    "many attributes": f"<p {' '.join(f'a{number}=1' for number in range(100_000))}>x",
    "entities": "<!DOCTYPE html [<!ENTITY a 'yy'><!ENTITY b '&a;&a;'>]><p>x",
    "a long name": f"<{'a' * 5_000_000}>x",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.timeout(20)
def test_time_grows_with_the_length_whatever_is_nested(name: str) -> None:
    # What builds trees takes minutes for the first.
    assert html_text(BOMBS[name], "a.html").endswith("x")


def test_what_is_never_closed_ends_with_the_page() -> None:
    for markup in ("<" * 200_000, "<!--" * 100_000, "</" * 100_000, "<a " * 100_000, "&" * 1_000_000, "<?" * 100_000):
        assert len(html_text(markup, "a.html")) <= len(markup)


def test_without_lxml_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "is_installed", lambda module: module != "lxml")
    write(tmp_path / "all" / "a.txt", b"text")
    assert len(list(read_paths([tmp_path / "all"], TEXT, ClassificationData()))) == 1
    write(tmp_path / "all" / "b.html", b"<p>x")
    with pytest.raises(UserError, match=r"the text of b.html needs the package .lxml., .*\"longspan\[html\]\"`, or"):
        list(read_paths([tmp_path / "all"], TEXT, ClassificationData()))
