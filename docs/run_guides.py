"""Run every command and every line of Python of the guides: `python docs/run_guides.py [GUIDE ...]`.

Each guide runs from its start in a new folder with generated data, blocks marked bash and python in order. Blocks
marked text are not run. Guides that need a package which is not installed are skipped. Ends with exit code 1 if one
failed.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GUIDES = Path(__file__).parent / "guides"
#: Commands that train, and what makes them short: `classify` reads few documents for at least 300 steps.
TRAINS = re.compile(r"longspan (train|compare) (classify|runs/)")
FEW = "training.min_steps=20"
#: What these guides need.
NEEDS = {"serving": ("fastapi", "httpx"), "batch-prediction": ("ray", "pyspark")}
#: Guides that begin with the run of another one.
AFTER = {"batch-prediction": "first-hour", "serving": "first-hour", "labelling": "first-hour", "hub": "first-hour"}

WORDS = {
    "aunt": ["cake", "garden", "cat", "tea", "visit", "sunday", "kind", "holiday"],
    "bank": ["account", "statement", "interest", "loan", "balance", "transfer", "fee", "card"],
}
COMMON = ["dear", "thank", "you", "for", "the", "and", "is", "ready", "please", "see", "next", "week", "all", "best"]


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the blocks of a guide that run, each with its language."""
    text = (GUIDES / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```(bash|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def make_data(folder: Path) -> None:
    """Write the files that the guides name."""
    choose = random.Random(0)

    def letter(kind: str) -> str:
        return " ".join(choose.choices(WORDS[kind], k=5) + choose.choices(COMMON, k=10)).capitalize() + "."

    for kind in WORDS:
        (folder / "letters" / kind).mkdir(parents=True)
        for number in range(60):
            (folder / "letters" / kind / f"{number}.txt").write_text(letter(kind))
    (folder / "inbox").mkdir()
    (folder / "inbox" / "monday.txt").write_text(letter("aunt"))

    def table(name: str, rows: list[tuple[str, str]], separator: str = ",", encoding: str = "utf-8") -> None:
        lines = [separator.join(row) for row in [("text", "label"), *rows]]
        (folder / name).write_text("\n".join(lines) + "\n", encoding=encoding)

    rows = [(f"{letter(kind)} {number}", kind) for kind in WORDS for number in range(60)]
    choose.shuffle(rows)
    table("reviews.csv", rows)
    table("german.csv", [(f"Schöne Grüße {text}", label) for text, label in rows])
    table("latin.csv", [(f"Schöne Grüße {text}", label) for text, label in rows], ";", "latin-1")
    rare = [
        (f"{letter('bank' if number % 8 else 'aunt')} {number}", "usual" if number % 8 else "alarm")
        for number in range(300)
    ]
    table("rare.csv", rare[:200])
    table("held-out.csv", rare[200:])
    sentences = [letter(choose.choice([*WORDS])) for _ in range(800)]
    (folder / "notes.txt").write_text("\n".join(sentences) + "\n")
    (folder / "new.txt").write_text(letter("aunt") + "\n")


def program(page: str) -> str:
    """Return a program that runs the blocks of a guide, one after the other."""
    lines = ["import subprocess, sys", "space = {'__name__': 'guide'}", "sys.modules['guide'] = type(sys)('guide')"]
    for language, text in blocks(page):
        if language == "bash":
            commands = [
                f"{line} {FEW}" if TRAINS.match(line) else line for line in text.replace("\\\n", " ").splitlines()
            ]
            command = "\n".join(["set -e", *commands])
            lines.append(f"subprocess.run({command!r}, shell=True, check=True, executable='/bin/bash')")
        else:
            lines.append(f"exec(compile({text!r}, {page!r}, 'exec'), space)")
    return "\n".join(lines)


def run(page: str) -> bool:
    """Run a guide, print how long it took, and what it printed where it failed."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
        script = "\n".join(program(one) for one in (AFTER.get(page), page) if one)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script], cwd=folder, env=environment, capture_output=True, text=True
        )
    print(f"{page:20} {'ok' if not done.returncode else 'FAILED'} {time.perf_counter() - began:6.1f} s", flush=True)
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:], json.dumps({"code": done.returncode}), sep="\n", flush=True)
    return not done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("guides", nargs="*", metavar="GUIDE")
    pages = parser.parse_args().guides or sorted(path.stem for path in GUIDES.glob("*.md"))
    failed = 0
    for page in pages:
        lacking = [
            name
            for name in NEEDS.get(page, ())
            if subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True).returncode
        ]
        if lacking:
            print(f"{page:20} skipped: needs {', '.join(lacking)}")
        elif blocks(page):
            failed += not run(page)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
