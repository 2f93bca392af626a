"""Scores of counts and network of a model, alone and together, for people: `of_model`, `of_mixers`."""

from collections.abc import Mapping
from typing import Any

from longspan.report import SPLITS, number, table
from longspan.results import Comparison
from longspan.results.parts import NAMES, Interval, Parts, describe_parts, told_of_mixers
from longspan.results.scores import Scores


def of_model(details: Mapping[str, Any], kind: type[Scores], style: str = "simple") -> list[str]:
    """Return a table of what the parts of a model score, and a sentence on it; nothing for a model without parts.

    Args:
        details: Those of an evaluation, which has `Parts` under "parts".
        kind: The task's scores.
        style: One of tabulate's.
    """
    if "parts" not in details:
        return []
    found = Parts.from_dict(details["parts"])
    word = _word(found, kind)
    rows = ([name, number(found.values[name]), _written(found.intervals[name])] for name in NAMES)
    return [table(["part", word, "95 % interval"], rows, style), describe_parts(found, word, number)]


def of_mixers(result: Comparison, style: str = "simple") -> list[str]:
    """Return a table of what the parts of each mixer's models score, and sentences on it; nothing without parts."""
    split = split_of(result)
    if not split:
        return []
    mixers = {row.mixer: row.parts[split] for row in result.summary}
    word = _word(next(iter(mixers.values())), result.kind)
    rows = (
        [mixer, *(f"{number(found.values[name])} ({_written(found.intervals[name])})" for name in NAMES)]
        for mixer, found in mixers.items()
    )
    listed = table(["mixer", *(f"{split} {word}, {name}" for name in NAMES)], rows, style)
    seeds = max(row.seeds for row in result.summary)
    mean = f", mean of {seeds} seeds" if seeds > 1 else ""
    return [listed, f"In brackets: 95 % intervals by a bootstrap over examples{mean}.", conclusion(result)]


def conclusion(result: Comparison) -> str:
    """Say what counts and networks contribute to each mixer's score; "" without parts."""
    split = split_of(result)
    if not split:
        return ""
    mixers = {row.mixer: row.parts[split] for row in result.summary}
    chosen = ", which also chose the weights of both parts" if split == "validation" else ""
    explained = told_of_mixers(mixers, _word(next(iter(mixers.values())), result.kind), number)
    return f"On the {split} split{chosen}: {explained}"


def split_of(result: Comparison) -> str:
    """Return the last of `SPLITS` on which all mixers have scores of their parts; "" if there is none."""
    there = [split for split in SPLITS if result.summary and all(split in row.parts for row in result.summary)]
    return there[-1] if there else ""


def _word(found: Parts, kind: type[Scores]) -> str:
    return kind.shown().get(found.score, found.score)


def _written(interval: Interval) -> str:
    low, high = interval
    return f"{number(low)} to {number(high)}"
