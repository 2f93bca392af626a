"""The columns of click logs, of tables of impressions and of tables of news."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from longspan.data.columns.kinds import Column, Text
from longspan.data.columns.literals import NO_LIST, list_in, looks_literal
from longspan.data.columns.values import BadCell, WrongColumn, described, flag, label_text, labels, number
from longspan.tasks.recommendation.options import RecommendationData

MIND_TIME = "%m/%d/%Y %I:%M:%S %p"
"""How MIND writes times."""


@dataclass(frozen=True)
class Name(Column):
    """An identifier or a category: text, or a number, which becomes text."""

    kind = "one name"
    dtype = "string"

    def parse(self, cell: Any, folder: Path) -> str | None:
        return label_text(cell)


@dataclass(frozen=True)
class Names(Column):
    """Identifiers: a list; or text that is a JSON list, or identifiers separated by white space."""

    kind = "a list of identifiers"
    dtype: ClassVar[Any] = ["string"]

    def parse(self, cell: Any, folder: Path) -> list[str]:
        if isinstance(cell, str):
            items = list_in(cell)
            if items is None and looks_literal(cell):
                raise self._bad_cell(f"{described(cell)}, {NO_LIST}")
            return cell.split() if items is None else labels(items, self._bad_cell)
        if not isinstance(cell, list):
            raise WrongColumn
        return labels(cell, self._bad_cell)


@dataclass(frozen=True)
class Time(Column):
    """A time, as seconds since 1970 or the number given, float64."""

    required: bool = field(default=False, kw_only=True)
    kind = 'a number or a time such as "2019-11-11 09:05:58"'
    dtype = "float64"

    def parse(self, cell: Any, folder: Path) -> float | None:
        if isinstance(cell, datetime):
            return _seconds(cell)
        if isinstance(cell, list | dict):
            raise WrongColumn
        if not isinstance(cell, str):
            # An empty cell of a table may be one that is not a number.
            return None if isinstance(cell, float) and math.isnan(cell) else number(cell, self._bad_cell)
        if not cell.strip():
            return None
        found = seconds(cell)
        if found is None:
            raise self._bad_cell(described(cell))
        return found


def seconds(text: str) -> float | None:
    """Return the seconds since 1970 of a time, or the number that a text is; None if it is neither.

    Without a zone, times are taken for UTC.
    """
    readers: list[Callable[[str], float]] = [
        lambda text: number(text, BadCell),
        lambda text: _seconds(datetime.fromisoformat(text)),
        lambda text: _seconds(datetime.strptime(text, MIND_TIME).replace(tzinfo=UTC)),
    ]
    for reader in readers:
        try:
            return reader(text.strip())
        except ValueError:
            pass
    return None


def _seconds(time: datetime) -> float:
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True)
class Clicked(Column):
    """Whether something was clicked: 1 or 0, true or false."""

    target: bool = field(default=True, kw_only=True)
    kind = "0 or 1, or true or false"
    dtype = "int8"

    def parse(self, cell: Any, folder: Path) -> int | None:
        if isinstance(cell, list | dict):
            raise WrongColumn
        if (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, float) and math.isnan(cell)):
            return None
        found = flag(cell)
        if found is None:
            raise self._bad_cell(described(cell))
        return int(found)


@dataclass(frozen=True)
class Entities(Column):
    """Entities of an item: a list of identifiers or of MIND's objects. Text may have the list in JSON, or pairs of an
    identifier and a name, as in "331:Bruce Springsteen;36136:Tautog"."""

    required: bool = field(default=False, kw_only=True)
    kind = "a list of entities"
    dtype: ClassVar[Any] = ["string"]

    def parse(self, cell: Any, folder: Path) -> list[str]:
        if isinstance(cell, str):
            items = list_in(cell)
            if items is None and (looks_literal(cell) or cell.lstrip().startswith("[{")):
                raise self._bad_cell(f"{described(cell)}, {NO_LIST}")
            if items is None:
                names = (pair.partition(":")[0].strip() for pair in cell.split(";"))
                return list(dict.fromkeys(filter(None, names)))
        elif isinstance(cell, list):
            items = cell
        else:
            raise WrongColumn
        found = [item.get("WikidataId") if isinstance(item, dict) else item for item in items]
        return list(dict.fromkeys(labels(found, self._bad_cell)))


def news_columns(data: RecommendationData) -> list[Column]:
    """Return the columns of a table of news."""
    return [Name("item", "item_column"), Text("title", "text_column"), *_contents()]


def impression_columns(data: RecommendationData, *, candidates: bool = True) -> list[Column]:
    """Return the columns of a table of impressions, which must have `candidates` or may lack them."""
    return [
        Name("impression", "impression_column", required=False),
        Name("user", "user_column"),
        Time("time", "time_column"),
        Names("history", "history_column", required=False),
        Names("candidates", "candidates_column", required=candidates),
    ]


def log_columns(data: RecommendationData, *, labels: bool) -> list[Column]:
    """Return the columns of a click log; with a table of news, what its items are is read from there.

    Args:
        data: The settings.
        labels: Whether each row must say if the item was clicked.
    """
    contents = [] if data.news else [Text("title", "text_column"), *_contents()]
    return [
        Name("user", "user_column"),
        Clicked("clicked", "clicked_column", required=labels),
        Time("time", "time_column"),
        Name("impression", "impression_column", required=False),
        Name("item", "item_column", required=bool(data.news)),
        *contents,
    ]


def chosen(columns: list[Column], data: RecommendationData) -> list[str]:
    """Return the names in the source of those columns whose settings are not the default: they must be there."""
    usual = {field.name: field.default for field in fields(data)}
    return [name for column in columns if (name := getattr(data, column.setting)) != usual[column.setting]]


def _contents() -> list[Column]:
    return [
        Text("abstract", "abstract_column", required=False),
        Name("category", "category_column", required=False),
        Name("subcategory", "subcategory_column", required=False),
        Entities("entities", "entities_column"),
    ]
