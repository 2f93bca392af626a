"""Columns that a task keeps in addition to the tokens, unchanged or converted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import List, Value

from longspan.data.columns.values import is_short, shown
from longspan.errors import UserError, suggestion


@dataclass(frozen=True)
class Carried:
    """A column to keep.

    Attributes:
        column: Its name in the data set of the texts.
        feature: The type of the converted values, a feature of `datasets`; None if the type does not change.
        convert: Maps a value and its row's place, for messages, to the converted value; None keeps values unchanged.
        facts: Everything `convert` depends on, as JSON, so that a cached result is reused only for the same conversion.
    """

    column: str
    feature: Any = None
    convert: Callable[[Any, str], Any] | None = None
    facts: Any = None


def class_number(column: str, numbers: Mapping[str, int]) -> Carried:
    """Return a conversion of a column of labels to class numbers, int64.

    Args:
        column: The column.
        numbers: Class numbers by label. Tokenising raises UserError for any other label.
    """

    return Carried(column, Value("int64"), lambda label, where: _number(label, where, numbers), dict(numbers))


def class_flags(column: str, numbers: Mapping[str, int]) -> Carried:
    """Return a conversion of a column of lists of labels to a list of 0.0 and 1.0 for all classes, float32.

    Args:
        column: The column.
        numbers: Class numbers by label, from 0. Tokenising raises UserError for any other label.
    """

    def convert(labels: Sequence[str], where: str) -> list[float]:
        row = [0.0] * len(numbers)
        for label in labels:
            row[_number(label, where, numbers)] = 1.0
        return row

    return Carried(column, List(Value("float32")), convert, dict(numbers))


def _number(label: str, where: str, numbers: Mapping[str, int]) -> int:
    if label not in numbers:
        raise UserError(f"{where}: expected a label that the model knows, got {shown(label)}; {_names(label, numbers)}")
    return numbers[label]


def _names(label: str, numbers: Mapping[str, int]) -> str:
    """Return the nearest label, or the first ones, without those that may be documents."""
    names = list(filter(is_short, numbers))
    hint = suggestion(label, names) if is_short(label) else ""
    if hint.startswith("did"):
        return hint
    some = "known names are" if len(names) <= 10 else f"it knows {len(numbers):,}, among them"
    return f"{some} {', '.join(names[:10])}." if names else "check the column."
