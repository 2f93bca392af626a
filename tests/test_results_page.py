"""RESULTS.md is made from the files in benchmarks/results; the entries of LOG.md are dated and in its index."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs" / "results.py"
FILES = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
RESULTS = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
LOG = (ROOT / "LOG.md").read_text(encoding="utf-8")
SPEC = importlib.util.spec_from_file_location("results_script", SCRIPT)
assert SPEC
assert SPEC.loader
made: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(made)
REQUIRED = {
    "title",
    "position",
    "what",
    "commands",
    "commit",
    "date",
    "hardware",
    "seeds",
    "tables",
    "targets",
    "notes",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_has_the_required_keys(path: Path) -> None:
    section = made.read(path)
    assert section.keys() >= REQUIRED
    assert section.keys() <= REQUIRED | {"figures"}
    assert section["what"].endswith(".")
    assert section["tables"]
    assert re.search(r"\d{4}-\d{2}-\d{2}", section["date"])


def test_results_and_the_index_of_the_log_are_what_the_script_writes() -> None:
    assert made.results(made.read_all()) == RESULTS
    assert made.log(LOG) == LOG
    assert FILES
    ran = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_index_names_every_target_and_links_to_its_section() -> None:
    index = RESULTS.split("\n## ")[1]
    headings = {made.anchor(title) for title in re.findall(r"^## (.+)$", RESULTS, re.MULTILINE)}
    sections = [json.loads(path.read_text(encoding="utf-8")) for path in FILES]
    targets = [target["what"] for section in sections for target in section["targets"]]
    assert len({*targets}) == len(targets) == len(index.splitlines()) - 4
    for section in sections:
        link = f"[{section['title']}](#{made.anchor(section['title'])})"
        for target in section["targets"]:
            verdict = "**missed**" if target["met"] is False else "met" if target["met"] else "not measured"
            assert re.search(rf"^\| {re.escape(target['what'])} \|.*\| {re.escape(verdict)} \| ", index, re.MULTILINE)
            assert link in index
    assert {*re.findall(r"\]\(#([^)]+)\)", RESULTS)} <= headings


def section(**changed: Any) -> dict[str, Any]:
    """Return a section that has all keys, with some of them changed."""
    target = {"what": "accuracy", "target": "0.9", "ours": "0.8", "best_rival": "", "met": False}
    table = {"columns": ["a", "b"], "rows": [["1", "2"]]}
    texts = {"title": "Letters", "what": "It works.", "commit": None, "date": None, "hardware": None, "seeds": None}
    lists = {"commands": ["longspan list"], "tables": [table], "targets": [target], "notes": []}
    return {"position": 1, **texts, **lists, **changed}


def test_a_section_shows_what_was_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "letters.json").write_text(json.dumps(section()), encoding="utf-8")
    text = made.results(made.read_all(tmp_path))
    assert "| accuracy | 0.9 | 0.8 | | **missed** | [Letters](#letters) |" in text
    assert "    longspan list\n\n- Commit: not recorded. Date: not recorded." in text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "'a.json' is not JSON: "),
        ("a.json", "[]", "'a.json' should be an object, got list."),
        ("a.json", json.dumps(section(date=1)), "'a.json' has 'date' of the type int, where str or null is expected."),
        ("a.json", json.dumps(section(speed="2")), "'a.json' has the unknown key 'speed'; the keys are "),
        ("a.json", json.dumps({"title": "A"}), "'a.json' lacks the key 'position'."),
        ("a.json", json.dumps(section(notes=[1])), "'notes' of 'a.json' should hold strings alone, got 1."),
        (
            "a.json",
            json.dumps(section(tables=[{"columns": ["a"], "rows": [["1", "2"]]}])),
            "Table 1 of 'a.json' has the row ['1', '2'], where 1 cells are expected.",
        ),
        (
            "a.json",
            json.dumps(section(targets=[{"what": "accuracy"}])),
            "Target 1 of 'a.json' lacks the key 'target'.",
        ),
        (
            "a.json",
            json.dumps(section(figures=[{"path": "docs/images/none.png", "alt": ""}])),
            "Figure 1 of 'a.json' is 'docs/images/none.png', and there is no such file.",
        ),
        (
            "A_b.json",
            json.dumps(section()),
            "'A_b.json' should have a name in kebab-case, such as 'film-reviews.json'.",
        ),
        ("z.json", json.dumps(section(title="Z")), "'z.json' has the position 1, as 'letters.json' has."),
        (
            "z.json",
            json.dumps(section(position=2)),
            "'z.json' has the title 'Letters', as letters.json has.",
        ),
    ],
)
def test_a_malformed_file_gives_a_sentence(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / "letters.json").write_text(json.dumps(section()), encoding="utf-8")
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(made.ResultsError) as raised:
        made.read_all(tmp_path)
    assert str(raised.value).startswith(message)
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)


def test_check_reports_a_file_that_would_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(made, "RESULTS", tmp_path / "RESULTS.md")
    monkeypatch.setattr(made, "LOG", tmp_path / "LOG.md")
    made.LOG.write_text(LOG, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["results.py", "--check"])
    assert made.main() == 1
    assert capsys.readouterr().err == "RESULTS.md is not what 'python docs/results.py' writes; run it and commit.\n"
    assert not made.RESULTS.exists()
    monkeypatch.setattr(sys, "argv", ["results.py"])
    assert made.main() == 0
    assert made.RESULTS.read_text(encoding="utf-8") == RESULTS
    (tmp_path / "a.json").write_text("{", encoding="utf-8")
    monkeypatch.setattr(made.read_all, "__defaults__", (tmp_path,))
    assert made.main() == 1
    assert capsys.readouterr().err.startswith("'a.json' is not JSON: ")


def test_a_log_without_a_place_for_its_index_gives_a_sentence() -> None:
    with pytest.raises(made.ResultsError, match=r"^'LOG.md' lacks the lines '<!-- index -->' and .*\.$"):
        made.log("# Log\n")


def test_every_entry_of_the_log_is_dated_newest_first_and_once_in_the_index() -> None:
    headings = re.findall(r"^## (.+)$", LOG, re.MULTILINE)
    assert headings
    for heading in headings:
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}\. \S.*\.", heading), heading
    dates = [heading[:10] for heading in headings]
    assert dates == sorted(dates, reverse=True)
    index = LOG.split("<!-- index -->")[1].split("<!-- end of the index -->")[0]
    linked = re.findall(r"^- (\S+)\. \[(.+)\]\(#(.+)\)$", index, re.MULTILINE)
    assert [f"{date}. {title}." for date, title, _ in linked] == headings
    anchors = [anchor for _, _, anchor in linked]
    assert anchors == [made.anchor(heading) for heading in headings]
    assert len({*anchors}) == len(anchors)
