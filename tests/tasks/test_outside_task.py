"""A task defined outside the package, as docs/adding-a-task.md builds it, through every verb."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import outside
import pytest

from longspan import UserError, cli, tasks, train
from longspan.data.batches.encoding import encoded
from longspan.data.columns.files import File
from longspan.data.sources.formats.rows import Row
from longspan.tasks.base import answering


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    outside.write(folder)
    return folder


Command = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process, which spares seconds of imports: exit code, output and errors."""

    def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        try:
            code = cli.main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.mark.slow
@pytest.mark.usefixtures("compared_here")
def test_the_page_runs(folder: Path, command: Command) -> None:
    (script,) = outside.blocks("bash")
    train, evaluate, predict, compare = [line.split() for line in script.strip().splitlines()]
    for given in (train, evaluate, compare):
        code, out, errors = command(folder, *given[1:])
        assert code == 0, errors
        # Headers may be wrapped.
        assert re.search(r"mean\b.*\babsolute\b", out, re.DOTALL)
    code, out, errors = command(folder, *predict[1:])
    assert code == 0, errors
    great, awful = map(json.loads, out.splitlines())
    assert great["where"] == "new.csv, row 1"
    assert 1 <= awful["stars"] <= 5
    assert (folder / "runs/compare/comparison.png").stat().st_size > 1000
    summary = json.loads((folder / "runs/compare/comparison.json").read_text(encoding="utf-8"))["summary"]
    assert [row["mixer"] for row in summary] == ["additive", "lstm"]
    assert (folder / "runs/stars/README.md").read_text(encoding="utf-8").count("within one star")


def test_without_consent_nothing_is_imported(folder: Path, command: Command) -> None:
    # A module of this test's own, which no other has imported.
    (folder / "unseen.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    recipe = (folder / "stars.toml").read_text(encoding="utf-8").replace("stars.Stars", "unseen.Stars")
    (folder / "unseen.toml").write_text(recipe, encoding="utf-8")
    code, _, errors = command(folder, "train", "unseen.toml", "data.path=reviews.csv")
    assert code == 2
    assert errors.splitlines()[-1].startswith("longspan: ")
    assert "--allow-import unseen" in errors


def test_mistakes_name_their_row_and_key(folder: Path, tmp_path: Path, command: Command) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("text,stars\nfine film,4\nodd film,many\n", encoding="utf-8")
    for override, message in (
        (f"data.path={bad}", "bad.csv, row 2"),
        ("data.star_column=x", "did you mean 'data.stars_column'?"),
    ):
        run = str(tmp_path / "run")
        code, _, told = command(folder, "train", "stars.toml", override, "--run", run, "--allow-import", "stars")
        assert code == 2
        assert message in told.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", outside.TASKS)
def test_they_pass_their_checks(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from longspan.testing import check_task

    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    small = ["model.dim=16", "model.heads=2", "model.depth=1", "model.dropout=0.1"]
    small += ["data.tokens=words"] if name == "stars" else []
    check_task(outside.TASKS[name], folder / outside.DATA[name], small)


@pytest.mark.slow
def test_recordings_that_cannot_be_read_are_bad_rows(folder: Path, tmp_path: Path, command: Command) -> None:
    outside.write(tmp_path)
    (tmp_path / "waves/0.csv").write_text("1,2\n3\n", encoding="utf-8")
    (tmp_path / "waves/1.npy").write_bytes(b"no array")
    # Of three sensors instead of two.
    np.save(tmp_path / "waves/3.npy", np.zeros((20, 3)))
    (tmp_path / "waves/4.csv").unlink()
    rows = (tmp_path / "recordings.csv").read_text(encoding="utf-8").splitlines()
    for name, chosen in {"train.csv": rows[:81], "test.csv": rows[:1] + rows[81:], "bad.csv": rows[:3]}.items():
        (tmp_path / name).write_text("\n".join(chosen) + "\n", encoding="utf-8")
    (tmp_path / "waves/101.npy").write_bytes(b"no array")
    small = ["model.dim=8", "model.heads=2", "training.num_train_epochs=1", "--json", "--allow-import", "sensors"]
    whole = ["train", "sensors.toml", "data.train=train.csv", "data.test=test.csv", *small]
    skip = "data.skip_bad_rows=true"
    code, _, told = command(tmp_path, *whole)
    assert code == 2
    assert "train.csv, row 5" in told.splitlines()[-1]
    (tmp_path / "train.csv").write_text("\n".join(rows[:5] + rows[6:81]) + "\n", encoding="utf-8")
    code, _, told = command(tmp_path, *whole)
    assert code == 2
    assert re.search(r"expected rows of numbers in .*0\.csv, got something else .*skip_bad_rows=true", told)
    assert not (tmp_path / "runs").exists()
    code, out, told = command(tmp_path, *whole, skip, "--run", "run")
    assert code == 0, told
    found = json.loads(out)
    assert found["data"]["skipped"] == {"unreadable": 4}
    sizes = [found["data"][split]["documents"] for split in ("train", "validation", "test")]
    # Without the header and the row that was removed.
    assert sum(sizes) == len(rows) - 2 - 4
    code, out, told = command(tmp_path, "evaluate", "run", "--data", "test.csv", "--json", "--allow-import", "sensors")
    assert code == 0, told
    assert json.loads(out)["skipped"] == {"unreadable": 1}
    for verb in (["evaluate", "run", "--data", "bad.csv"], ["train", "sensors.toml", "data.train=bad.csv", *small[:3]]):
        code, _, told = command(tmp_path, *verb, skip, "--allow-import", "sensors")
        assert code == 2
        assert told.splitlines()[-1].startswith("longspan: expected ")


@pytest.mark.parametrize("name", ["sensors", "digits"])
def test_they_are_short(name: str) -> None:
    code = outside.blocks("python")[list(outside.TASKS).index(name)]
    assert len([line for line in code.splitlines() if line.strip()]) <= 90


@pytest.mark.slow
@pytest.mark.usefixtures("compared_here")
@pytest.mark.parametrize(("name", "score", "least"), [("sensors", "accuracy", 0.8), ("digits", "digits", 0.6)])
def test_other_streams_go_through_every_verb(
    name: str, score: str, least: float, folder: Path, command: Command
) -> None:
    data, consent = outside.DATA[name], ("--allow-import", name)
    code, out, errors = command(
        folder, "train", f"{name}.toml", f"data.path={data}", "--run", f"runs/{name}", "--json", *consent
    )
    assert code == 0, errors
    learned = json.loads(out)["validation"][score]
    # By chance a third, and a tenth.
    assert learned >= least
    code, out, errors = command(folder, "evaluate", f"runs/{name}", "--split", "validation", "--json", *consent)
    assert code == 0, errors
    assert json.loads(out)[score] == pytest.approx(learned)
    code, out, errors = command(folder, "predict", f"runs/{name}", data, *consent)
    assert code == 0, errors
    assert len(out.splitlines()) == len((folder / data).read_text(encoding="utf-8").splitlines()) - 1
    short = ["training.num_train_epochs=1", "--seeds", "1", "--run", f"runs/compared {name}"]
    given = ["compare", f"{name}.toml", f"data.path={data}", "--mixers", "softmax,lstm", *short, *consent]
    code, out, errors = command(folder, *given)
    assert code == 0, errors
    again = ["train", f"{name}.toml", f"data.path={data}", "--run", f"runs/{name}", "--resume", *consent]
    code, _, errors = command(folder, *again)
    assert (code, "is finished" in errors) == (2, True), errors


@pytest.mark.slow
def test_a_run_of_recordings_is_started_from(folder: Path, command: Command, tmp_path: Path) -> None:
    own = ["--allow-import", "sensors", "training.num_train_epochs=1"]
    first = [
        "train",
        "sensors.toml",
        "data.path=recordings.csv",
        "model.kernel=7",
        "--run",
        str(tmp_path / "one"),
        *own,
    ]
    assert command(folder, *first)[0] == 0
    start = f"model.start_from={tmp_path / 'one'}"
    second = ["train", "sensors.toml", "data.path=recordings.csv", start, "--run", str(tmp_path / "two"), *own]
    code, _, errors = command(folder, *second)
    assert code == 0, errors
    assert "all embeddings and layers" in errors
    assert "kernel = 7" in (tmp_path / "two" / "recipe.toml").read_text(encoding="utf-8")
    code, _, errors = command(folder, "train", "quickstart", start, "--run", str(tmp_path / "three"), *own)
    assert (code, "expected a run that reads texts to start from" in errors) == (2, True), errors


def test_a_recording_that_has_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside.write(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = tasks.load("sensors.Sensors", ("sensors",))
    data = task.data_config(path=str(tmp_path / "recordings.csv"))
    split = task.splits(data).splits["train"]
    processor = task.processor.learned(split, data)
    first = encoded(split, processor, data, "Reading")["frames"][0]
    assert encoded(split, processor, data, "Reading")["frames"][0] == first
    file = Path(split["recording"][0])
    assert file.suffix == ".csv"
    file.write_text(file.read_text(encoding="utf-8").replace("1", "2"), encoding="utf-8")
    os.utime(file, ns=(0, 0))
    assert encoded(split, processor, data, "Reading")["frames"][0] != first


def test_large_recordings_are_read_one_by_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "WINDOW_CHARACTERS", 1)
    column = File("recording", "recording_column")
    rows = [Row({"recording": str(folder / f"waves/{number}.csv")}, f"row {number}") for number in (0, 2, 998)]
    found = list(answering.windows(rows, lambda row: column.size(row.values["recording"])))
    # The last one is not there, and weighs nothing.
    assert [len(window) for window in found] == [1, 1, 1]
    assert column.size(rows[0].values["recording"]) == (folder / "waves/0.csv").stat().st_size
    assert column.size(rows[2].values["recording"]) == 0


def test_one_bad_recording_spoils_no_others(folder: Path, command: Command, tmp_path: Path) -> None:
    short = ["training.num_train_epochs=1", "--run", str(tmp_path / "run"), "--allow-import", "sensors"]
    assert command(folder, "train", "sensors.toml", "data.path=recordings.csv", *short)[0] == 0
    (tmp_path / "bad.csv").write_text("1,2\n3,x\n", encoding="utf-8")
    (tmp_path / "wide.csv").write_text("1,2,3\n", encoding="utf-8")
    names = ["bad.csv", str(folder / "waves/0.csv"), "wide.csv"]
    (tmp_path / "new.csv").write_text("\n".join(["recording", *names]) + "\n", encoding="utf-8")
    given = ["predict", str(tmp_path / "run"), str(tmp_path / "new.csv"), "--allow-import", "sensors"]
    code, out, _ = command(folder, *given)
    bad, good, wide = map(json.loads, out.splitlines())
    assert code == 2
    assert "expected rows of numbers in" in bad["error"]
    assert good["label"] in ("slow", "middle", "fast")
    assert "expected rows of 2 numbers in" in wide["error"]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("model.ngrams=[2]", "model.ngrams is not for the task 'sensors.Sensors' but for 'document_classification'"),
        ("model.channels=3", "model.channels is set from the data"),
        ("model.kernal=3", "did you mean 'model.kernel'?"),
        ("model.kernel=x", "model.kernel expected an integer, got 'x'"),
        ("data.tokens=bpe", "data.tokens is not for the task 'sensors.Sensors' but for 'document_classification'"),
        ("training.word_vectors=x.txt", "expected training.word_vectors for a task that reads words, got 'x.txt'"),
        ("model.encoder=bert", "model.encoder is not for the task 'sensors.Sensors'"),
    ],
)
def test_keys_are_those_of_its_parts(override: str, told: str, folder: Path, command: Command) -> None:
    given = ["data.path=recordings.csv", override, "--run", "runs/wrong", "--allow-import", "sensors"]
    code, _, errors = command(folder, "train", "sensors.toml", *given)
    assert code == 2
    assert told in errors.splitlines()[-1]


TOLERANT = """
from dataclasses import dataclass, replace

from longspan.tasks.options import check_at_least, option
from stars import Stars


@dataclass(frozen=True)
class Evaluation:
    tolerance: float = option(1.0, "stars by which a prediction may be off")

    def __post_init__(self):
        check_at_least(self, tolerance=0)


class Tolerant(Stars):
    'Stars, with a tolerance.'

    evaluation_options = Evaluation

    def evaluate(self, run, examples, split, options, folder):
        scores, details = super().evaluate(run, examples, split, options, folder)
        # No prediction is off by more than 4.
        within = 1.0 if options.tolerance >= 4 else scores.within_one
        return replace(scores, within_one=within), {**details, "tolerance": options.tolerance}
"""


@pytest.fixture(scope="module")
def tolerant(folder: Path) -> Path:
    (folder / "tolerant.py").write_text(TOLERANT, encoding="utf-8")
    recipe = (folder / "stars.toml").read_text(encoding="utf-8").replace("stars.Stars", "tolerant.Tolerant")
    (folder / "tolerant.toml").write_text(recipe, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        train("tolerant.toml", ["data.path=reviews.csv"], "runs/tolerant", progress=False, allow_imports=["tolerant"])
    return folder


@pytest.mark.slow
def test_an_option_of_its_own_is_a_flag(tolerant: Path, command: Command) -> None:
    given = ["evaluate", "runs/tolerant", "--json", "--split", "validation", "--allow-import", "tolerant"]
    for flags, wanted in (([], 1.0), (["--tolerance", "4"], 4.0), (["--tolerance=4.5"], 4.5)):
        code, out, errors = command(tolerant, *given, *flags)
        assert code == 0, errors
        told = json.loads(out)
        assert told["tolerance"] == wanted
        assert wanted < 4 or told["within_one"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("runs/tolerant --tolerance many", "'many'"),
        ("runs/tolerant --tolerance -1", "tolerance must be at least 0, got -1.0; choose a larger one."),
        ("runs/tolerant --nonsense 1", "unrecognized argument '--nonsense'; the nearest of 22 names are --tolerance"),
        ("runs/tolerant --window 4", "'tolerant.Tolerant' of 'runs/tolerant' has no option 'window'; known names are"),
        ("--tolerance 4 runs/tolerant", "no run folder '4'; name the run first, then --tolerance"),
    ],
)
def test_mistakes_in_its_flags_are_named(arguments: str, told: str, tolerant: Path, command: Command) -> None:
    given = [*arguments.split(), "--split", "validation", "--allow-import", "tolerant"]
    code, out, errors = command(tolerant, "evaluate", *given)
    assert code == 2
    assert told in errors.splitlines()[-1]
    assert out == ""


@pytest.mark.slow
def test_its_option_is_an_argument_in_python(tolerant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from longspan import evaluate

    monkeypatch.syspath_prepend(str(tolerant))
    monkeypatch.chdir(tolerant)
    for split in ("validation", None):
        result = evaluate("runs/tolerant", split=split, tolerance=4, allow_imports=("tolerant",))
        assert result.details["tolerance"] == 4
        assert result.scores.numbers()["within_one"] == 1


@pytest.mark.slow
def test_compared_runs_have_the_consent_of_the_comparison(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Python a module that is imported needs none, but its name must reach the processes that train."""
    from longspan import compare
    from longspan.machine import imports
    from longspan.verbs import compare as module

    for name in ("stars.py", "stars.toml", "reviews.csv"):
        (tmp_path / name).write_text((folder / name).read_text(encoding="utf-8"), encoding="utf-8")
    # A module that a stranger has put beside it is never found first.
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(imports, "_loaded", set())
    with monkeypatch.context() as patch:
        patch.setattr(module, "_train", lambda *_: " ".join(imports.consent_flags()))
        with pytest.raises(UserError, match="--allow-import stars"):
            compare("stars.toml", ["additive"], 1, ["data.path=reviews.csv"], "runs/one", allow_imports=("stars",))
    # Now it is imported.
    found = compare("stars.toml", ["softmax"], 1, ["data.path=reviews.csv"], "runs/two")
    assert [run.error for run in found.runs] == [None]
