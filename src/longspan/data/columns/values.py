"""Parsing the cells of tables: labels, numbers and lists, from text or from typed values."""

import json
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable
from decimal import Decimal
from typing import Any

from longspan.data.columns.literals import NO_LIST, list_in, looks_literal

_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)?")
_LONGEST_JOINED = 60
# Tables with empty cells often have whole numbers written as floats.
_FLAGS = {"": False, "0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class BadCell(ValueError):
    """A cell without a usable value, which makes its row a bad row.

    Args:
        reason: The problem, in the same words for all such cells and without brackets.
        details: Particulars of one of them.
    """

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(f"{reason} ({details})" if details else reason)


class WrongColumn(TypeError):
    """A cell whose type shows that the setting names the wrong column."""


Refusal = Callable[[str], BadCell]
"""Maps what was found to the error of its column."""


def label_text(value: Any) -> str | None:
    """Return a label as text, or None if it is missing.

    Numbers take their shortest form ("1" for 1.0), Booleans become "true" and "false"; surrounding white space is
    stripped.

    Raises:
        WrongColumn: It is a list or an object.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (list, dict)):
        raise WrongColumn
    return str(value).strip() or None


def composed(text: str) -> str:
    """Return a text in Unicode's composed form (NFC): the same however its accents were typed."""
    return unicodedata.normalize("NFC", text)


def labels(items: list[Any], refuse: Refusal) -> list[str]:
    """Return labels as text; refuse a list with a missing label."""
    found = []
    for item in items:
        label = None if isinstance(item, (list, dict)) else label_text(item)
        if label is None:
            raise refuse(f"{described(item)} among them")
        found.append(composed(label))
    return found


def in_order(names: Iterable[str]) -> list[str]:
    """Sort labels: integers by size, then words by the alphabet."""
    return sorted(names, key=lambda name: (not name.isdigit(), name.zfill(20) if name.isdigit() else name, name))


def joined(labels: Collection[str]) -> tuple[str, str] | None:
    """Return a label that looks like several in one, and what separates them; None if none does.

    Labels look like that where splitting them leaves fewer different ones, as their parts recur. Numbers with a decimal
    comma do not, nor do long labels, which are more likely sentences.
    """
    if all(map(_DECIMAL_COMMA.fullmatch, labels)):
        return None
    for separator in ";|,":
        found = [label for label in labels if separator in label and len(label) <= _LONGEST_JOINED]
        parts = {part.strip() for label in labels for part in label.split(separator)}
        if found and len(parts) < len(labels):
            return min(found, key=lambda label: (len(label), label)), separator
    return None


def words(cell: Any, refuse: Refusal) -> list[Any]:
    """Items of a list, of text that is one (see `literals`), or of text split at white space."""
    if isinstance(cell, str):
        items = list_in(cell)
        if items is None and looks_literal(cell):
            raise refuse(f"{described(cell)}, {NO_LIST}")
        return cell.split() if items is None else items
    if not isinstance(cell, list):
        raise WrongColumn
    return cell


def number(cell: Any, refuse: Refusal) -> float:
    """Return a finite number; refuse anything else."""
    if isinstance(cell, str):
        if not _NUMBER.fullmatch(cell.strip()):
            raise refuse(described(cell))
    elif isinstance(cell, bool) or not isinstance(cell, int | float | Decimal):
        raise refuse(described(cell))
    try:
        value = float(cell)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise refuse(described(cell))
    return value


def flag(cell: Any) -> bool | None:
    """Return True for 1 and true, False for 0, false and empty cells, and None for anything else."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return False
    if isinstance(cell, str):
        return _FLAGS.get(cell.strip().lower())
    return bool(cell) if isinstance(cell, int | float | Decimal) and cell in (0, 1) else None


def described(cell: Any) -> str:
    """Description of a cell for messages: its type and size, as its content may be private."""
    if cell is None or isinstance(cell, bool):
        return json.dumps(cell)
    if isinstance(cell, str):
        return f"text of {len(cell):,} characters" if len(cell) != 1 else "text of 1 character"
    if isinstance(cell, int | float | Decimal):
        return "a number that is not finite" if _not_finite(cell) else "a number"
    if isinstance(cell, list):
        return f"a list of {len(cell):,}"
    return f"a value of type {type(cell).__name__}"


def _not_finite(cell: float | Decimal) -> bool:
    try:
        return not math.isfinite(cell)
    except OverflowError:
        # A whole number beyond float64.
        return True


_LONGEST_NAME, _MOST_WORDS = 40, 5
"""Maximum size of a label or a column's name in messages: what is longer may be a document."""


def is_short(name: str) -> bool:
    """Return whether a label or a name is short enough for messages."""
    return len(name) <= _LONGEST_NAME and len(name.split()) <= _MOST_WORDS


def shown(name: str) -> str:
    """Return a label or a name of a column for messages, in quotes, or only its length where it may be a document."""
    return repr(name) if is_short(name) else described(name)


def is_name(text: str) -> bool:
    """Return whether a text looks like the name of a column, and not like a cell."""
    plain = not _NUMBER.fullmatch(text.strip()) and text.isprintable() and text.strip()[-1:] not in (".", "!", "?")
    return bool(text.strip()) and is_short(text) and plain


def listed(names: Iterable[str]) -> str:
    """Return the names of columns for messages; only how many there are if they do not all look like names."""
    found = list(names)
    if not found:
        return "none at all"
    if found == [str(number) for number in range(1, len(found) + 1)]:
        return f"the columns 1 to {len(found)}"
    if not all(map(is_name, found)):
        return f"{len(found):,} {'columns' if len(found) > 1 else 'column'} with what looks like data instead of names"
    more = f" and {len(found) - 20:,} more" if len(found) > 20 else ""
    return ", ".join(map(repr, found[:20])) + more
