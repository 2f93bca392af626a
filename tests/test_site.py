"""The sources of the site, and the built site if BUILT_SITE names its folder, as in `make docs`."""

import ast
import json
import os
import re
import runpy
import shlex
import tomllib
import zlib
from pathlib import Path

import pytest

import longspan
from longspan import mixers, recipes, testing
from longspan.cli import build_parser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = sorted(path.stem for path in (DOCS / "guides").glob("*.md") if path.stem != "index")
GALLERY = sorted((DOCS / "gallery").glob("plot_*.py"))
#: What a script of the gallery may not import: it reads nothing from the network.
NETWORK = {
    "aiohttp",
    "ftplib",
    "http",
    "httpx",
    "huggingface_hub",
    "requests",
    "smtplib",
    "socket",
    "urllib",
    "urllib3",
}
PAGES = sorted(path for folder in (".", "guides", "reference", "results") for path in DOCS.glob(f"{folder}/*.md"))
CONTENTS = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)


def listed() -> set[str]:
    """Return the names that docs/reference/python.rst has pages for."""
    found, module = set(), ""
    for line in (DOCS / "reference" / "python.rst").read_text(encoding="utf-8").splitlines():
        if line.startswith(".. currentmodule::"):
            module = line.split()[-1]
        elif re.fullmatch(r"   [\w.]+", line):
            found.add(f"{module}.{line.strip()}")
    return found


def public() -> set[str]:
    """Return the names that need a page."""
    estimators = {f"longspan.sklearn.Longspan{kind}" for kind in ("Classifier", "Regressor", "Tagger")}
    ops = {path.stem for path in (ROOT / "src" / "longspan" / "ops").glob("*") if not path.stem.startswith("_")}
    return (
        {f"longspan.{name}" for name in longspan.__all__}
        | {f"longspan.testing.{name}" for name in testing.__all__}
        | {f"longspan.ops.{name}" for name in ops}
        | estimators
    )


def test_every_public_name_has_a_page() -> None:
    assert public() <= listed()


@pytest.fixture
def site() -> Path:
    """The folder of the built site. The suite does not check a site that may be older than its sources."""
    if "BUILT_SITE" not in os.environ:
        pytest.skip("needs BUILT_SITE, which `make docs` sets")
    return ROOT / os.environ["BUILT_SITE"]


def test_the_built_site_has_every_public_name(site: Path) -> None:
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    names = {line.split(" ")[0] for line in zlib.decompress(packed).decode().splitlines() if " py:" in line}
    kinds = (mixers.load(name) for name in mixers.names())
    assert public() | {f"{kind.__module__}.{kind.__name__}" for kind in kinds} <= names


def test_every_mechanism_has_equations() -> None:
    equations = tomllib.loads((DOCS / "reference" / "equations.toml").read_text(encoding="utf-8"))
    assert [*equations] == mixers.names()
    assert all(words and formula for one in equations.values() for words, formula in one["lines"])


def test_the_guide_to_mixers_names_those_that_have_a_property() -> None:
    table = (DOCS / "guides" / "choosing-a-mixer.md").read_text(encoding="utf-8").partition("## By property")[2]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table.partition("```")[0], re.MULTILINE))
    able = {name: mixers.describe(name) for name in mixers.names()}

    def named(need: str) -> set[str]:
        return set(re.findall(r"`(\w+)`", rows[need]))

    assert named("a causal form") == {name for name, one in able.items() if not one.causal}
    assert named("cross attention") == {name for name, one in able.items() if one.context}
    assert rows["packed documents in a row"] == "all"
    assert all(one.packing for one in able.values())
    limited = {name for name in able if "max_length" in mixers.options(name)}
    assert named("no limit on length") == limited | {"max_length"}
    causal = {name: mixers.build(name, 64, causal=True) for name, one in able.items() if one.streaming}
    growing = {name for name, mixer in causal.items() if mixer.state_size(100_000) > mixer.state_size(10_000)}
    windows = {name for name, mixer in causal.items() if mixer.state_size(10_000) > mixer.state_size(100)} - growing
    assert named("a state that does not grow") == growing | windows


def test_every_page_is_in_a_table_of_contents() -> None:
    contents = [DOCS / name for name in ("index.md", "tasks.md", "guides/index.md", "reference/index.md")]
    named = {
        (page.parent / f"{line.split('<')[-1].rstrip('>')}.md").resolve()
        for page in contents
        for block in CONTENTS.findall(page.read_text(encoding="utf-8"))
        for line in block.splitlines()
        if line and not line.startswith(":")
    }
    pages = {path.resolve() for path in PAGES}
    # The mechanisms are below a page that is made from the code.
    assert pages - named == {DOCS / "index.md", DOCS / "mechanisms.md"}


@pytest.mark.parametrize("guide", GUIDES)
def test_the_commands_of_a_guide_have_the_keys_they_name(guide: str) -> None:
    blocks = runpy.run_path(str(DOCS / "run_guides.py"))["blocks"]
    _, verbs = build_parser()
    for language, text in blocks(guide):
        commands = [shlex.split(line.partition(" > ")[0]) for line in text.splitlines() if language == "bash"]
        for program, verb, *arguments in commands:
            assert program == "longspan"
            given = verbs[verb].parse_intermixed_args(arguments)
            if verb in ("train", "compare") and given.recipe in recipes.names():
                recipes.load(given.recipe, given.overrides).require_data()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_the_recipes_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"longspan (?:train|compare) ([a-z][a-z0-9-]*)(?=[\s`])", text)
    runs = re.findall(r"--run ([a-z][a-z0-9-]*)", text)
    assert {*named} <= {*recipes.names(), *runs}


def test_every_script_of_the_gallery_is_in_its_index() -> None:
    """The index that sphinx-gallery makes has every script whose name begins with `plot_`, and no other file."""
    assert GALLERY
    assert {path.name for path in (DOCS / "gallery").glob("*.*")} == {path.name for path in GALLERY} | {"README.rst"}


def test_the_built_gallery_has_every_script(site: Path) -> None:
    index = (site / "auto_gallery" / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'href="(plot_\w+)\.html', index)) == {path.stem for path in GALLERY}


@pytest.mark.parametrize("script", GALLERY, ids=lambda path: path.stem)
def test_a_script_downloads_as_a_notebook(script: Path, site: Path) -> None:
    page = site / "auto_gallery" / f"{script.stem}.html"
    (link,) = set(re.findall(rf'href="([^"]+/{script.stem}\.ipynb)"', page.read_text(encoding="utf-8")))
    notebook = json.loads((page.parent / link).read_text(encoding="utf-8"))
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    assert ast.dump(ast.parse(code)) == ast.dump(without_docstring(script))


def without_docstring(script: Path) -> ast.Module:
    tree = ast.parse(script.read_text(encoding="utf-8"))
    tree.body = tree.body[1:]
    return tree


def used(script: Path) -> set[str]:
    """Return the public names that a script uses and that have a page of their own, and `longspan.mixers`."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    found = {
        f"{node.module}.{name.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("longspan")
        for name in node.names
        if name.name != "mixers"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "longspan":
                found.add(f"longspan.{node.attr}")
            elif (node.value.id, node.attr) == ("mixers", "build"):
                found.add("longspan.mixers")
    return found & listed()


def test_a_script_is_on_the_pages_of_what_it_uses(site: Path) -> None:
    lacking = []
    for script in GALLERY:
        assert used(script), f"{script.stem} uses nothing that has a page"
        for name in used(script):
            page = (site / "reference" / "generated" / "api" / f"{name}.html").read_text(encoding="utf-8")
            if f"auto_gallery/{script.stem}.html" not in page:
                lacking.append((script.stem, name))
    assert not lacking


@pytest.mark.parametrize("script", GALLERY, ids=lambda path: path.stem)
def test_a_script_of_the_gallery_has_a_title_and_reads_nothing_from_the_network(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    tree = ast.parse(text)
    title, line, blank, first = (ast.get_docstring(tree) or "").splitlines()[:4]
    assert 10 <= len(title) <= 60
    assert set(line) == {"="}
    assert len(line) == len(title)
    assert not blank
    assert first
    imported = {
        name.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert not {name.split(".")[0] for name in imported} & NETWORK
    # Nor by way of a library.
    assert not re.search(r"https?://|load_dataset\(|fetch_\w+\(|snapshot_download|hf_hub_download", text)
    # Each ends with what it has shown and where to go on.
    assert "\n# Take away: " in text
    assert re.search(r":doc:`/[\w/-]+`", text.rpartition("# Take away: ")[2])


def prose(page: Path) -> str:
    """Return the text of a page without code."""
    text = re.sub(r"^(```+|~~~+)(?!\{).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(`+)[^`\n]+\1(?!`)", lambda code: "" if "(" in code[0] else code[0], text)


def anchors(page: Path) -> set[str]:
    """Return the anchors that the headings and labels of a page make, as on GitHub."""
    text = prose(page)
    slugs: list[str] = []
    for heading in re.findall(r"^#{1,4} (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower().strip()
        slug = re.sub(r"[^\w\s-]", "", plain).replace(" ", "-")
        slugs.append(slug if slug not in slugs else f"{slug}-{slugs.count(slug)}")
    return {*slugs, *re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_the_links_of_a_page_resolve(page: Path) -> None:
    """Links between pages, with their anchors, and to files of the repository. docs/links.py checks the built site."""
    text = prose(page)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists() or "generated/files/" in name, f"no such file: {target}"
        if anchor and file.suffix == ".md" and file.exists():
            assert anchor in anchors(file), f"no such anchor: {target}"
    for target in re.findall(r"\{doc\}`(?:[^`<]*<)?([^`>]+)>?`", page.read_text(encoding="utf-8")):
        file = DOCS / target[1:] if target.startswith("/") else page.parent / target
        if file.parent.name == "auto_gallery":
            file = DOCS / "gallery" / file.name
            assert file.with_suffix(".py").exists() or file.name == "index", f"no such script: {target}"
        elif "generated" not in file.parts:
            assert file.with_name(f"{file.name}.md").exists(), f"no such page: {target}"
