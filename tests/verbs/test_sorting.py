"""`predict --sort-into` and least probabilities of labels."""

import json
import os
from pathlib import Path

import pytest
import torch
from decisive_words import write_run

from longspan import UserError, cli, evaluate, predict
from longspan.tasks.base.classes import least_probabilities


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that answers "yes" to documents with the word "good"."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    return write_run(folder, ["no", "yes"], "good", "yes", "good bad film")


@pytest.fixture
def films(tmp_path: Path) -> Path:
    folder = tmp_path / "films"
    (folder / "old").mkdir(parents=True)
    (folder / "a.txt").write_text("good film", encoding="utf-8")
    (folder / "b.txt").write_text("bad film", encoding="utf-8")
    (folder / "old" / "a.txt").write_text("good good film", encoding="utf-8")
    (folder / "broken.txt").write_bytes(b"\xff\xfe\x00\xd8")
    return folder


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_files_are_copied_into_folders_of_their_labels(
    run_dir: Path, films: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, out = files(films), tmp_path / "sorted"
    os.utime(films / "a.txt", (1, 1))
    assert cli.main(["predict", str(run_dir), str(films), "--sort-into", str(out)]) == 2
    printed = capsys.readouterr()
    assert [json.loads(line).get("label") for line in printed.out.splitlines()] == ["yes", "no", None, "yes"]
    assert "copied 3 files" in printed.err
    assert "1 in no/, 2 in yes/" in printed.err
    assert "no predictions for 1 of 4" in printed.err
    assert files(out) == ["no/b.txt", "yes/a.txt", "yes/old/a.txt"]
    assert (out / "yes" / "a.txt").read_text(encoding="utf-8") == "good film"
    assert (out / "yes" / "a.txt").stat().st_mtime == 1
    assert files(films) == before


def test_files_without_a_label_are_unsure(run_dir: Path, films: Path, tmp_path: Path) -> None:
    list(predict(run_dir, str(films), min_probability={"no": 1.0}, sort_into=tmp_path / "sorted"))
    assert files(tmp_path / "sorted") == ["unsure/b.txt", "yes/a.txt", "yes/old/a.txt"]


def test_a_label_that_is_never_sure_is_never_given(
    run_dir: Path, films: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["predict", str(run_dir), str(films / "a.txt"), "--min-probability", "yes=never"]) == 0
    assert "label" not in json.loads(capsys.readouterr().out)


def test_files_of_two_sources_keep_apart(run_dir: Path, films: Path, tmp_path: Path) -> None:
    list(predict(run_dir, [str(films / "a.txt"), str(films / "old")], sort_into=tmp_path / "sorted"))
    assert files(tmp_path / "sorted") == ["yes/a (2).txt", "yes/a.txt"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["films", "--sort-into", "films/sorted"], "expected a folder outside of the source 'films'"),
        (["films", "--sort-into", "full"], "expected a new or empty folder to sort into, got 'full'"),
        (["films", "--sort-into", "no/such"], "expected a folder at 'no' to make 'such' in"),
        (["films.csv", "--sort-into", "sorted"], "expected files to sort, one document each, got films.csv, row 1"),
        (["-", "--sort-into", "sorted"], "expected files or folders with --sort-into"),
        (["films", "--min-probability", "maybe=0.5"], "min_probability of"),
        (["films", "--min-probability", "no=0.5", "--min-probability", "0.6"], "expected one --min-probability"),
        (["films", "--min-probability", "no=0.5", "--min-probability", "no=0.6"], "expected one --min-probability"),
    ],
)
def test_mistakes_copy_nothing(
    arguments: list[str],
    told: str,
    run_dir: Path,
    films: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(films.parent)
    Path("full").mkdir()
    Path("full", "x.txt").write_text("x", encoding="utf-8")
    Path("films.csv").write_text("text\ngood film\n", encoding="utf-8")
    before = files(films.parent)
    assert cli.main(["predict", str(run_dir), *arguments]) == 2
    found = capsys.readouterr()
    assert told.replace("min_probability of", "--min-probability of") in found.err
    assert "Traceback" not in found.err
    assert files(films.parent) == before


def test_a_probability_is_a_number(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["predict", str(run_dir), "films", "--min-probability", "no=much"])
    assert stopped.value.code == 2
    assert "expected a probability, or LABEL=PROBABILITY, got 'no=much'" in capsys.readouterr().err


def test_labels_that_are_no_folders_are_refused(tmp_path: Path, films: Path) -> None:
    run = write_run(tmp_path / "run", ["no", "../yes"], "good", "../yes", "good bad film")
    with pytest.raises(UserError, match=r"expected labels that can be names of folders.*'\.\./yes'"):
        list(predict(run, str(films), sort_into=tmp_path / "sorted"))
    assert not (tmp_path / "sorted").exists()


#: Probability of the first of two classes, and the class.
ROWS = [(0.99, 0), (0.9, 0), (0.8, 1), (0.7, 0), (0.6, 0), (0.45, 1), (0.3, 0), (0.1, 1)]


@pytest.mark.parametrize(
    ("score", "least", "expected"),
    [
        # With 0.6, four of five are right; with 0.9, both are.
        ("precision", 0.8, (0.6, 0.8, 0.8, 5)),
        ("precision", 0.9, (0.9, 1.0, 0.4, 2)),
        ("recall", 0.4, (0.9, 1.0, 0.4, 2)),
        ("recall", 0.6, (0.7, 0.75, 0.6, 4)),
        ("recall", 0.9, (None, None, 0.0, 0)),
    ],
)
def test_least_probabilities_have_the_score(
    score: str, least: float, expected: tuple[float | None, float | None, float, int]
) -> None:
    shares = torch.tensor([[share, 1 - share] for share, _ in ROWS])
    found = least_probabilities(shares.log(), torch.tensor([label for _, label in ROWS]), ["a", "b"], score, least)
    probability, precision, recall, given = expected
    assert found["a"]["given"] == given
    assert found["a"]["recall"] == pytest.approx(recall)
    assert found["a"]["precision"] == pytest.approx(precision)
    if probability is not None:
        below = max((share for share, _ in ROWS if share < probability), default=0.0)
        assert below < found["a"]["min_probability"] <= probability + 1e-6


def test_equal_probabilities_are_on_one_side() -> None:
    shares = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.8, 0.2]])
    found = least_probabilities(shares.log(), torch.tensor([0, 0, 1]), ["a", "b"], "precision", 0.9)
    # 0.9 in float32 is less than 0.9.
    assert found["a"] == {"min_probability": 0.89, "precision": 1.0, "recall": 0.5, "given": 1}
    assert found["b"]["min_probability"] is None


def test_evaluate_chooses_them_on_validation_data(
    tmp_path: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "films.csv"
    lines = ["good film,yes", "good bad film,yes", "bad film,no", "film,yes"]
    data.write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    assert cli.main(["evaluate", str(run_dir), "--data", str(data), "--precision", "0.9"]) == 0
    printed = capsys.readouterr().out
    assert "least probability" in printed
    assert "--min-probability no=" in printed
    rows = [{"text": "good film", "label": "yes"}, {"text": "bad film", "label": "no"}]
    capsys.readouterr()
    evaluate(run_dir, {"train": rows, "test": rows}, "test", recall=0.5)
    assert "chosen on the test split" in capsys.readouterr().err
    found = evaluate(run_dir, str(data), recall=0.5).details["least_probabilities"]
    assert found["yes"]["recall"] >= 0.5
    with pytest.raises(UserError, match="expected precision or recall, got both"):
        evaluate(run_dir, str(data), recall=0.5, precision=0.5)
