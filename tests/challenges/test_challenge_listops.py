"""ListOps, with an evaluator of its own."""

import random
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from challenge_files import written

from longspan.challenges import listops
from longspan.challenges.base import SPLITS

WORTH: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[SM": lambda values: sum(values) % 10,
    "[MED": lambda values: int(statistics.median(values)),
}


def evaluated(text: str) -> tuple[int, int, list[int]]:
    """Return the value of an expression, its depth, and the numbers of arguments of its operators."""
    symbols = iter(text.split(" "))
    counts: list[int] = []

    def value(symbol: str) -> tuple[int, int]:
        if symbol not in WORTH:
            assert symbol in "0123456789"
            return int(symbol), 1
        arguments = [value(each) for each in iter(lambda: next(symbols), "]")]
        counts.append(len(arguments))
        return WORTH[symbol]([each for each, _ in arguments]), 1 + max(depth for _, depth in arguments)

    found, depth = value(next(symbols))
    assert next(symbols, None) is None
    return found, depth, counts


def test_the_evaluator_knows_examples() -> None:
    assert evaluated("[MAX 2 9 [MIN 4 7 ] 0 ]") == (9, 3, [2, 4])
    assert evaluated("[MED 1 4 8 2 ]")[0] == 3
    assert evaluated("[SM 9 [MED 1 2 ] 3 ]")[0] == 3


@pytest.mark.slow
def test_labels_are_values_of_expressions_of_the_grammar(tmp_path: Path) -> None:
    rows = written("listops", tmp_path, train=300, validation=30, test=30)
    depths, arguments, operators = Counter[int](), Counter[int](), Counter[str]()
    for row in [row for split in SPLITS for row in rows[split]]:
        value, depth, counts = evaluated(row["text"])
        assert row["label"] == str(value)
        symbols = row["text"].split(" ")
        assert 500 < len(symbols) < 2_000
        depths[depth] += 1
        arguments.update(counts)
        operators.update(symbol for symbol in symbols if symbol.startswith("["))
    assert max(depths) == 10
    assert sorted(arguments) == [*range(2, 11)]
    # Operators are equally frequent: each is drawn about 20,000 times, so five standard deviations are 1.6 %.
    shares = [operators[operator] / operators.total() for operator in WORTH]
    assert shares == pytest.approx([0.25] * 4, abs=5 * (0.25 * 0.75 / operators.total()) ** 0.5)
    assert {row["label"] for row in rows["train"]} == set("0123456789")


def test_no_expression_is_in_the_data_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So short that most draws repeat an earlier one.
    monkeypatch.setattr(listops, "BETWEEN", (3, 5))
    rows = written("listops", tmp_path, train=250, validation=30, test=30)
    texts = [row["text"] for split in SPLITS for row in rows[split]]
    assert len({*texts}) == len(texts) == 310
    assert {len(text.split(" ")) for text in texts} == {4}


def test_expressions_of_other_lengths_are_not_drawn() -> None:
    source = random.Random(0)
    drawn = [listops.draw(source) for _ in range(1_000)]
    lengths = [len(each[0].split(" ")) for each in drawn if each]
    assert 0 < len(lengths) < 300
    assert min(lengths) > 500
