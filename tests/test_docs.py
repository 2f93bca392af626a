"""The pages of the documentation agree with the code."""

import ast
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from longspan import recipes
from longspan.cli import build_parser
from longspan.testing.tasks import PROMISES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.mark.slow
def test_the_figure_of_the_architecture_is_the_code() -> None:
    drawn = runpy.run_path(str(DOCS / "architecture.py"))["drawn"]
    assert drawn() == (DOCS / "images" / "architecture.svg").read_text(encoding="utf-8"), "run `make docs`"


def test_the_mechanisms_page_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "mechanisms.py"))["page"]()
    assert (DOCS / "mechanisms.md").read_text(encoding="utf-8") == page, "run `make docs`"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "number"),
    [
        ("labels.md", 7),
        ("pairs.md", 3),
        ("encoder.md", 5),
        ("question-answering.md", 3),
        ("recommendation.md", 12),
        ("translation.md", 5),
        ("summarisation.md", 4),
        ("audio.md", 3),
        ("frames.md", 3),
        ("images.md", 4),
    ],
)
def test_the_commands_have_the_keys_they_name(page: str, number: int) -> None:
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("longspan train")]
    assert len(commands) == number
    _, verbs = build_parser()
    for _, verb, *arguments in commands:
        given = verbs[verb].parse_intermixed_args(arguments)
        recipes.load(given.recipe, given.overrides).require_data()


def test_every_promise_has_a_row() -> None:
    lines = (DOCS / "promises.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert [row for row in rows if row in PROMISES] == list(PROMISES)


def names_in(path: Path) -> set[str]:
    """Names that a file defines: functions, classes, and `Class.name` for methods and fields."""

    def names(body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id

    body = ast.parse(path.read_text(encoding="utf-8")).body
    methods = (f"{node.name}.{name}" for node in body if isinstance(node, ast.ClassDef) for name in names(node.body))
    return {*names(body), *methods}


@pytest.mark.slow
def test_the_files_and_names_of_the_architecture_exist() -> None:
    """In each item and row, a path exists, where NAME stands for any name, and one of the files defines a name."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "longspan"
    packages = {path.stem for path in source.iterdir()}
    # Terms of transformers, PyTorch and the figure of a model.
    terms = {"embeddings -> backbone -> head", "Trainer", "labels", "forward"}
    found = 0
    for item in re.split(r"\n(?=\||\d+\. )|\n\n", page):
        spans = [span for span in re.findall(r"`([^`]+)`", item.replace("\n", " ")) if span not in terms]
        spans = [span.removeprefix("python ") for span in spans if not span.startswith("longspan ")]
        paths = [span for span in spans if "/" in span or span in packages]
        files: list[Path] = []
        for path in paths:
            matches = [*source.glob(path.replace("NAME", "*")), *ROOT.glob(path)]
            assert matches, f"no such file: {path}"
            files += [file for match in matches for file in ([match] if match.is_file() else match.rglob("*.py"))]
        defined = {name for file in files if file.suffix == ".py" for name in names_in(file)}
        for name in {*spans} - {*paths}:
            assert name in defined, f"'{name}' is not in {paths}"
            found += 1
    assert found >= 40


def test_the_files_that_contributing_names_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = {span for span in re.findall(r"`([\w./*]+)`", page) if "/" in span and "_build" not in span}
    assert len(paths) >= 20
    for path in paths:
        assert [*ROOT.glob(path.replace("NAME", "*"))] or [*(ROOT / "src" / "longspan").glob(path)], path


def test_contributing_lists_the_packages_in_the_order_of_imports() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = page.partition("| package in `src/longspan` | contents |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in rows.splitlines() if row.startswith("| ")]
    order = runpy.run_path(str(ROOT / "tests" / "test_architecture.py"))["ORDER"]
    assert [name.removesuffix(".py") for cell in cells for name in re.findall(r"`([\w.]+)`", cell)] == [
        name for name in order if not name.startswith("__")
    ]


def test_the_names_of_the_reference_exist() -> None:
    """Each is a module, or a name that its module defines; `longspan` itself loads its names as they are used."""
    module, found = "", 0
    for line in (DOCS / "reference" / "python.rst").read_text(encoding="utf-8").splitlines():
        if line.startswith(".. currentmodule::"):
            module = line.split()[-1]
        if not re.fullmatch(r"   \w+(\.\w+)+", line):
            continue
        path, name = ROOT / "src" / Path(*f"{module}.{line.strip()}".split(".")), ""
        if not path.is_dir() and not path.with_suffix(".py").exists():
            path, name = path.parent, path.name
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        assert not name or name in names_in(file), line
        found += 1
    assert found >= 100
