"""Challenges of the arena, written and read back."""

import json
from pathlib import Path

from longspan.challenges import CHALLENGES
from longspan.challenges.base import SPLITS

Rows = dict[str, list[dict[str, str]]]


def written(name: str, folder: Path, given: Path | None = None, *, seed: int = 0, **sizes: int) -> Rows:
    """Write a challenge, and return its rows by split."""
    CHALLENGES[name].write(folder, given, seed=seed, sizes=sizes)
    return {split: read(folder / f"{split}.jsonl") for split in SPLITS}


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def about(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    return found
