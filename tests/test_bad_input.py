"""Mistakes at the command line: one sentence that says what to do, exit code 2, and nothing lost."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from longspan import cli
from longspan.training.lengths import LengthTrainer

TINY = [
    "data.tokens=words",
    "data.vocab_size=60",
    "data.files_per_class=0",
    "data.max_length=0",
    "model.dim=8",
    "model.heads=2",
    "model.position=learned",
    "model.max_positions=48",
    "training.num_train_epochs=1",
    "model.wide=false",
]
Mistake = Callable[..., str]


@pytest.fixture(scope="module")
def trained(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    assert cli.main(["train", "quickstart", f"data.path={animals}", *TINY, "--run", str(run)]) == 0
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A trained run that a test may spoil."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def mistake(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Mistake:
    """Run the command line, check that it ends as after any mistake, and return its sentence."""

    def call(*arguments: str | Path) -> str:
        before = contents(tmp_path)
        capsys.readouterr()
        assert cli.main([str(argument) for argument in arguments]) == 2
        captured = capsys.readouterr()
        assert contents(tmp_path) == before
        assert captured.out == ""
        assert "Traceback" not in captured.err
        # Progress bars may come before it.
        *bars, last = re.split(r"[\r\n]+", captured.err.strip())
        assert not any("longspan: " in bar for bar in bars)
        assert last.startswith("longspan: ")
        assert last.endswith((".", "?"))
        return last.removeprefix("longspan: ")

    return call


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


GOOD = b"text,label\n" + b"".join(b"purr meow%d,cat\nbark wag%d,dog\n" % (number, number) for number in range(8))
DATA: dict[str, tuple[str, bytes, str, str]] = {
    "missing file": ("a.csv", GOOD, "data.path={}/a.cvs", r"data.path: there is no file .*did you mean 'a.csv'\?"),
    "unknown column": (
        "a.csv",
        GOOD,
        "data.text_column=txt",
        r"expected a column 'txt' in a.csv, got .*did you mean "
        r"'text'\?",
    ),
    "unlabelled rows": (
        "a.csv",
        GOOD + b"purr,\n",
        "",
        r"no label in 1 row \(first: a.csv, row 17\).*skip_bad_rows=true",
    ),
    "a validation label unseen in training": (
        "v.csv",
        b"text,label\nmoo,cow\n",
        "data.validation={}/v.csv",
        r"in the validation data, got 'cow' \(first: v.csv, row 1\); add",
    ),
    "empty documents": (
        "a.csv",
        GOOD + b" ,cat\n",
        "",
        r"no text in 1 row \(first: a.csv, row 17\).*skip_bad_rows=true",
    ),
    "broken UTF-8": ("a.csv", GOOD + b"\xff,cat\n", "", r"broken UTF-8 in 1 row \(first: a.csv, row 17\)"),
    "another encoding": ("a.csv", GOOD.decode().encode("utf-16"), "", "save the file as UTF-8"),
    "a malformed line": (
        "a.jsonl",
        b'{"text": "a", "label": "x"}\n{"text\n',
        "",
        r"a.jsonl, line 2: not a JSON object",
    ),
    "an unquoted comma": (
        "a.csv",
        GOOD + b"purr, meow,cat\n",
        "",
        r"a.csv, row 17 \(line 18\): wrong number of fields",
    ),
    "a class with one example": (
        "a.csv",
        GOOD + b"moo,cow\n",
        "",
        r"example of class 'cow' for each of the splits .*, got 1 .*add examples",
    ),
    "one class": (
        "a.csv",
        b"text,label\npurr,cat\n",
        "",
        "at least two classes in the training data, got only 'cat' as a label",
    ),
    "an empty file": ("a.csv", b"", "", "expected rows in .*, got an empty file"),
    "documents longer than learned positions": (
        "a.csv",
        GOOD,
        "model.max_positions=1",
        r"at most 1 tokens for learned positions, got 2 in a document; set data.max_length=1, or "
        r"model.max_positions=2\.",
    ),
    "documents longer than a mixer takes": (
        "a.csv",
        GOOD,
        "model.mixers=linformer model.mixer_options.linformer.max_length=1 model.max_positions=1",
        r"at most 1 tokens for learned positions and at most 1 tokens for rows of linformer, got 2 in a document; set "
        r"data.max_length=1, or model.max_positions=2 and model.mixer_options.linformer.max_length=2\.",
    ),
    "an unknown key": (
        "a.csv",
        GOOD,
        "training.lerning_rate=1",
        r"lerning_rate'; did you mean 'training.learning_rate'\?",
    ),
    "an unknown table": ("a.csv", GOOD, "modle.dim=8", r"override 'modle.dim=8' .*did you mean 'model.dim'\?"),
    "the wrong type": ("a.csv", GOOD, "training.learning_rate=fast", "learning_rate expected a number, got 'fast'"),
    "an unknown mixer": ("a.csv", GOOD, "model.mixers=aditive", r"no mixer 'aditive'; did you mean 'additive'\?"),
    "a reporter that is not installed": (
        "a.csv",
        GOOD,
        "training.report_to=swanlab",
        "report_to=swanlab needs the package 'swanlab', which is not installed: `pip install swanlab`, or leave it out",
    ),
    "an unknown reporter": (
        "a.csv",
        GOOD,
        "training.report_to=wandbb",
        r"no reporter 'wandbb'; did you mean 'wandb'\?",
    ),
    "no value": ("a.csv", GOOD, "model.dim", "expected an override such as training.seed=1, got 'model.dim'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA)
def test_training(name: str, mistake: Mistake, run: Path, tmp_path: Path) -> None:
    file, content, setting, message = DATA[name]
    (tmp_path / "a.csv").write_bytes(GOOD)
    (tmp_path / file).write_bytes(content)
    path = tmp_path / ("a.csv" if file == "v.csv" else file)
    given = [f"data.path={path}", *TINY, *(part.format(tmp_path) for part in setting.split())]
    # Neither is an older run lost, nor does a new folder stand in the way of the next attempt.
    for options in (["--run", run, "--overwrite"], ["--run", tmp_path / "new"]):
        assert re.search(message, mistake("train", "quickstart", *given, *options))
    assert not (tmp_path / "new").exists()


def test_quotes_and_line_breaks_inside_fields_are_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'text,label\n"purr, ""meow""\nwhisker",cat\n"bark\n\nwag",dog\n' + GOOD[11:])
    arguments = ["train", "quickstart", f"data.path={tmp_path}/a.csv", *TINY, "--run", str(tmp_path / "run")]
    assert cli.main(arguments) == 0
    result = json.loads((tmp_path / "run/metrics.json").read_text())
    assert result["labels"] == ["cat", "dog"]
    assert sum(result["data"][split]["documents"] for split in ("train", "validation", "test")) == 18


def test_a_run_folder_that_exists(mistake: Mistake, run: Path, animals: Path, tmp_path: Path) -> None:
    given = ["train", "quickstart", f"data.path={animals}", *TINY, "--run"]
    assert "exists; --resume continues it, --finish ends it where it was stopped, --overwrite replaces it" in mistake(
        *given, run
    )
    assert "is finished" in mistake(*given, run, "--resume")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.txt").write_text("my only copy")
    assert "got none; leave out --resume" in mistake(*given, tmp_path / "thesis", "--resume")
    assert "not a run folder, so it is not overwritten" in mistake(*given, tmp_path / "thesis", "--overwrite")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.csv", None, r"there is no file .*b.csv"),
        ("a.csv", b"txt,label\na,cat\n", r"expected a column 'text' in .*, got 'txt', 'label'; did you mean 'txt'\?"),
        (
            "a.csv",
            b"text,label\nmoo,cow\n",
            r"a.csv, row 1: expected a label that the model knows, got 'cow'; .*cat, dog",
        ),
        ("a.csv", b"text,label\npurr,\n", "no label in 1 row"),
        ("a.csv", b"text,label\n\xff,cat\n", "broken UTF-8 in 1 row"),
        ("a.csv", b'text,label\n"",cat\n', "no text in 1 row"),
        (
            "a.csv",
            b"text,label\n" + b"purr " * 60 + b",cat\n",
            "at most 48 tokens .*, got 60 in a document; cut it, or train .* with model.max_positions=60",
        ),
    ],
)
def test_evaluation(
    name: str, content: bytes | None, message: str, mistake: Mistake, run: Path, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert re.search(message, mistake("evaluate", run, "--data", tmp_path / name))


def test_a_split_that_is_none(mistake: Mistake, run: Path) -> None:
    told = mistake("evaluate", run, "--split", "tset")
    assert "expected a split 'tset' in " in told
    assert "got only train, validation, test; name one with --split" in told


def spoil(run: Path, how: str) -> None:
    weights = run / "model.safetensors"
    if how == "another width":
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps({**config, "dim": 16}))
    elif how == "a weight missing":
        tensors = load_file(weights)
        tensors.pop("classifier.weight")
        save_file(tensors, weights, metadata={"format": "pt"})
    elif how == "half a file":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "no weights":
        weights.unlink()
    else:
        (run / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "another width",
            r"do not fit its config.json .*has shape \(2, 8\) in model.safetensors but \(2, 16\)",
        ),
        ("a weight missing", "classifier.weight is missing in model.safetensors"),
        ("half a file", "model.safetensors' is damaged"),
        ("no weights", "is unfinished; continue it with `longspan train ... --resume`"),
        ("half a config", "expected a JSON object in '.*config.json', got a damaged file"),
    ],
)
def test_a_checkpoint_that_does_not_fit(how: str, message: str, mistake: Mistake, run: Path, animals: Path) -> None:
    spoil(run, how)
    for arguments in (("evaluate", run), ("predict", run, animals)):
        assert re.search(message, mistake(*arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian", "quickstart"], "there is no command 'trian'; did you mean 'train'?"),
        (["train", "quikstart"], "did you mean 'quickstart'?"),
        (["train", "mine.toml"], "there is no recipe file 'mine.toml'"),
        (["show", "aditive"], "there is no mixer or recipe 'aditive'; did you mean 'additive'?"),
        (["compare", "quickstart", "--mixers", "additive,softmx"], "no mixer 'softmx'; did you mean 'softmax'?"),
        (["compare", "quickstart", "--mixers", "additive", "--seeds", "0"], "at least one seed"),
        (["evaluate", "runs/nowhere"], "there is no run folder 'runs/nowhere'"),
        (["predict", "runs/nowhere"], "there is no run folder 'runs/nowhere'"),
    ],
)
def test_names(arguments: list[str], message: str, mistake: Mistake) -> None:
    assert message in mistake(*arguments)


def test_prediction_names_bad_documents_in_their_place(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [b'{"text": "purr"}', b'{"text": ""}', b'{"text": "\xff"}', b'{"text', b'{"id": 1}']
    lines += [b'{"text": "%s"}' % (b"purr " * 60), b'{"text": "bark"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    assert cli.main(["predict", str(run), str(tmp_path / "a.jsonl")]) == 2
    captured = capsys.readouterr()
    answers = [json.loads(line) for line in captured.out.splitlines()]
    assert [answer["where"] for answer in answers] == [f"a.jsonl, line {number}" for number in range(1, 8)]
    assert [answer.get("error") for answer in answers] == [
        None,
        "no text",
        "broken UTF-8",
        "not a JSON object (Invalid control character at column 7)",
        "no text",
        "expected at most 48 tokens for learned positions, got 60",
        None,
    ]
    assert (
        captured.err
        == "longspan: there are no predictions for 5 of 7 examples; their lines say why, and --encoding auto "
        "finds out encodings.\n"
    )


def test_an_interrupt_saves_and_says_how_to_go_on(
    animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = LengthTrainer.training_step

    def training_step(self: LengthTrainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.state.global_step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return usual(self, *args, **kwargs)

    command = ["train", "quickstart", f"data.path={animals}", *TINY, "--run", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr(LengthTrainer, "training_step", training_step)
        assert cli.main(command) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    told = (
        "longspan: interrupted: saved step 3; run the same command with --resume to continue, or with --finish to end "
        "here with a complete run."
    )
    assert captured.err.splitlines()[-1] == told
    assert cli.main([*command, "--resume"]) == 0
    assert (tmp_path / "run/metrics.json").exists()
