"""Parsing the cells of tables: labels, numbers and lists, from text or from typed values."""

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class BadCell(ValueError):
    """A cell without a usable value, which makes its row a bad row.

    Args:
        reason: What is wrong, in the same words for all such cells and without brackets.
        details: What was found.
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


def labels(items: list[Any], refuse: Refusal) -> list[str]:
    """Return labels as text; refuse a list with a missing label."""
    found = []
    for item in items:
        label = None if isinstance(item, (list, dict)) else label_text(item)
        if label is None:
            raise refuse(f"{abbreviated(item)} among them")
        found.append(label)
    return found


def words(cell: Any, refuse: Refusal) -> list[Any]:
    """Return the items of a list, of text that is a JSON list, or of text split at white space."""
    if isinstance(cell, str):
        items = json_list(cell)
        if items is None and cell.lstrip().startswith('["'):
            raise refuse(f"{abbreviated(cell)}, which is not a JSON list")
        return cell.split() if items is None else items
    if not isinstance(cell, list):
        raise WrongColumn
    return cell


def number(cell: Any, refuse: Refusal) -> float:
    """Return a finite number; refuse anything else."""
    if isinstance(cell, str):
        if not _NUMBER.fullmatch(cell.strip()):
            raise refuse(abbreviated(cell))
    elif isinstance(cell, bool) or not isinstance(cell, int | float | Decimal):
        raise refuse(abbreviated(cell))
    try:
        value = float(cell)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise refuse(abbreviated(cell))
    return value


def json_list(text: str) -> list[Any] | None:
    """Return the list that a text encodes as JSON; None if it is not a list."""
    if not text.lstrip().startswith("["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def abbreviated(cell: Any) -> str:
    """Return a cell for messages, at most 60 characters of it."""
    shown = repr(cell)
    # A cell may be as long as a book.
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
