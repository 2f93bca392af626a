"""Explaining what a model says about a document: from files and memory, as a table, JSON, arrays and a page."""

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decisive_words import write_run

import longspan
from longspan import cli
from longspan.errors import UserError
from longspan.report.explanation import Explanation
from longspan.verbs.explain import explain_given
from longspan.verbs.runs import load_run

EVIL = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that answers "yes" the more surely, the larger the share of the word "good" is."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    return write_run(folder, ["no", "yes"], "good", "yes", "good bad film was a the", ["data.max_length=50"])


class Tags(HTMLParser):
    """Collects the names of a page's tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def said(run: Path, given: Any, **options: Any) -> Explanation:
    return explain_given(load_run(run), given, **options)


def test_the_word_that_decides_comes_first(run: Path) -> None:
    found = said(run, "the film was good")
    assert (found.of, found.unit, found.method) == ("yes", "log-odds", "removal")
    # 20/4 - 1, and of a mean of 1/4 by "good".
    assert found.value == pytest.approx(4)
    words = {word.text: word.score for word in found.pieces()}
    assert list(words) == ["the", "film", "was", "good"]
    assert words["good"] == pytest.approx(20 / 4 * 3 / 4)
    assert words["the"] == pytest.approx(-20 / 16)


def test_other_classes_methods_and_rows(run: Path, tmp_path: Path) -> None:
    table = tmp_path / "films.csv"
    table.write_text("text\nthe film was bad\na good film\n", encoding="utf-8")
    found = longspan.explain(run, table, row=2, of="no", method="gradient")
    assert (found.of, found.text) == ("no", "a good film")
    assert found.where.endswith("films.csv, row 2")
    scores = {word.text: word.score for word in found.pieces()}
    assert scores["good"] == pytest.approx(-20 / 3)
    assert scores["film"] == 0
    assert found.prediction["label"] == "yes"


def test_deletions_check_the_scores(run: Path) -> None:
    found = said(run, "the film was good " * 5, check=True)
    assert found.checks is not None
    assert list(found.checks) == ["removal", "gradient", "occlusion", "random"]
    assert found.checks["removal"]["comprehensiveness"] > found.checks["random"]["comprehensiveness"] + 0.1
    assert found.checks["removal"]["sufficiency"] < found.checks["random"]["sufficiency"]


def test_what_was_cut_off_is_said_and_has_no_scores(run: Path) -> None:
    text = "film " * 60 + "good"
    found = said(run, text)
    assert (found.prediction["tokens_read"], found.prediction["tokens_total"]) == (50, 61)
    assert len(found.scores) == len(found.spans) == 50
    assert len(found.pieces()) == 50
    assert "Only 50 of 61 positions were read." in found.page()


def test_files(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "film.txt"
    document.write_text("the film was good", encoding="utf-8")
    for suffix in ("html", "json", "npz"):
        assert cli.main(["explain", str(run), str(document), "--out", str(tmp_path / f"x.{suffix}")]) == 0
    told = capsys.readouterr().out
    assert "yes (+4.00 log-odds)" in told
    assert "good" in told
    saved = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
        np.testing.assert_allclose(arrays["scores"], saved["scores"], rtol=1e-6)
        assert arrays["spans"].tolist() == saved["spans"]
    assert Explanation(**saved).to_dict() == saved
    assert cli.main(["explain", str(run), str(document), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"] == saved["scores"]


def test_a_page_shows_texts_as_they_are_and_asks_nobody(run: Path) -> None:
    page = said(run, f"{EVIL} good {EVIL}").page()
    assert EVIL not in page
    seen = Tags()
    seen.feed(page)
    assert "strong" in seen.tags
    assert not seen.tags & {"img", "link", "iframe", "object", "a"}
    assert not [name for name in seen.attributes if name in ("src", "href", "srcset") or name.startswith("on")]
    assert "default-src 'none'" in page
    data, script = re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    assert json.loads(data)["text"] == f"{EVIL} good {EVIL}"
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}';" in page
    assert "url(" not in page


def test_a_notebook_shows_the_words(run: Path) -> None:
    shown = said(run, "the <b>film</b> was good").html()
    assert "<mark" in shown
    assert "<b>" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--row", "1", "--class", "maybe"], "there is no class 'maybe'"),
        (["--method", "removals"], "did you mean 'removal'?"),
        (["--row", "0"], "expected the number of a row, from 1, got 0"),
        (["--row", "3"], "expected an example with the number 3, got 2 examples"),
        ([], "expected a single example to explain, got several"),
        (["--row", "1", "--out", "x.pdf"], "expected a file that ends in .html, .json, .npz, got 'x.pdf'"),
        (["--row", "1", "--out", "nowhere/x.html"], "expected a folder at 'nowhere'"),
        (["more.csv", "--row", "1"], "expected one file to explain an example of, got 2"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], message: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "films.csv"
    table.write_text("text\nthe film was bad\na good film\n", encoding="utf-8")
    assert cli.main(["explain", str(run), str(table), *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_nothing_to_explain(run: Path) -> None:
    with pytest.raises(UserError, match="expected a document to explain, got no text"):
        said(run, "  ")
    with pytest.raises(UserError, match="expected a single example to explain, got none"):
        said(run, [])


def test_words_of_any_script() -> None:
    text = "naïve, 良い映画 ok"
    spans = [[0, 5], [5, 6], [6, 9], [9, 11], [11, 14]]
    found = Explanation("here", "yes", "log-odds", 1.0, "removal", {}, spans, [1.0, 2.0, 3.0, 4.0, 5.0], text=text)
    assert [(word.text, word.score) for word in found.pieces()] == [
        ("naïve", 1.0), (",", 2.0), ("い", 3.0), ("画", 4.0), ("ok", 5.0),
    ]  # fmt: skip


def test_standard_input(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a good film\n")))
    assert cli.main(["explain", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["of"] == "yes"


def test_weights_are_called_weights(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a model whose mixers have weights of positions, got none"):
        said(run, "the film was good", method="weight")
    words = "good bad film was a the"
    layers = write_run(tmp_path / "layers", ["no", "yes"], "good", "yes", words, ["model.depth=1"])
    found = said(layers, "the film was good", method="weight", check=True)
    assert sum(found.scores) == pytest.approx(1)
    assert list(found.parts) == [f"layer 1, head {head}, {name}" for name in ("alpha", "beta") for head in (1, 2)]
    assert all(sum(row) == pytest.approx(1, abs=1e-4) for row in found.parts.values())
    assert found.checks is not None
    assert set(found.checks) == {"weight", "removal", "gradient", "occlusion", "random"}
    page = found.page()
    assert "Weights for “yes”" in page
    assert "They are no explanation." in page
    assert "speak for" not in page
