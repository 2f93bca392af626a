"""What training prints as the next commands: they run as they are printed."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longspan import cli, recipes
from longspan.data.sources.paths import example_path

SMALL = ["model.dim=8", "model.heads=2", "model.depth=1", "training.max_minutes=0", "data.vocab_size=300"]


def classify(folder: Path) -> list[str]:
    rows = "text,label\n" + "".join(f"w{n % 5} x{n},{'ab'[n % 2]}\n" for n in range(40))
    (folder / "all rows.csv").write_text(rows, encoding="utf-8")
    return ["quickstart", f"data.path={folder / 'all rows.csv'}", "data.tokens=words", "model.wide=false"]


def classify_a_folder(folder: Path) -> list[str]:
    for number in range(40):
        path = folder / f"all/{'ab'[number % 2]}/{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"w{number % 5} x{number}", encoding="utf-8")
    return ["quickstart", f"data.path={folder / 'all'}", "data.tokens=words", "model.wide=false"]


def label_words(folder: Path) -> list[str]:
    sentences = [f"w{n % 5} O\nx{n} B-PER\n\n" for n in range(40)]
    (folder / "all").mkdir()
    for name, part in (("train", sentences[:30]), ("valid", sentences[30:35]), ("test", sentences[35:])):
        (folder / f"all/{name}.conll").write_text("".join(part), encoding="utf-8")
    return ["ner", f"data.path={folder / 'all'}"]


def continue_text(folder: Path) -> list[str]:
    (folder / "text.txt").write_text("the cat sat on the mat. " * 60, encoding="utf-8")
    return [
        "model-text",
        f"data.path={folder / 'text.txt'}",
        "data.tokens=characters",
        "training.max_steps=2",
        "training.segment_length=16",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("write", [classify, classify_a_folder, label_words, continue_text])
def test_the_printed_commands_run(
    write: Callable[[Path], list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = ["training.num_train_epochs=1"]
    assert cli.main(["train", *write(tmp_path), *SMALL, *steps, "--run", "my run"]) == 0
    following = capsys.readouterr().out.split("next:\n")[1].splitlines()
    assert [line.split()[:2] for line in following] == [["longspan", "evaluate"], ["longspan", "predict"]]
    for line in following:
        assert cli.main(shlex.split(line)[1:]) == 0
        assert capsys.readouterr().out.strip()


def test_a_path_that_predict_takes_is_named_and_test_data_first(tmp_path: Path) -> None:
    given = recipes.load("classify", [f"data.path={tmp_path}"]).task
    for name in ("all", "test"):
        (tmp_path / f"{name}.csv").write_text("text,label\na,b\n", encoding="utf-8")
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"path": str(tmp_path / "all.csv")}, "all.csv"),
        ({"path": str(tmp_path / "all.csv"), "test": str(tmp_path / "test.csv")}, "test.csv"),
        ({"path": "hub:imdb"}, None),
        ({"path": "packages"}, None),
        ({"path": str(tmp_path / "gone.csv")}, None),
    ]
    for chosen, wanted in cases:
        data = given.data_config(**chosen)
        found = example_path(data, given.inputs(data))
        assert found == (None if wanted is None else str(tmp_path / wanted))
