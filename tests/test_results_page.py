"""RESULTS.md and docs/results are made from benchmarks/results; the entries of LOG.md are dated and in its index."""

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
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "results").glob("*.md")}
LOG = (ROOT / "LOG.md").read_text(encoding="utf-8")
SPEC = importlib.util.spec_from_file_location("results_script", SCRIPT)
assert SPEC
assert SPEC.loader
script: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)
SECTIONS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FILES}
REQUIRED = {
    "title",
    "area",
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
    section = script.read_section(path)
    assert section.keys() >= REQUIRED
    assert section.keys() <= REQUIRED | {"figures", "claims"}
    assert section["what"].endswith(".")
    assert section["tables"]
    assert re.search(r"\d{4}-\d{2}-\d{2}", section["date"])


def test_the_pages_and_the_index_of_the_log_are_what_the_script_writes() -> None:
    areas = script.read_sections()
    assert script.results_page(areas) == RESULTS
    assert {area: script.area_page(area, sections) for area, sections in areas.items()} == PAGES
    assert script.log_page(LOG) == LOG
    assert FILES
    ran = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_every_section_is_on_the_page_of_its_area_with_its_tables_and_commands() -> None:
    for section in SECTIONS.values():
        page = PAGES[section["area"]]
        assert page.count(f"\n## {section['title']}\n") == 1
        for table in section["tables"]:
            for row in table["rows"]:
                assert script.table_row(row) in page
        for command in section["commands"]:
            assert all(f"    {line}" in page for line in command.splitlines())
        for key in ("commit", "date", "hardware", "seeds"):
            assert f"{key.capitalize()}: {section[key] or 'not recorded'}." in page


def test_the_targets_of_an_area_name_every_target_and_link_to_its_section() -> None:
    names = [target["what"] for section in SECTIONS.values() for target in section["targets"]]
    assert len({*names}) == len(names)
    for section in SECTIONS.values():
        targets = PAGES[section["area"]].partition("\n## Targets\n")[2].partition("\n## ")[0]
        for target in section["targets"]:
            verdict = "**missed**" if target["met"] is False else "met" if target["met"] else "not measured"
            link = re.escape(f"[{section['title']}](#{script.anchor(section['title'])})")
            line = rf"^\| {re.escape(target['what'])} \|.*\| {re.escape(verdict)} \| {link} \|$"
            assert len(re.findall(line, targets, re.MULTILINE)) == 1


def test_the_results_are_one_page_with_the_claims() -> None:
    claims = [claim for section in SECTIONS.values() for claim in section.get("claims", [])]
    assert 15 <= len(claims) <= 25
    assert len(RESULTS.splitlines()) <= 80
    # The losses are among them.
    assert {claim["verdict"] for claim in claims} == {*script.CLAIM_VERDICTS}
    links = re.findall(r"\]\(docs/results/([\w-]+)\.md(?:#([^)]+))?\)", RESULTS)
    assert len(links) == len(claims) + len(PAGES)
    for area, anchor in links:
        headings = {script.anchor(title) for title in re.findall(r"^## (.+)$", PAGES[area], re.MULTILINE)}
        assert not anchor or anchor in headings


@pytest.mark.parametrize("name", [name for name, section in SECTIONS.items() if "claims" in section])
def test_the_numbers_of_a_claim_are_in_its_section(name: str) -> None:
    number = re.compile(r"(?<![\w.])-?\d[\d,.]*\d|\d")
    section = {**SECTIONS[name]}
    claims = section.pop("claims")
    measured = {*number.findall(json.dumps(section, ensure_ascii=False))}
    for claim in claims:
        # A baseline of 1 is what a ratio is relative to.
        assert {*number.findall(f"{claim['ours']} {claim['baseline']}")} - {"1"} <= measured


def section(**changed: Any) -> dict[str, Any]:
    """Section that has all keys, with some of them changed."""
    target = {"what": "accuracy", "target": "0.9", "ours": "0.8", "best_rival": "", "met": False}
    table = {"columns": ["a", "b"], "rows": [["1", "2"]]}
    texts = {"title": "Letters", "what": "It works.", "commit": None, "date": None, "hardware": None, "seeds": None}
    lists = {"commands": ["longspan list"], "tables": [table], "targets": [target], "notes": []}
    return {"area": "documents", "position": 1, **texts, **lists, **changed}


def test_a_section_shows_missing_values_and_links_from_the_folder_of_the_pages(tmp_path: Path) -> None:
    notes = ["[Log](LOG.md), [guide](docs/tour.md#train), [paper](https://example.org/LOG.md)."]
    (tmp_path / "letters.json").write_text(json.dumps(section(notes=notes)), encoding="utf-8")
    (area,) = script.read_sections(tmp_path).items()
    text = script.area_page(*area)
    assert "| accuracy | 0.9 | 0.8 | | **missed** | [Letters](#letters) |" in text
    assert "    longspan list\n\n- Commit: not recorded. Date: not recorded." in text
    assert "[Log](../../LOG.md), [guide](../tour.md#train), [paper](https://example.org/LOG.md)." in text


def test_a_claim_is_in_the_results_with_its_verdict(tmp_path: Path) -> None:
    claim = {"claim": "Letters", "measured": "accuracy", "ours": "0.8", "baseline": "0.9", "verdict": "worse"}
    (tmp_path / "letters.json").write_text(json.dumps(section(claims=[claim])), encoding="utf-8")
    text = script.results_page(script.read_sections(tmp_path))
    assert "| [Letters](docs/results/documents.md#letters) | accuracy | 0.8 | 0.9 | **worse** |" in text
    assert re.search(r"^\| \[Document classification\]\(docs/results/documents.md\) \|.*\| 1 \| 0 \| 1 \|$", text, re.M)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "'a.json' is not JSON: "),
        ("a.json", "[]", "'a.json' should be an object, got list."),
        ("a.json", json.dumps(section(date=1)), "'a.json' has 'date' of the type int, where str or null is expected."),
        ("a.json", json.dumps(section(speed="2")), "'a.json' has the unknown key 'speed'; the keys are "),
        ("a.json", json.dumps(section(area="speeds")), "'a.json' has the unknown area 'speeds'; the areas are "),
        ("a.json", json.dumps({"title": "A"}), "'a.json' lacks the key 'area'."),
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
            json.dumps(section(claims=[{"claim": "", "measured": "", "ours": "", "baseline": "", "verdict": "good"}])),
            "Claim 1 of 'a.json' has the verdict 'good', expected better, equal, worse, missed.",
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
    with pytest.raises(script.ResultsError) as raised:
        script.read_sections(tmp_path)
    assert str(raised.value).startswith(message)
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)


def test_check_reports_a_file_that_would_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, path in (("RESULTS", "RESULTS.md"), ("LOG", "LOG.md"), ("PAGES", "results")):
        monkeypatch.setattr(script, name, tmp_path / path)
    script.LOG.write_text(LOG, encoding="utf-8")
    script.PAGES.mkdir()
    old = script.PAGES / "old.md"
    old.write_text("# An area that has no section\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["results.py", "--check"])
    assert script.main() == 1
    message = "{} differs from what 'python docs/results.py' writes; run it and commit.\n"
    assert capsys.readouterr().err == message.format("RESULTS.md")
    assert not script.RESULTS.exists()
    monkeypatch.setattr(sys, "argv", ["results.py"])
    assert script.main() == 0
    assert script.RESULTS.read_text(encoding="utf-8") == RESULTS
    assert {path.stem: path.read_text(encoding="utf-8") for path in script.PAGES.glob("*.md")} == PAGES
    old.write_text("# An area that has no section\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["results.py", "--check"])
    assert script.main() == 1
    assert capsys.readouterr().err == message.format("old.md")
    (tmp_path / "a.json").write_text("{", encoding="utf-8")
    monkeypatch.setattr(script.read_sections, "__defaults__", (tmp_path,))
    assert script.main() == 1
    assert capsys.readouterr().err.startswith("'a.json' is not JSON: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Log\n", "'LOG.md' lacks the lines '<!-- index -->' and '<!-- end of the index -->'."),
        ("## 2026-01-01. A title.\n\nText.\n", "The entry 'A title.' of 'LOG.md' has the area 'none', expected "),
        (
            "## 2026-01-01. A title.\n<!-- areas: speeds -->\n",
            "The entry 'A title.' of 'LOG.md' has the area 'speeds', ",
        ),
    ],
)
def test_a_malformed_log_gives_a_sentence(text: str, message: str) -> None:
    index = "" if text.startswith("# ") else "<!-- index -->\n<!-- end of the index -->\n\n"
    with pytest.raises(script.ResultsError, match=rf"^{re.escape(message)}.*\.?$"):
        script.log_page(f"{index}{text}")


def test_every_entry_of_the_log_is_dated_short_newest_first_and_in_the_index_of_its_areas() -> None:
    entries = re.findall(r"^## (.+)\n<!-- areas: (.+) -->\n", LOG, re.MULTILINE)
    assert [heading for heading, _ in entries] == re.findall(r"^## (.+)$", LOG, re.MULTILINE) != []
    for heading, _ in entries:
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}\. \S.*\.", heading), heading
        assert len(heading.split()) <= 1 + 12, heading
    dates = [heading[:10] for heading, _ in entries]
    assert dates == sorted(dates, reverse=True)
    anchors = [script.anchor(heading) for heading, _ in entries]
    assert len({*anchors}) == len(anchors)
    index = LOG.split("<!-- index -->")[1].split("<!-- end of the index -->")[0]
    parts = re.split(r"^\*\*(.+)\*\*$", index, flags=re.MULTILINE)[1:]
    linked = {
        (title, f"{date}. {name}.", anchor)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
        for date, name, anchor in re.findall(r"^- (\S+)\. \[(.+)\]\(#(.+)\)$", text, re.MULTILINE)
    }
    assert linked == {
        (script.LOG_AREAS[area], heading, script.anchor(heading))
        for heading, areas in entries
        for area in areas.split(", ")
    }
