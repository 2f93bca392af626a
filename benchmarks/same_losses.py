"""Whether this checkout learns the same as another one, to the bit: three recipes on generated texts, in one thread.

    python benchmarks/same_losses.py OTHER_CHECKOUT

    git worktree add ../before COMMIT && python benchmarks/same_losses.py ../before

Each checkout trains the recipes `classify` (with its wide part), `model-text` and `ner` in a process of its own.
Compared are all losses and scores of the history, those of the validation split, and the number of parameters.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SHAPE = ["model.dim=32", "model.heads=4", "model.depth=1"]
RECIPES = {
    "classify": ["data.path=reviews.csv", "training.num_train_epochs=2", "training.max_minutes=0"],
    "model-text": ["data.path=text.txt", "training.max_steps=10", "training.max_minutes=0"],
    "ner": ["data.path=words.conll", "training.num_train_epochs=2", "training.max_minutes=0"],
}


def write(folder: Path) -> None:
    """Write 120 reviews of two classes, a text of 4,000 words, and 90 sentences with names."""
    drawn = random.Random(0)
    words = [f"word{number}" for number in range(300)]
    rows = [f"{' '.join(drawn.choices(words[n % 2 :: 2] + words[:20], k=30))},{'ab'[n % 2]}" for n in range(120)]
    (folder / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    (folder / "text.txt").write_text(" ".join(drawn.choices(words, k=4000)) + "\n", encoding="utf-8")
    sentences = []
    for _ in range(90):
        chosen = drawn.choices(words, k=8)
        sentences.append("\n".join(f"{word} {'B-PER' if word.endswith('7') else 'O'}" for word in chosen) + "\n")
    (folder / "words.conll").write_text("\n".join(sentences), encoding="utf-8")


def learned(checkout: Path, folder: Path, recipe: str, run: str) -> dict[str, Any]:
    """Train with the code of a checkout, and return what does not depend on time."""
    command = [sys.executable, "-m", "longspan", "train", recipe, *RECIPES[recipe], *SHAPE, "--run", run]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    metrics = json.loads((folder / run / "metrics.json").read_text(encoding="utf-8"))
    history = [{key: value for key, value in row.items() if "second" not in key} for row in metrics["history"]]
    return {"history": history, "validation": metrics["validation"], "parameters": metrics["parameters"]}


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("other", type=Path, help="the other checkout")
    other = parser.parse_args().other.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        sides = list(enumerate((other, HERE)))
        for recipe in RECIPES:
            before, now = (learned(each, folder, recipe, f"{recipe}-{side}") for side, each in sides)
            same = [f"{part} {'the same' if before[part] == now[part] else 'NOT the same'}" for part in before]
            print(f"{recipe}: {', '.join(same)} ({now['parameters']:,} parameters)", flush=True)


if __name__ == "__main__":
    main()
