"""The rules of the source tree: imports go one way, importing is free, files stay readable."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import interpreters
import pytest

import longspan
from longspan import tasks
from longspan.machine import moved

ROOT = Path(longspan.__file__).parent
PICKLES = ROOT / "convert" / "weights.py"
# A module imports only from those on its left.
ORDER = [
    "errors",
    "options",
    "machine",
    "results",
    "ops",
    "mixers",
    "models",
    "data",
    "report",
    "training",
    "explanations",
    "tasks",
    "recipes",
    "challenges",
    "convert",
    "programs",
    "verbs",
    "sklearn",
    "serving",
    "testing",
    "cli",
    "__main__",
]


def sources() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("longspan.")}
    return found & set(ORDER)


@pytest.mark.slow
def test_imports_go_one_way() -> None:
    for path in sources():
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        assert part in ORDER, f"{path.name} has no place in the order"
        later = {name for name in imported(path) if ORDER.index(name) > ORDER.index(part)}
        assert not later, f"{path.relative_to(ROOT)} imports {later}, which come after {part}"


@pytest.mark.slow
def test_only_its_own_folder_and_conversion_know_a_task() -> None:
    """Everything else holds a `Task`; what comes with longspan has no other way in than what others write."""
    for path in sources():
        part = path.relative_to(ROOT).parts
        if part[0] == "convert":
            continue
        for name in tasks.names():
            if part[:2] != ("tasks", name):
                text = path.read_text(encoding="utf-8")
                assert not re.search(rf"^\s*(from|import) longspan\.tasks(\.| import ){name}\b", text, re.MULTILINE), (
                    path
                )


#: A file of more lines hides something that deserves a name.
ALARM = 800
#: Smaller modules with a single importer in their own folder belong into that importer, unless they are of these.
FRAGMENT = 120
APART = {
    "options, which `--help` reads without importing the rest": r"tasks/\w+/options\.py|cli/\w+\.py",
    "one file each of a kind that grows": r"testing/mixers/\w+\.py|challenges/\w+\.py|tasks/\w+/baselines/\w+\.py",
    "an optional package": r"data/sources/files/html\.py",
    "kernels": r"ops/\w+/(numba|triton\w*|unsized)\.py",
    "trainers with a loop of their own": r"tasks/\w+/trainer\.py",
    "a verb": r"verbs/\w+\.py",
    "pictures and pages, which predictions do not load, and explanations": r"tasks/\w+/(report|explaining)\.py",
}


def modules() -> dict[str, Path]:
    """All modules of the package by their dotted names."""
    return {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sources()
    }


def importers() -> dict[str, set[str]]:
    """The modules of the package that import each module, wherever in their files."""
    known = modules()
    result: dict[str, set[str]] = {name: set() for name in known}
    for importer, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = {
                    full if (full := f"{node.module}.{alias.name}") in known else node.module for alias in node.names
                }
            elif isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            else:
                continue
            for name in names & known.keys() - {importer}:
                result[name].add(importer)
    return result


def test_files_are_no_longer_than_the_alarm() -> None:
    for path in sources():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= ALARM, path.name


@pytest.mark.slow
def test_no_files_import_each_other_in_a_circle() -> None:
    above = importers()
    while free := [name for name, users in above.items() if not users]:
        above = {name: users - {*free} for name, users in above.items() if name not in free}
    assert not above, f"in or below a circle: {sorted(above)}"


@pytest.mark.slow
def test_small_modules_with_one_importer_have_a_reason() -> None:
    known = modules()
    for name, users in importers().items():
        path, place = known[name], known[name].relative_to(ROOT).as_posix()
        if len(users) != 1 or path.name == "__init__.py" or len(path.read_text("utf-8").splitlines()) >= FRAGMENT:
            continue
        if path.parent == known[next(iter(users))].parent:
            assert any(re.fullmatch(kind, place) for kind in APART.values()), f"{place} belongs into {users}"


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_importing_is_free() -> None:
    for module in ("longspan", "longspan.machine.imports", "longspan.cli; longspan.cli.build_parser()"):
        loaded = modules_after(f"import {module}")
        assert not loaded & {"torch", "transformers", "datasets", "matplotlib", "numpy"}


def test_modules_that_moved_have_their_former_names() -> None:
    for former, now in moved.MOVED.items():
        public = [name for name in vars(importlib.import_module(now)) if not name.startswith("_")]
        assert all(
            getattr(importlib.import_module(former), name) is getattr(importlib.import_module(now), name)
            for name in public
        )
    former_module = importlib.import_module("longspan.tasks.documents")
    assert former_module.DocumentTask.__module__ == "longspan.tasks.base.documents"


@pytest.mark.slow
def test_mixers_load_no_transformers_and_no_compiler() -> None:
    loaded = modules_after("from longspan import mixers; mixers.build('additive', 8)")
    assert not loaded & {"transformers", "datasets", "torch._inductor.compile_fx"}


@pytest.mark.slow
def test_predictions_load_no_figures_and_no_metrics() -> None:
    code = (
        "import sys; from longspan.verbs import predict; from longspan import tasks;"
        "[tasks.load(name) for name in tasks.names()]; print('\\n'.join(sys.modules))"
    )
    assert not {*interpreters.printed(code).split()} & {"matplotlib", "rouge_score", "sacrebleu"}


def test_nothing_unpickles() -> None:
    for path in sources():
        text = path.read_text(encoding="utf-8")
        assert (
            not re.search(r"(import|from) \w*pickle|\w_pickle(?!=False)|pickle\.loads?\(", text) or path == PICKLES
        ), path.name
        assert "torch.load(" not in text or "weights_only=True" in text, path.name


def test_what_reads_pickles_can_name_containers_only() -> None:
    from longspan.convert import weights

    assert not re.search(r"pickle\.loads?\(", PICKLES.read_text(encoding="utf-8"))
    assert set(weights._CONTAINERS.values()) <= {dict, set, frozenset}


def test_files_are_written_in_one_place() -> None:
    """`longspan.results.outputs` writes whole files and follows no links."""
    # Into caches and temporary folders of their own, under names that are hashes or drawn at random.
    caches = {"data/sources/caching.py", "data/text/tokenization.py", "training/encoder_outputs.py", "testing/tasks"}
    caches |= {"sklearn.py", "data/graphs/reading.py"}
    pattern = r"\.write_text\(|\.write_bytes\(|\.savefig\(|open\([^)]*[\"'][wax]b?\+?[\"']"
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        found = re.findall(pattern, path.read_text(encoding="utf-8"))
        if found and name != "results/outputs.py" and not any(name.startswith(cache) for cache in caches):
            assert (name, found) == ("report/pictures.py", [".savefig("])


#: Where texts are read, by reason: everything else is for any kind of input.
TEXT = {
    "the processor of texts": ("data/text/", "data/config.py"),
    "embeddings of tokens, and what they are made of": (
        *("models/embeddings/tokens.py", "models/embeddings/encoder.py", "models/window_encoder.py"),
        *("models/word_vectors.py", "models/parts/matching.py", "training/encoder_outputs.py"),
    ),
    "heads and tasks of texts": (
        *("models/heads/", "models/wide/ranker.py", "models/wide/pairs.py", "tasks/", "verbs/report_contents.py"),
    ),
    "what recipes of texts share": ("recipes/starting.py", "recipes/keys.py"),
    "programs of models of texts, and checkpoints of others": ("programs/", "convert/"),
    "the interface of transformers": ("models/model.py", "models/generation.py"),
    "inputs of any model of transformers": ("testing/models/",),
    "names of packages": ("machine/environment.py", "data/sources/files/full_disk.py"),
}
ANY = ("tasks/base/task.py", "tasks/base/examples.py", "tasks/base/options.py")
"""Of tasks, these hold for any kind of input."""


def test_only_what_reads_texts_names_tokens() -> None:
    places = tuple(place for some in TEXT.values() for place in some)
    used = set()
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        if re.search(r"tokenizer|input_ids", path.read_text(encoding="utf-8")):
            assert name.startswith(places), f"{name} names tokens"
            assert name not in ANY, f"{name} names tokens"
            used.add(next(place for place in places if name.startswith(place)))
    # A place that names none needs no leave.
    assert used == {*places}
