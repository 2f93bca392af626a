"""What is imported is declared in pyproject.toml, and what is declared is used and has bounds."""

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import longspan
from longspan.errors import EXTRAS

SOURCES = sorted(Path(longspan.__file__).parent.rglob("*.py"))
PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Everything that pip installs by itself, and what a user asks for by name.
ALWAYS = PROJECT["dependencies"]
# Files that need more than pip installs by itself. Triton comes with PyTorch where PyTorch can use it; its kernels are
# imported for tensors on a GPU alone. Estimators for scikit-learn are imported by those who have it.
# The verbs `serve` and `predict` import such modules once they know that the packages are there.
# Numba comes with the one release of llvmlite that it works with.
NEED_MORE = {
    "sklearn.py": {"scikit-learn"},
    "simd.py": {"llvmlite"},
    "triton.py": {"triton"},
    "app.py": {"fastapi"},
    "ray_data.py": {"ray"},
    "server.py": {"uvicorn"},
}
# A variable of the Makefile, which may go on in further lines.
ASSIGNED = r"^(\w+) := ((?:.*\\\n)*.*)$"
NOT_OURS = ("dev", "docs", "peers", "rivals", "spark")
OPTIONAL = {name: wanted for name, wanted in PROJECT["optional-dependencies"].items() if name not in NOT_OURS}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> set[str]:
    return {plain(re.split(r"[<>=!~\[; ]", requirement, maxsplit=1)[0]) for requirement in requirements}


def imported(path: Path) -> tuple[set[str], set[str]]:
    """Return the packages that a file imports with its own import, and those that it imports when they are needed."""
    first: set[str] = set()
    later: set[str] = set()

    def visit(node: ast.AST, found: set[str]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found |= {alias.name.split(".")[0] for alias in child.names}
            elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
                found.add(child.module.split(".")[0])
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or for_types(child):
                visit(child, later)
            else:
                visit(child, found)

    def for_types(node: ast.AST) -> bool:
        return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"

    visit(ast.parse(path.read_text(encoding="utf-8")), first)
    ours = sys.stdlib_module_names | {"longspan"}
    return first - ours, later - ours


@functools.cache
def installed() -> Mapping[str, list[str]]:
    return packages_distributions()


def distributions(modules: set[str]) -> set[str]:
    known = installed()
    return {plain(name) for module in modules for name in known.get(module, [module])}


@pytest.mark.slow
def test_imports_are_seen() -> None:
    found = [imported(path) for path in SOURCES]
    assert "torch" in set().union(*(first for first, _ in found))
    assert "peft" in set().union(*(later for _, later in found))


@pytest.mark.slow
def test_what_is_imported_is_declared() -> None:
    always, optional = declared(ALWAYS), declared([each for wanted in OPTIONAL.values() for each in wanted])
    for path in SOURCES:
        first, later = (distributions(modules) for modules in imported(path))
        missing = first - always - NEED_MORE.get(path.name, set())
        assert not missing, f"{path.name} imports {missing}, which pip does not install"
        undeclared = later - always - optional
        assert not undeclared, f"{path.name} imports {undeclared}, which pyproject.toml does not name"


@pytest.mark.slow
def test_what_is_declared_is_used() -> None:
    used: set[str] = set()
    for path in SOURCES:
        used |= distributions(set.union(*imported(path)))
    wanted = declared([*ALWAYS, *(each for group in OPTIONAL.values() for each in group)])
    assert wanted <= used, f"nothing imports {wanted - used}"


def test_users_packages_have_the_bounds_that_were_tested() -> None:
    for requirement in [*ALWAYS, *(each for group in OPTIONAL.values() for each in group)]:
        assert re.fullmatch(r"[a-z0-9-]+>=[\d.]+,<[\d.]+", requirement), requirement


def test_the_set_up_installs_what_is_within_the_bounds() -> None:
    oldest, usual, newest = (pinned(f"constraints{name}.txt") for name in ("-oldest", "", "-newest"))
    for requirement in [*ALWAYS, *(each for group in OPTIONAL.values() for each in group)]:
        name, least, below = re.split(r">=|,<", requirement)
        assert numbers(least) <= usual[plain(name)] <= newest[plain(name)] < numbers(below), requirement
        if plain(name) in oldest or requirement in ALWAYS:
            assert oldest[plain(name)][: len(numbers(least))] == numbers(least), requirement


@pytest.mark.slow
def test_the_oldest_set_up_has_what_tests_import() -> None:
    tests, makefile = Path(__file__).parent, (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    words = {name: re.findall(r"[^\s,\\]+", value) for name, value in re.findall(ASSIGNED, makefile, re.MULTILINE)}
    extras = [each for extra in words["EXTRAS_oldest"] for each in OPTIONAL[extra]]
    there = declared(ALWAYS) | declared(extras) | declared(words["PACKAGES_oldest"])
    files = [path for path in tests.rglob("*.py") if path.relative_to(tests.parent).as_posix() not in makefile]
    ours = {path.stem for path in tests.rglob("*.py")}
    for path in files:
        missing = distributions(imported(path)[0] - ours) - there
        assert not missing, f"{path.name} imports {missing}, which `make test-oldest` does not install"


def test_messages_name_an_extra_that_installs_the_package() -> None:
    provided = {name: declared(wanted) for name, wanted in OPTIONAL.items()}
    # ONNX comes with onnxscript.
    for module, extra in EXTRAS.items():
        assert distributions({module}) <= provided[extra] | {"onnx"}, module
    wanted = set().union(*provided.values())
    assert wanted == distributions({*EXTRAS}) - {"onnx"}


def pinned(file: str) -> dict[str, tuple[int, ...]]:
    lines = (Path(__file__).parents[1] / file).read_text(encoding="utf-8").splitlines()
    return {
        plain(name): numbers(version) for name, equals, version in (line.partition("==") for line in lines) if equals
    }


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0]))
