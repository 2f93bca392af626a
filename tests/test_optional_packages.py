"""Without any optional package: documents are classified, and what needs one ends with a sentence before it starts."""

import json
import os
import shutil
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from longspan.errors import EXTRAS

#: Runs commands in one process in which the import system finds none of some packages.
PROGRAM = """
import contextlib, io, json, sys
from importlib.machinery import PathFinder

hidden, commands = json.load(sys.stdin)

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
from longspan import cli

results = []
for command in commands:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(command)
    results.append([code, out.getvalue(), err.getvalue()])
json.dump([results, sorted(set(hidden) & set(sys.modules))], sys.__stdout__)
"""
TINY = ["model.dim=16", "model.heads=2", "model.depth=1", "training.num_train_epochs=1", "data.validation_fraction=0.3"]


def run_without_packages(commands: list[list[str]], folder: Path) -> list[list[Any]]:
    """Exit code, standard output and standard error of each command."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        input=json.dumps([list(EXTRAS), commands]),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    results, imported = json.loads(ran.stdout)
    assert not imported
    found: list[list[Any]] = results
    return found


#: Commands that need none, after one another.
STEPS = [
    ["train", "classify", "data.path=animals.csv", *TINY, "--run", "classified"],
    ["predict", "classified", "a cat", "a dog", "--json"],
    ["evaluate", "classified", "--json"],
    ["report", "classified"],
]


@pytest.mark.slow
def test_documents_are_classified(ran: tuple[Path, list[list[Any]]]) -> None:
    folder, results = ran[0] / "classified", ran[1][: len(STEPS)]
    assert [code for code, *_ in results] == [0] * len(STEPS), results
    notice = "longspan: no figures are drawn: drawing them needs the package 'matplotlib', which is not installed: "
    assert results[0][2].count(notice + '`pip install "longspan[figures]"`.') == 1
    assert not [*folder.rglob("*.png")]
    assert "learning_curve" not in (folder / "README.md").read_text(encoding="utf-8")
    assert (folder / "report.html").is_file()
    assert "accuracy" in json.loads(results[2][1])


#: By what needs a package: the extra, and the arguments of a command.
NEEDED: dict[str, tuple[str, list[str]]] = {
    "translations": ("translation", ["train", "translation", "data.path=pairs.tsv", "data.validation_fraction=0.3"]),
    "summaries": (
        "summarisation",
        ["train", "summarisation", "data.path=papers.jsonl"],
    ),
    "images": ("images", ["train", "images", "data.path=images", *TINY]),
    "recordings": ("audio", ["train", "audio", "data.path=recordings", *TINY]),
    "pages": ("html", ["train", "classify", "data.path=pages", *TINY]),
    "GraphML": ("graphs", ["train", "nodes", "data.path=graph.graphml"]),
    "baselines": ("baselines", ["compare", "classify", "data.path=documents.csv", "--baselines", "nb", "--mixers", ""]),
    "Ray": ("ray", ["predict", "run", "documents.csv", "--output", "labelled", "--ray"]),
    "ONNX": ("export", ["export", "run", "--format", "onnx"]),
    "comparisons": ("translation", ["compare", "translation", "data.path=pairs.tsv", "--mixers", "softmax"]),
}


@pytest.fixture(scope="module")
def ran(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[Any]]]:
    """A folder and the results of `STEPS` and of `NEEDED` there, all in one process, as most of its time is imports."""
    folder = tmp_path_factory.mktemp("needed")
    shutil.copy(animals, folder / "animals.csv")
    (folder / "pairs.tsv").write_text("source\ttarget\n" + "one\teins\ntwo\tzwei\n" * 5)
    (folder / "papers.jsonl").write_text('{"document": "one two three", "summary": "one"}\n' * 10)
    (folder / "documents.csv").write_text("text,label\n" + "one,a\ntwo,b\n" * 5)
    (folder / "graph.graphml").write_text("<graphml/>")
    for kind in "ab":
        for place in ("images", "recordings", "pages"):
            (folder / place / kind).mkdir(parents=True)
        for number in range(5):
            Image.new("L", (4, 4), number).save(folder / "images" / kind / f"{number}.png")
            (folder / "pages" / kind / f"{number}.html").write_text(f"<p>{kind} {number}")
            with wave.open(str(folder / "recordings" / kind / f"{number}.wav"), "wb") as recording:
                recording.setparams((1, 2, 16000, 0, "NONE", ""))
                recording.writeframes(f"{kind}{number}".encode() * 1600)
    return folder, run_without_packages([*STEPS, *(command for _, command in NEEDED.values())], folder)


@pytest.mark.slow
@pytest.mark.parametrize("what", NEEDED)
def test_what_needs_a_package_says_so(what: str, ran: tuple[Path, list[list[Any]]]) -> None:
    code, _, err = ran[1][len(STEPS) + list(NEEDED).index(what)]
    assert not (ran[0] / "runs").exists()
    last = err.strip().splitlines()[-1]
    assert code == 2, err
    assert last.startswith("longspan: ")
    assert "not installed" in last
    assert f'`pip install "longspan[{NEEDED[what][0]}]"`' in last
    assert last.endswith(".")
