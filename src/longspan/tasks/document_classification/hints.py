"""Labels that look as if another task were meant: numbers to predict, or several labels in one."""

from collections.abc import Mapping

from longspan.data.columns.values import BadCell, joined, json_list, number, shown

#: Integers up to the first number, or with the second number of documents each, may well be classes.
CLASSES, DOCUMENTS = 20, 50


def hint(labels: Mapping[str, int]) -> str:
    """Return which other recipe the labels look made for, without a full stop, and what shows it; empty if none.

    Args:
        labels: How many documents have each label.
    """
    return _of_several(labels) or _of_numbers(labels)


def _of_numbers(labels: Mapping[str, int]) -> str:
    """Numbers are quantities where some are not whole, or where there are many of them and few documents of each."""
    try:
        found = [number(label, BadCell) for label in labels]
    except BadCell:
        return ""
    whole = all(value.is_integer() for value in found)
    if whole and (len(found) <= CLASSES or sum(labels.values()) / len(found) >= DOCUMENTS):
        return ""
    seen = f"{len(found):,} different numbers" + ("" if whole else f" such as {_example(found)}")
    return f"the labels look like quantities ({seen}), which the recipe 'regression' learns to predict"


def _example(values: list[float]) -> str:
    return f"{next(value for value in values if not value.is_integer()):g}"


def _of_several(labels: Mapping[str, int]) -> str:
    if any(json_list(label) is not None for label in labels):
        return "the labels look like lists, which the recipe 'multi-label' reads"
    found = joined(labels)
    if found is None:
        return ""
    setting = "" if found[1] == "," else f" with data.label_separator={found[1]!r}"
    return f"labels such as {shown(found[0])} look like several in one, which the recipe 'multi-label' reads{setting}"
