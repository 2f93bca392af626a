"""ListOps: what a nested expression of digits is worth.

An expression is `[MIN`, `[MAX`, `[MED` or `[SM` (sum modulo 10), 2 to 10 arguments and `]`. An argument is an
expression with probability 1/4, else a digit. Expressions are at most 10 deep, and have more than 500 and fewer than
2,000 symbols. `[MED` is the median; between two middle values, their mean, rounded down. Symbols are separated by
single spaces, and brackets are symbols of their own or part of them.

Sources: Nangia and Bowman 2018 (https://arxiv.org/abs/1804.06028), and for these lengths the generator of the Long
Range Arena (Tay et al. 2021, https://arxiv.org/abs/2011.04006), whose draws are followed.

Deviations: The round brackets of the binary trees are left out, as in the Arena's own input. Until mid-2021 the
published code dropped all brackets, and cut inputs at 512 symbols. Here brackets are kept and nothing is cut. No
expression is in the data twice: a hash of its text says which split it may be in.
"""

import hashlib
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from longspan.challenges.base import Challenge, Data, Drawn, Row, stream

SIZES = {"train": 96_000, "validation": 2_000, "test": 2_000}
#: An expression has more symbols than the first, and fewer than the second.
BETWEEN = (500, 2_000)
_DEPTH = 10
_ARGUMENTS = 10
_OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
_NESTED = 0.25
_DIGITS = tuple("0123456789")


class ListOps(Challenge):
    """Expressions of digits, generated."""

    name = "listops"
    description = "Value of a nested expression of minimum, maximum, median and sum modulo 10 (10 classes)."
    length = BETWEEN[1] - 1

    def open(self, given: Path | None, seed: int, sizes: Mapping[str, int]) -> Data:
        return _Expressions(seed, {**SIZES, **sizes})


class _Expressions(Drawn):
    def rows(self, split: str) -> Iterator[Row]:
        source, seen = stream(self.seed, ListOps.name, split), set[bytes]()
        while len(seen) < self.sizes[split]:
            drawn = draw(source)
            if drawn is None:
                continue
            text, value = drawn
            key = hashlib.blake2b(text.encode(), digest_size=16).digest()
            # No expression is in two splits, whatever their sizes.
            if _split_of(key) == split and key not in seen:
                seen.add(key)
                yield {"text": text, "label": str(value)}


def _split_of(key: bytes) -> str:
    """Return the split that an expression may be in: one of ten is for validation, and one for testing."""
    return {0: "validation", 1: "test"}.get(int.from_bytes(key[:8], "big") % 10, "train")


def draw(source: random.Random) -> tuple[str, int] | None:
    """Draw an expression, and return its text and its value, 0 to 9; None if it is too short or too long."""
    uniform, symbols = source.random, list[str]()
    # Operator, arguments to come, and values of the arguments there are, from the outermost to the innermost.
    nested: list[tuple[str, int, list[int]]] = []
    while len(symbols) + len(nested) < BETWEEN[1]:
        if len(nested) < _DEPTH - 1 and uniform() <= _NESTED:
            operator = _OPERATORS[int(uniform() * len(_OPERATORS))]
            nested.append((operator, 2 + int(uniform() * (_ARGUMENTS - 1)), []))
            symbols.append(operator)
            continue
        value = int(uniform() * 10)
        symbols.append(_DIGITS[value])
        while nested:
            operator, wanted, values = nested[-1]
            values.append(value)
            if len(values) < wanted:
                break
            value = _worth(operator, values)
            symbols.append("]")
            nested.pop()
        else:
            return (" ".join(symbols), value) if BETWEEN[0] < len(symbols) < BETWEEN[1] else None
    return None


def _worth(operator: str, values: list[int]) -> int:
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2
