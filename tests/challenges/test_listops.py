"""Nested expressions, against an evaluator of their own."""

import json
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from longspan.challenges import CHALLENGES

SIZES = {"train": 120, "validation": 30, "test": 30}
OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}


def value(symbols: list[str]) -> int:
    """Return what an expression is worth, and take its symbols away from the front."""
    first = symbols.pop(0)
    if first.isdigit():
        return int(first)
    values = []
    while symbols[0] != "]":
        values.append(value(symbols))
    symbols.pop(0)
    assert 2 <= len(values) <= 10
    return OPERATORS[first](values)


def depth(symbols: list[str]) -> int:
    """Return how many brackets are open at once, digits as one more."""
    most = now = 0
    for symbol in symbols:
        now += symbol.startswith("[") - (symbol == "]")
        most = max(most, now)
    return most + 1


def rows(folder: Path, split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_labels_are_values_and_no_expression_comes_twice(tmp_path: Path) -> None:
    CHALLENGES["listops"].write(tmp_path / "a", None, sizes=SIZES)
    found = {split: rows(tmp_path / "a", split) for split in SIZES}
    assert {split: len(examples) for split, examples in found.items()} == SIZES
    every = [example for examples in found.values() for example in examples]
    assert len({example["text"] for example in every}) == len(every)
    for example in every:
        symbols = example["text"].split(" ")
        assert 500 < len(symbols) < 2000
        assert depth(symbols) <= 10
        assert value(symbols) == int(example["label"])
        assert not symbols
    # Minima and maxima of many digits are extreme; yet all values occur.
    assert len(Counter(example["label"] for example in every)) == 10


def test_a_split_depends_on_the_seed_and_on_no_other_split(tmp_path: Path) -> None:
    listops = CHALLENGES["listops"]
    listops.write(tmp_path / "a", None, sizes=SIZES)
    listops.write(tmp_path / "b", None, sizes={"train": 5, "validation": 30, "test": 3})
    listops.write(tmp_path / "c", None, seed=1, sizes=SIZES)
    assert rows(tmp_path / "a", "validation") == rows(tmp_path / "b", "validation")
    assert rows(tmp_path / "a", "train")[:5] == rows(tmp_path / "b", "train")
    assert rows(tmp_path / "a", "train") != rows(tmp_path / "c", "train")
