"""Write RESULTS.md, docs/results/*.md and the index of LOG.md: `python docs/results.py`.

`--check` writes nothing, and ends with exit code 1 if a file differs from the generated text. Each file of
benchmarks/results is one section of the page of its `area`, sorted by `position`. RESULTS.md has the `claims` of all
sections. Numbers are strings, written as they appear on the page. A value that was not recorded is null.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Section = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
SECTIONS, PAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "results"
RESULTS, LOG = ROOT / "RESULTS.md", ROOT / "LOG.md"
#: Title and contents of the page of each area, in the order of RESULTS.md.
AREAS = {
    "every-task": ("Every task", "counts, network, both and a simpler model"),
    "documents": ("Document classification", "film reviews, genres, authors, few labels, pretraining on masked words"),
    "tagging": ("Token classification", "parts of speech, named entities, chunks"),
    "question-answering": ("Question answering", "evidence in meetings, facts in long documents"),
    "translation": ("Translation and summaries", "captions, meetings, cross attention"),
    "recommendation": ("Recommendation", "generated preferences, Bing news, speed"),
    "language-models": ("Language models", "characters, words, n-gram counts, carried states, recall"),
    "long-range-arena": ("Long Range Arena", "mixers with ten minutes each: pixels, ListOps, bytes"),
    "images": ("Images", "CIFAR-10 from patches and from pixels"),
    "audio": ("Audio", "spoken digits, frames of long recordings"),
    "graphs": ("Graphs", "citation graphs, generated graphs, speed of attention over edges"),
    "explanations": ("Explanations", "faithfulness of scores, a planted phrase, size of the page"),
    "speed": ("Speed and memory", "length, generation, start-up, predictions of `longspan plan`"),
    "kernels": ("Mixers and kernels", "other libraries, roofline, windows, scans"),
    "scale": (
        "More than one process",
        "predictions, weights, sequences and runs over processes; large data",
    ),
    "model-checks": ("Checks of models", "what `longspan check` finds in models of transformers"),
}
#: Titles of the areas of LOG.md.
LOG_AREAS = {
    **{area: title for area, (title, _) in AREAS.items()},
    "training": "Training",
    "data": "Reading data",
    "structure": "Structure, tests and documentation",
}
#: The keys of the objects in a JSON file, with their types, and those that may be missing.
SECTION: dict[str, tuple[type, ...]] = {
    "title": (str,),
    "area": (str,),
    "position": (int,),
    "what": (str,),
    "commands": (list,),
    "commit": (str, type(None)),
    "date": (str, type(None)),
    "hardware": (str, type(None)),
    "seeds": (str, type(None)),
    "tables": (list,),
    "figures": (list,),
    "claims": (list,),
    "targets": (list,),
    "notes": (list,),
}
TABLE: dict[str, tuple[type, ...]] = {"caption": (str,), "columns": (list,), "rows": (list,)}
FIGURE: dict[str, tuple[type, ...]] = {"path": (str,), "alt": (str,)}
CLAIM: dict[str, tuple[type, ...]] = dict.fromkeys(("claim", "measured", "ours", "baseline", "verdict"), (str,))
TARGET: dict[str, tuple[type, ...]] = dict.fromkeys(("what", "target", "ours", "best_rival"), (str,))
TARGET["met"] = (bool, type(None))
OPTIONAL = {"caption", "figures", "claims"}
TARGET_VERDICTS = {True: "met", False: "**missed**", None: "not measured"}
CLAIM_VERDICTS = {"better": "better", "equal": "equal", "worse": "**worse**", "missed": "**missed**"}
HEAD = """# Results

The claims of the project, with the losses. Each links to its tables, commands, commits, hardware and seeds.
`python docs/results.py` writes this page and those of the areas from `benchmarks/results/*.json`: edit those files.

## Claims

- **Better**, **equal**, **worse**: against the baseline named first. Equal: the difference is within noise.
- **Missed**: a target that was set beforehand is not reached.

| claim | measured | longspan | baseline | verdict |
|---|---|---|---|---|
"""
AREA_HEAD = """
## All results

Targets were set before the measurements. A result can meet its target below a baseline, and miss it above one.

| area | contents | sections | targets met | targets missed |
|---|---|---|---|---|
"""
FOOT = """
## Conditions

- Software, unless a section names another: Python 3.11, torch 2.13.0 (CPU), transformers 5.23.
- "Shared machine": other processes ran at the same time, so the scores count and the times do not.
- A commit with "+" had unfinished files next to it, which the run did not use.
- [LOG.md](LOG.md) has experiments and decisions, with those that did not help.
"""
INDEX = re.compile(r"(<!-- index -->\n)(.*?)(<!-- end of the index -->)", re.DOTALL)
ENTRY = re.compile(r"^## (\d{4}-\d{2}-\d{2}\. (\S.*))\n(?:<!-- areas: (.+) -->\n)?", re.MULTILINE)
LINK = re.compile(r"(\]\()([^)#:\s]+)")


class ResultsError(Exception):
    """Error in a JSON file or in LOG.md. The message is one sentence."""


def anchor(title: str) -> str:
    """Anchor of a heading on GitHub and on the site."""
    return re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-")


def validate_object(value: Any, keys: Mapping[str, tuple[type, ...]], where: str) -> None:
    """Raise an error if an object has unknown keys, lacks keys, or has values of other types."""
    if not isinstance(value, dict):
        raise ResultsError(f"{where} should be an object, got {type(value).__name__}.")
    for key in value.keys() - keys.keys():
        raise ResultsError(f"{where} has the unknown key '{key}'; the keys are {', '.join(keys)}.")
    for key in keys:
        if key not in value:
            if key in OPTIONAL:
                continue
            raise ResultsError(f"{where} lacks the key '{key}'.")
        kind = type(value[key])
        if kind not in keys[key]:
            expected = " or ".join("null" if one is type(None) else one.__name__ for one in keys[key])
            raise ResultsError(f"{where} has '{key}' of the type {kind.__name__}, where {expected} is expected.")


def validate_strings(values: list[Any], where: str) -> None:
    """Raise an error if a list has a value that is not a string."""
    for value in values:
        if not isinstance(value, str):
            raise ResultsError(f"{where} should hold strings alone, got {value!r}.")


def read_section(path: Path) -> Section:
    """Read the section of a JSON file."""
    where = f"'{path.name}'"
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*\.json", path.name):
        raise ResultsError(f"{where} should have a name in kebab-case, such as 'film-reviews.json'.")
    try:
        section = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResultsError(f"{where} is not JSON: {error}.") from error
    validate_object(section, SECTION, where)
    if section["area"] not in AREAS:
        raise ResultsError(f"{where} has the unknown area '{section['area']}'; the areas are {', '.join(AREAS)}.")
    validate_strings(section["commands"], f"'commands' of {where}")
    validate_strings(section["notes"], f"'notes' of {where}")
    for number, table in enumerate(section["tables"], 1):
        here = f"Table {number} of {where}"
        validate_object(table, TABLE, here)
        validate_strings(table["columns"], f"'columns' of {here}")
        for row in table["rows"]:
            if not isinstance(row, list) or len(row) != len(table["columns"]):
                raise ResultsError(f"{here} has the row {row!r}, where {len(table['columns'])} cells are expected.")
            validate_strings(row, f"A row of {here}")
    for number, figure in enumerate(section.get("figures", []), 1):
        validate_object(figure, FIGURE, f"Figure {number} of {where}")
        if not (ROOT / figure["path"]).is_file():
            raise ResultsError(f"Figure {number} of {where} is '{figure['path']}', and there is no such file.")
    for number, claim in enumerate(section.get("claims", []), 1):
        validate_object(claim, CLAIM, f"Claim {number} of {where}")
        if claim["verdict"] not in CLAIM_VERDICTS:
            expected = ", ".join(CLAIM_VERDICTS)
            raise ResultsError(f"Claim {number} of {where} has the verdict '{claim['verdict']}', expected {expected}.")
    for number, target in enumerate(section["targets"], 1):
        validate_object(target, TARGET, f"Target {number} of {where}")
    return section


def read_sections(folder: Path = SECTIONS) -> dict[str, list[Section]]:
    """Sections of a folder by area, in the order of `AREAS` and of their positions."""
    positions: dict[int, tuple[str, Section]] = {}
    titles = {"targets": "the index"}
    for path in sorted(folder.glob("*.json")):
        section = read_section(path)
        other = positions.setdefault(section["position"], (path.name, section))[0]
        if other != path.name:
            raise ResultsError(f"'{path.name}' has the position {section['position']}, as '{other}' has.")
        other = titles.setdefault(anchor(section["title"]), path.name)
        if other != path.name:
            raise ResultsError(f"'{path.name}' has the title '{section['title']}', as {other} has.")
    areas: dict[str, list[Section]] = {area: [] for area in AREAS}
    for position in sorted(positions):
        section = positions[position][1]
        areas[section["area"]].append(section)
    return {area: sections for area, sections in areas.items() if sections}


def table_row(cells: Sequence[str]) -> str:
    """Row of a Markdown table."""
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def section_text(section: Section) -> str:
    """Markdown of a section."""
    parts = [f"## {section['title']}", section["what"]]
    for table in section["tables"]:
        if "caption" in table:
            parts.append(table["caption"])
        line = "|" + "---|" * len(table["columns"])
        parts.append("\n".join([table_row(table["columns"]), line, *map(table_row, table["rows"])]))
    parts += [f"![{figure['alt']}]({figure['path']})" for figure in section.get("figures", [])]
    if section["commands"]:
        lines = [line for command in section["commands"] for line in command.splitlines()]
        parts.append("\n".join(f"    {line}" for line in lines))
    facts = [("Commit", "commit"), ("Date", "date"), ("Hardware", "hardware"), ("Seeds", "seeds")]
    recorded = [f"{name}: {section[key] or 'not recorded'}." for name, key in facts]
    parts.append("\n".join(["- " + " ".join(recorded), *(f"- {note}" for note in section["notes"])]))
    return "\n\n".join(parts) + "\n"


def area_page(area: str, sections: Sequence[Section]) -> str:
    """Text of the page of an area. Links, which start at the root of the repository, are rewritten for docs/results."""
    title, contents = AREAS[area]
    lines = [
        f"# {title}: results",
        "",
        f"{contents[0].upper()}{contents[1:]}. [Claims and conditions](RESULTS.md).",
        "",
    ]
    targets = [
        table_row([target["what"], target["target"], target["ours"], target["best_rival"], verdict, link])
        for section in sections
        for link in [f"[{section['title']}](#{anchor(section['title'])})"]
        for target in section["targets"]
        for verdict in [TARGET_VERDICTS[target["met"]]]
    ]
    if targets:
        columns = ["target", "at least, or as stated", "longspan", "best baseline", "verdict", "section"]
        lines += ["## Targets", "", table_row(columns), "|" + "---|" * len(columns), *targets, ""]
    text = "\n".join([*lines, *map(section_text, sections)]).rstrip("\n") + "\n"

    def from_page(link: re.Match[str]) -> str:
        path = os.path.relpath(link[2], "docs/results") if (ROOT / link[2]).exists() else link[2]
        return f"{link[1]}{path}"

    return LINK.sub(from_page, text)


def results_page(areas: Mapping[str, Sequence[Section]]) -> str:
    """Text of RESULTS.md."""
    claims, rows = [], []
    for area, sections in areas.items():
        page = f"docs/results/{area}.md"
        claims += [
            table_row([link, claim["measured"], claim["ours"], claim["baseline"], CLAIM_VERDICTS[claim["verdict"]]])
            for section in sections
            for claim in section.get("claims", [])
            for link in [f"[{claim['claim']}]({page}#{anchor(section['title'])})"]
        ]
        verdicts = [target["met"] for section in sections for target in section["targets"]]
        title, contents = AREAS[area]
        counts = [str(count) for count in (len(sections), verdicts.count(True), verdicts.count(False))]
        rows.append(table_row([f"[{title}]({page})", contents, *counts]))
    return HEAD + "\n".join([*claims, ""]) + AREA_HEAD + "\n".join([*rows, ""]) + FOOT


def log_page(text: str) -> str:
    """Text of LOG.md with an index of its entries by area."""
    if not INDEX.search(text):
        raise ResultsError("'LOG.md' lacks the lines '<!-- index -->' and '<!-- end of the index -->'.")
    links: dict[str, list[str]] = {area: [] for area in LOG_AREAS}
    for heading, title, areas in ENTRY.findall(text):
        for area in (areas or "none").split(", "):
            if area not in links:
                expected = ", ".join(LOG_AREAS)
                raise ResultsError(f"The entry '{title}' of 'LOG.md' has the area '{area}', expected {expected}.")
            links[area].append(f"- {heading[:10]}. [{title.rstrip('.')}](#{anchor(heading)})\n")
    index = "\n".join(f"**{LOG_AREAS[area]}**\n\n{''.join(lines)}" for area, lines in links.items() if lines)
    return INDEX.sub(lambda match: f"{match[1]}\n{index}\n{match[3]}", text, count=1)


def generated_files() -> dict[Path, str]:
    """Text of every generated file."""
    areas = read_sections()
    pages = {PAGES / f"{area}.md": area_page(area, sections) for area, sections in areas.items()}
    return {RESULTS: results_page(areas), **pages, LOG: log_page(LOG.read_text(encoding="utf-8"))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a file would change")
    arguments = parser.parse_args()
    try:
        texts = generated_files()
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 1
    PAGES.mkdir(exist_ok=True)
    for path in sorted({*texts, *PAGES.glob("*.md")}):
        text = texts.get(path)
        if text == (path.read_text(encoding="utf-8") if path.exists() else None):
            continue
        if arguments.check:
            print(f"{path.name} differs from what 'python docs/results.py' writes; run it and commit.", file=sys.stderr)
            return 1
        if text is None:
            path.unlink()
        else:
            path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
