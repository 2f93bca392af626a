"""Every example of the README and the tour runs: commands as a user types them, at a small size, and Python."""

import functools
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import longspan
from longspan import recipes
from longspan.cli import build_parser, main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: Pages whose examples run one after the other in one folder.
PAGES = [README, *((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("tour.md", "adding-a-mechanism.md"))]
SMALL = [
    "model.dim=16",
    "model.heads=2",
    "data.vocab_size=300",
    "model.depth=2",
    "training.num_train_epochs=1",
    "training.min_steps=0",
    "training.max_minutes=0",
    "training.per_device_train_batch_size=16",
]

TICKETS: dict[str, list[str]] = {"refund": ["money"], "crash": ["bug"], "charged": ["money", "bug"], "thanks": []}


def blocks(language: str, pages: Sequence[str] = PAGES) -> list[str]:
    return [one for page in pages for one in re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]


def commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.replace("\\\n", " ").splitlines() if line]


@pytest.fixture(scope="module")
def desk(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the README speaks of."""
    folder = tmp_path_factory.mktemp("desk")
    rows = animals.read_text().splitlines()
    (folder / "reviews.csv").write_text(
        "\n".join([f"{rows[0]},stars", *(f"{row},{1 + n % 5}" for n, row in enumerate(rows[1:]))])
    )
    (folder / "old.csv").write_bytes("text;label\nmeow für dich;cat\nwag;dog\n".encode("latin-1"))
    tickets = [{"text": f"{word} number {n}", "labels": labels} for n in range(30) for word, labels in TICKETS.items()]
    (folder / "tickets.jsonl").write_text("\n".join(map(json.dumps, tickets)))
    for path, text in (
        (f"letters/{name}/{n}.txt", f"Dear {name}, letter {n}.") for name in ("bank", "aunt") for n in range(30)
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "inbox").mkdir()
    (folder / "inbox/monday.txt").write_text("Dear aunt.")
    lines = [f"{name}:\nSpeak, number {i}.\n" for i in range(120) for name in ("ROMEO", "JULIET")]
    (folder / "input.txt").write_text("\n".join(lines))
    (folder / "new.jsonl").write_text('{"text": "purr meow"}\n{"text": "bark"}\n')
    (folder / "places").mkdir()
    for split, number in (("train", 30), ("dev", 5), ("test", 5)):
        words = "".join(f"I O\nsaw O\n{place} B-LOC\n\n" for place in ("Rome", "Kyoto") * number)
        (folder / f"places/{split}.txt").write_text(words)
    (folder / "letter.txt").write_text("I saw Rome.\n")
    meetings = [
        {"parts": ["Good morning.", f"The {word} costs {n}.", "Fine."], "question": f"What is said of the {word}?",
         "evidence": [1]}
        for n in range(20) for word in ("boat", "roof")
    ]  # fmt: skip
    (folder / "meetings.jsonl").write_text("\n".join(map(json.dumps, meetings)))
    asked = [
        {"context": f"The code is {n}.", "question": "What is the code?",
         "answers": {"text": [f"{n}"], "answer_start": [12]}}
        for n in range(40)
    ]  # fmt: skip
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, asked)))
    shown = ((f"u{user}", day, topic) for user in range(4) for day in range(1, 9) for topic in ("cup", "rain"))
    clicks = [
        f"{user},{topic} number {day},{int((topic == 'cup') == (user < 'u2'))},2024-05-{day:02} 09:00:00"
        for user, day, topic in shown
    ]
    (folder / "clicks.csv").write_text("\n".join(["user,title,clicked,time", *clicks]))
    for block in blocks("toml"):
        (folder / block.splitlines()[0].removeprefix("# ")).write_text(block)
    return folder


def test_the_examples_are_found() -> None:
    assert len(commands()) >= 9
    assert len(blocks("python")) >= 2
    assert len(blocks("toml")) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("compared_here")
def test_commands_and_python_run_in_order(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    for command in commands():
        program, *arguments = shlex.split(command)
        if program == "make":
            # What the target would do; the suite cannot run itself, and the quickstart has a test of its own.
            subprocess.run(["make", "--dry-run", "-C", str(ROOT), *arguments], check=True, capture_output=True)
            continue
        assert program == "longspan", command
        if arguments[0] in ("train", "compare"):
            arguments += SMALL
        if "--seeds" in arguments:
            arguments[arguments.index("--seeds") + 1] = "1"
        assert main(arguments) == 0, command
        assert capsys.readouterr().out, command
    # As small as with `SMALL`; what these lines say themselves stays.
    monkeypatch.setattr(longspan, "train", functools.partial(longspan.train, min_steps=0, max_minutes=0))
    for page in PAGES:
        # Later blocks of a page use what earlier ones define.
        names: dict[str, Any] = {}
        for block in blocks("python", [page]):
            exec(compile(block, "README.md", "exec"), names)


@pytest.mark.slow
def test_the_quickstart_commands_run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    run_benchmark: Callable[..., None],
) -> None:
    """The lines of the Makefile's target, on few modules."""
    monkeypatch.chdir(tmp_path)
    shown = subprocess.run(
        ["make", "--dry-run", "-C", str(ROOT), "quickstart"], check=True, capture_output=True, text=True
    )
    (line,) = re.findall(r"^\S*bin/python benchmarks/(.+)", shown.stdout, re.MULTILINE)
    for _ in range(2):  # The second time replaces what the first one wrote.
        run_benchmark(*shlex.split(line), "--modules", "12")
        said = capsys.readouterr().out
        assert "longspan, all words" in said
        assert Path("runs/quickstart/explanation.html").exists()
    # It prints the command that writes the same page.
    (command,) = re.findall(r"^  \S*longspan (explain .+)", said, re.MULTILINE)
    Path("runs/quickstart/explanation.html").unlink()
    assert main(shlex.split(command)) == 0
    assert Path("runs/quickstart/explanation.html").exists()
    # What it says to try next.
    hints = [shlex.split(hint) for hint in re.findall(r"^  '.*bin/longspan (.+)'", shown.stdout, re.MULTILINE)]
    assert [hint[0] for hint in hints] == ["train", "train", "train", "recipes"]
    _, verbs = build_parser()
    for hint in hints[:3]:
        given = verbs["train"].parse_intermixed_args(hint[1:])
        assert recipes.load(given.recipe, given.overrides).data.path in ("FILE.jsonl", "FOLDER", "TEXTS")


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_files_named_in_the_readme_exist() -> None:
    for name in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / name).exists(), name


def test_recipes_named_in_the_readme_exist() -> None:
    from longspan import recipes

    for command in commands():
        words = command.split()
        if words[:2] in (["longspan", "train"], ["longspan", "compare"]) and not words[2].endswith(".toml"):
            assert words[2] in recipes.names()
