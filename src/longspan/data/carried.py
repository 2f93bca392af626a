"""What goes along with tokens: columns that a task keeps, as they are or as numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from datasets import Value

from longspan.errors import UserError, suggestion


@dataclass(frozen=True)
class Carried:
    """A column to go along.

    Attributes:
        column: Its name in the data set that has the texts.
        feature: The type of its values afterwards, one of `datasets`; None where that does not change.
        convert: What becomes of a value, given with its row's place for messages; None where it stays as it is.
        facts: What that depends on, as JSON, so that what is cached is used for the same only.
    """

    column: str
    feature: Any = None
    convert: Callable[[Any, str], Any] | None = None
    facts: Any = None


def class_number(column: str, numbers: Mapping[str, int]) -> Carried:
    """Return how a column of labels becomes one of class numbers, int64.

    Args:
        column: The column.
        numbers: Class numbers by label. For any other label, tokenising raises UserError.
    """

    def convert(label: str, where: str) -> int:
        if label not in numbers:
            raise UserError(
                f"{where}: the label {label!r} is not among those the model knows: {suggestion(label, numbers)}"
            )
        return numbers[label]

    return Carried(column, Value("int64"), convert, dict(numbers))
