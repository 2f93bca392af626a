"""What is built for others: wheel and sdist hold the package and its licence, and the wheel runs by itself."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any, NamedTuple

import interpreters
import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERBS = [["recipes"], ["list"], ["show", "classify"]]


class Built(NamedTuple):
    """A copy of the repository, and what was built from it: the sdist, and from that the wheel."""

    copy: Path
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    copy, out = tmp_path_factory.mktemp("copy") / "longspan", tmp_path_factory.mktemp("out")
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs")
    shutil.copytree(ROOT, copy, ignore=ignored)
    # Without isolation, so that no package is fetched.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=out)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return Built(copy, wheel, sdist)


@pytest.fixture(scope="module")
def unpacked(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(built.wheel) as wheel:
        wheel.extractall(folder)
    return folder


def import_first(unpacked: Path) -> str:
    """Code that prefers the unpacked wheel to all that is installed, in an interpreter that has not imported it."""
    return f"import sys\nsys.path.insert(0, {str(unpacked)!r})\n"


def run(unpacked: Path, elsewhere: Path, *arguments: str) -> str:
    """Run Python with the unpacked wheel before all that is installed, and without the current directory."""
    command = [sys.executable, "-P", "-s", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


@pytest.mark.slow
def test_indexes_take_both_files(built: Built) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", str(built.wheel), str(built.sdist)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    source = built.copy / "src"
    wanted = {path.relative_to(source).as_posix() for path in (source / "longspan").rglob("*") if path.is_file()}
    assert {"longspan/py.typed", "longspan/recipes/classify.toml", "longspan/__main__.py"} <= wanted
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
    about = f"longspan-{PROJECT['version']}.dist-info/"
    assert {name for name in names if not name.startswith(about)} == wanted
    assert f"{about}licenses/LICENSE" in names


@pytest.mark.slow
def test_the_sdist_holds_the_source(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    source = {
        f"src/{path.relative_to(built.copy / 'src').as_posix()}" for path in built.copy.glob("src/longspan/**/*.*")
    }
    assert {"LICENSE", "README.md", "pyproject.toml", *source} <= names
    # Some tests without their helpers would not run.
    assert not any(name.startswith("tests") for name in names)


@pytest.mark.slow
def test_metadata(unpacked: Path) -> None:
    (folder,) = unpacked.glob("*.dist-info")
    told = Parser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))
    assert told["Version"] == PROJECT["version"]
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Description-Content-Type"] == "text/markdown"
    assert "longspan = longspan.cli:run" in (folder / "entry_points.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_unpacked_wheel_answers_help(unpacked: Path, tmp_path: Path) -> None:
    assert run(unpacked, tmp_path, "-m", "longspan", "--help").startswith("usage: longspan")


@pytest.mark.slow
def test_the_unpacked_wheel_runs_by_itself(unpacked: Path, tmp_path: Path) -> None:
    """Several verbs in one process, as most of their time is imports."""
    code = f"""
import longspan, longspan.cli
print(longspan.__file__, longspan.__version__)
for arguments in {VERBS!r}:
    assert longspan.cli.main(arguments) == 0
"""
    first, _, printed = interpreters.printed(import_first(unpacked) + code, tmp_path).partition("\n")
    assert first == f"{unpacked / 'longspan' / '__init__.py'} {PROJECT['version']}"
    for name in (path.stem for path in (unpacked / "longspan" / "recipes").glob("*.toml")):
        assert f"  {name} " in printed
    assert "Fastformer" in printed
    assert "training.num_train_epochs=" in printed


@pytest.mark.slow
def test_the_readme_runs_with_the_unpacked_wheel(unpacked: Path, animals: Path, tmp_path: Path) -> None:
    """Its commands and its Python lines, as they are printed, at a small size."""
    shutil.copy(animals, tmp_path / "reviews.csv")
    for name in ("bank", "aunt"):
        folder = tmp_path / "letters" / name
        folder.mkdir(parents=True)
        for number in range(20):
            (folder / f"{number}.txt").write_text(f"Dear {name}, letter {number}.", encoding="utf-8")
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox/monday.txt").write_text("Dear aunt.", encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    bash, python = (
        re.findall(rf"^```{kind}\n(.*?)^```", readme, re.MULTILINE | re.DOTALL) for kind in ("bash", "python")
    )
    small = ["model.dim=8", "training.min_steps=0", "training.max_minutes=0", "training.num_train_epochs=1"]
    commands = [shlex.split(line)[1:] for line in "".join(bash).splitlines()]
    assert [command[0] for command in commands] == ["train", "predict", "explain", "compare"]
    # The last starts processes of its own, and runs in the tests of the README.
    commands.pop()
    code = f"""
import functools
import longspan.cli
for command in {commands!r}:
    more = {small!r} if command[0] == "train" else []
    assert longspan.cli.main(command + more) == 0, command
longspan.train = functools.partial(longspan.train, min_steps=0, max_minutes=0)
exec(compile({"".join(python)!r}, "README.md", "exec"))
print(longspan.__file__)
"""
    printed = interpreters.printed(import_first(unpacked) + code, tmp_path)
    assert printed.splitlines()[-1] == str(unpacked / "longspan" / "__init__.py")
    assert '"label": ' in printed


def cited() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8")))


def test_version_citation_and_changelog_agree() -> None:
    found = re.findall(r"^## \[([^]]+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert found[0] == (PROJECT["version"], cited()["date-released"])
    assert cited()["version"] == PROJECT["version"]
    dates = [date for _, date in found]
    assert dates == sorted(dates, reverse=True)


def test_the_citation_has_what_its_format_asks_for() -> None:
    """The keys that Citation File Format 1.2.0 requires, and its names for what it allows."""
    told = cited()
    assert told["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "abstract"} <= set(told)
    assert told["license"] == PROJECT["license"]
    assert [author["name"] for author in told["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", told["date-released"])
    for each in told["references"]:
        assert each["type"] == "article"
        assert each["title"]
        assert all({"family-names", "given-names"} == set(author) for author in each["authors"])
    numbers = [each["identifiers"][0]["value"] for each in told["references"]]
    assert numbers == ["arXiv:2108.09084", "arXiv:1901.02860", "arXiv:1706.03762"]


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.split()[:5] == ["Apache", "License", "Version", "2.0,", "January"]
    assert "END OF TERMS AND CONDITIONS" in text
    assert "limitations under the License." in text.rstrip()[-40:]
