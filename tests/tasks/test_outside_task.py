"""A task defined outside the package, as docs/adding-a-task.md builds it, through every verb."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-task.md"
WORDS = {1: "awful", 2: "dull", 3: "fair", 4: "good", 5: "great"}


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, and reviews whose only telling word says how many stars they give."""
    folder = tmp_path_factory.mktemp("stars")
    (code,), (recipe,) = blocks("python"), blocks("toml")
    (folder / "stars.py").write_text(code, encoding="utf-8")
    (folder / "stars.toml").write_text(recipe, encoding="utf-8")
    rows = [f"{'word ' * (n % 7)}{WORDS[1 + n % 5]} film {n % 3},{1 + n % 5}" for n in range(200)]
    (folder / "reviews.csv").write_text("\n".join(["text,stars", *rows]) + "\n", encoding="utf-8")
    (folder / "new.csv").write_text("text\ngreat film\nawful film\n", encoding="utf-8")
    return folder


def longspan(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "longspan", *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )


def test_the_page_runs(folder: Path) -> None:
    (script,) = blocks("bash")
    train, evaluate, predict, compare = [line.split() for line in script.strip().splitlines()]
    for command in (train, evaluate, compare):
        ran = longspan(folder, *command[1:])
        assert ran.returncode == 0, ran.stderr
        assert "mean absolute error" in ran.stdout
    ran = longspan(folder, *predict[1:])
    assert ran.returncode == 0, ran.stderr
    great, awful = map(json.loads, ran.stdout.splitlines())
    assert great["where"] == "new.csv, row 1"
    assert 1 <= awful["stars"] <= 5
    assert (folder / "runs/compare/comparison.png").stat().st_size > 1000
    summary = json.loads((folder / "runs/compare/comparison.json").read_text(encoding="utf-8"))["summary"]
    assert [row["mixer"] for row in summary] == ["additive", "lstm"]
    assert (folder / "runs/stars/README.md").read_text(encoding="utf-8").count("within one star")


def test_without_consent_nothing_is_imported(folder: Path) -> None:
    ran = longspan(folder, "train", "stars.toml", "data.path=reviews.csv")
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith("longspan: ")
    assert "--allow-import stars" in ran.stderr


def test_mistakes_name_their_row_and_key(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("text,stars\nfine film,4\nodd film,many\n", encoding="utf-8")
    for override, message in (
        (f"data.path={bad}", "bad.csv, row 2"),
        ("data.star_column=x", "did you mean 'stars_column'?"),
    ):
        ran = longspan(
            folder, "train", "stars.toml", override, "--run", str(tmp_path / "run"), "--allow-import", "stars"
        )
        assert ran.returncode == 2
        assert message in ran.stderr.splitlines()[-1]


def test_it_passes_its_checks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from longspan.testing import check_task

    monkeypatch.syspath_prepend(str(folder))
    small = ["model.dim=16", "model.heads=2", "model.depth=1", "model.dropout=0.1", "data.tokens=words"]
    check_task("stars.Stars", folder / "reviews.csv", small)
