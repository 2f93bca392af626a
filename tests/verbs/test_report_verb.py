"""Reports of runs and of comparisons: what they show, where they go, and what gets into no page."""

import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import longspan
from longspan import cli
from longspan.errors import UserError
from longspan.report.run_report import ComparisonReport, RunReport
from longspan.verbs.report_contents import _in_text, _number

EVIL = "</script><img src=x onerror=alert(1)>"
SMALL = ["model.dim=16", "model.depth=1", "data.vocab_size=300", "training.num_train_epochs=2"]


class Page(HTMLParser):
    """Collects a page's tags, attributes, addresses and text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def write_reviews(path: Path, label: str = EVIL) -> Path:
    """Write 200 documents, a twentieth of which have the other label; every one has markup in it."""
    rows = ["text,label"]
    for number in range(200):
        filler = " ".join(f"word{(number * 7 + i * i) % 23}" for i in range(12))
        word, own = ("lovely", label) if number % 2 else ("dreadful", "no & no")
        rows.append(f"{filler} {word} {EVIL},{(label if own != label else 'no & no') if number % 20 == 3 else own}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def trained(folder: Path, *more: str) -> Path:
    data = write_reviews(folder / "reviews.csv")
    longspan.train("classify", [f"data.path={data}", *SMALL, *more], run=folder / "run", progress=False)
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("wide"), "model.wide_buckets=4096")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """The run, to be changed, with its data where they were."""
    return Path(shutil.copytree(run, tmp_path / "mine"))


def check_safe(page: Page) -> None:
    """The page runs and asks for nothing, and all that is in texts and labels is text."""
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page.source
    assert "script" not in page.tags
    assert "onerror" not in page.attributes
    assert all(address.startswith(("data:image/png;base64,", "./")) for address in page.addresses)


@pytest.mark.slow
def test_training_writes_a_report_with_words_by_weights(copy: Path) -> None:
    page = Page(copy / "report.html")
    check_safe(page)
    assert "Learning curve" in page.text
    assert "adds to the log-odds" in page.text
    assert "longspan report" in page.text
    assert "Worst mistakes" not in page.text
    assert EVIL in page.text
    assert 'task = "document_classification"' in page.text


@pytest.mark.slow
def test_a_report_shows_words_mistakes_and_commands_that_run(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = longspan.write_report(copy)
    assert isinstance(found, RunReport)
    assert found.evaluation is not None
    assert found.evaluation.split == "validation"
    assert found.words is not None
    assert "lovely" in [word.text for word in found.words.by_class[EVIL]]
    assert "dreadful" in [word.text for word in found.words.by_class["no & no"]]
    (lovely,) = (word for word in found.words.by_class[EVIL] if word.text == "lovely")
    assert lovely.score > 0
    assert re.fullmatch(r"reviews.csv, row \d+", lovely.where)
    page = Page(copy / "report.html")
    check_safe(page)
    for title in (
        "Worst mistakes (validation)",
        "Labels that are likely wrong (validation)",
        "Confusion",
        "Calibration",
    ):
        assert title in page.text
    assert not (copy / "evaluation").exists()
    first = found.evaluation.mistakes.worst[0]
    command = found.commands[first.where]
    assert command in page.text
    capsys.readouterr()
    assert cli.main(shlex.split(command)[1:]) == 0
    assert first.where in capsys.readouterr().out


@pytest.mark.slow
def test_without_weights_words_are_those_of_explanations(tmp_path: Path) -> None:
    run = trained(tmp_path, "model.wide=false", "training.num_train_epochs=8", "training.learning_rate=0.01")
    assert "Words that speak" not in (run / "report.html").read_text(encoding="utf-8")
    found = longspan.load(run).report(tmp_path / "mine.html")
    assert found.words is not None
    assert "first-order effect" in found.words.source
    words = {label: [word.text for word in words] for label, words in found.words.by_class.items()}
    assert "lovely" in words[EVIL]
    assert "dreadful" in words["no & no"]
    assert (tmp_path / "mine.html").is_file()


@pytest.mark.slow
def test_evaluation_writes_its_mistakes_into_the_report(copy: Path, tmp_path: Path) -> None:
    other = write_reviews(tmp_path / "other.csv")
    found = longspan.evaluate(copy, str(other))
    page = Page(copy / "report.html")
    check_safe(page)
    assert "Worst mistakes (all)" in page.text
    assert found.mistakes.worst[0].where in page.text
    assert f"{other} --row" in page.text
    written = json.loads((copy / "evaluation" / "metrics.json").read_text(encoding="utf-8"))
    assert written["mistakes"] == found.mistakes.to_dict()
    assert found.label_issues is not None
    assert written["label_issues"] == found.label_issues.to_dict()


@pytest.mark.slow
def test_the_command_line_prints_words_and_mistakes(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert cli.main(["report", str(copy), "--out", str(tmp_path / "mine.html")]) == 0
    out = capsys.readouterr().out
    assert "words that speak for it" in out
    assert "Worst mistakes (" in out
    assert f"written to {tmp_path / 'mine.html'}" in out
    assert cli.main(["report", str(copy), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["written"] == str(copy / "report.html")
    assert found["words"]["by_class"][EVIL][0]["documents"] > 1
    assert found["evaluation"]["mistakes"]["count"] > 0


@pytest.mark.slow
def test_evaluate_prints_mistakes(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.main(["evaluate", str(copy)]) == 0
    assert "Worst mistakes (" in capsys.readouterr().out


@pytest.mark.slow
def test_without_the_data_a_sentence_says_so(tmp_path: Path) -> None:
    run = trained(tmp_path, "model.wide_buckets=4096")
    (tmp_path / "reviews.csv").unlink()
    found = longspan.write_report(run)
    assert isinstance(found, RunReport)
    assert found.evaluation is None
    page = Page(run / "report.html")
    assert "Mistakes and words are missing, as the validation split could not be scored" in page.text
    assert "Learning curve" in page.text


@pytest.mark.slow
def test_figures_of_strangers_are_left_out(copy: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"\x89PNG\r\n\x1a\n my key")
    (copy / "learning_curve.png").unlink()
    (copy / "learning_curve.png").symlink_to(secret)
    (copy / "page.png").write_text("<svg onload=alert(1)>")
    found = longspan.write_report(copy)
    assert isinstance(found, RunReport)
    assert not {"Learning curve", "Page"} & found.figures.keys()


@pytest.mark.slow
def test_a_link_in_place_of_the_report_is_replaced(copy: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.html"
    notes.write_text("mine")
    (copy / "report.html").unlink()
    (copy / "report.html").symlink_to(notes)
    longspan.evaluate(copy)
    assert notes.read_text() == "mine"
    assert not (copy / "report.html").is_symlink()


@pytest.mark.slow
def test_damaged_results_do_not_spoil_an_evaluation(copy: Path) -> None:
    (copy / "metrics.json").write_text("{")
    longspan.evaluate(copy)
    assert "Results of training are missing" in (copy / "report.html").read_text(encoding="utf-8")
    with pytest.raises(UserError, match=r"metrics\.json"):
        longspan.write_report(copy)
    (copy / "metrics.json").write_text(
        json.dumps({"steps": "<b>", "seconds": [], "epochs": 10**400, "data": {"train": {"x": {}}}})
    )
    longspan.write_report(copy)


def comparison(folder: Path, **more: Any) -> Path:
    """Write what `compare` writes, by a stranger."""
    (folder / "additive-0").mkdir(parents=True)
    (folder / "additive-0" / "report.html").write_text("a report")
    values = {
        "recipe": EVIL,
        "task": EVIL,
        "overrides": [EVIL],
        "summary": [{"mixer": "additive", "test_accuracy": {"mean": 0.91, "spread": 0.01}}],
        "baselines": [{"baseline": "tfidf", "validation": {"accuracy": 0.8}}],
        "runs": [{"mixer": "delta", "seed": 0, "folder": "javascript:alert(1)", "error": f"it failed: {EVIL}"}],
        "conclusion": EVIL,
        **more,
    }
    (folder / "comparison.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def test_a_comparison_has_tables_and_links(tmp_path: Path) -> None:
    found = longspan.write_report(comparison(tmp_path / "all"))
    assert isinstance(found, ComparisonReport)
    page = Page(tmp_path / "all" / "report.html")
    check_safe(page)
    assert page.addresses == ["./additive-0/report.html"]
    for text in ("0.91 ± 0.01", "tfidf", f"delta: it failed: {EVIL}", EVIL):
        assert text in page.text


@pytest.mark.parametrize(
    "more",
    [{"runs": 7, "summary": {"a": 1}}, {"baselines": [3, None, {"x": 10**400, "y": float("nan")}], "overrides": 5}],
)
def test_odd_comparisons_do_not_end_in_a_traceback(more: dict[str, Any], tmp_path: Path) -> None:
    longspan.write_report(comparison(tmp_path / "all", **more))


@pytest.mark.slow
def test_mistakes_are_said_in_one_sentence(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    damaged = comparison(tmp_path / "damaged")
    (damaged / "comparison.json").write_text("{")
    for arguments, told in (
        ([str(tmp_path / "empty")], "got neither in"),
        ([str(tmp_path / "nowhere")], "there is no run folder"),
        ([str(damaged)], "comparison.json"),
        ([str(copy), "--out", "report.pdf"], "a file that ends in .html, got 'report.pdf'"),
        ([str(copy), "--out", str(tmp_path / "no" / "report.html")], "expected a folder at"),
    ):
        capsys.readouterr()
        assert cli.main(["report", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line


def test_commands_name_rows_of_lines(tmp_path: Path) -> None:
    """Lines count blank ones, rows do not; of other files, a line says no row."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n\n \n{"text": "b"}\n', encoding="utf-8")
    assert _number(path, "line", 4) == 2
    assert _number(path, "row", 7) == 7
    assert _number(tmp_path / "a.conllu", "line", 4) == 0


def test_the_space_before_a_word_stays_outside() -> None:
    """Of a token that begins with it."""
    assert _in_text("an old yaml file", [[0, 2], [2, 6], [6, 11], [11, 16]], 2, 3) == ("yaml", "an old ", " file")
