"""The catalogue: all items that impressions speak of, each once, from tables of news or from click logs."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from datasets import Dataset, Features, List, Value

from longspan.data.columns.values import BadCell
from longspan.data.fingerprints import fingerprint
from longspan.data.sources.caching import cached, cached_tables, without_bad_rows
from longspan.data.sources.formats.schema import schema_of
from longspan.data.sources.formats.tab_separated import read_unquoted
from longspan.data.sources.locating import Source, find
from longspan.machine.printing import printable
from longspan.tasks.recommendation.columns import Entities, news_columns
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.source_files import NEWS, is_headed, news_names, table_schema

PACKAGE = "longspan.tasks.recommendation"

_TEXTS = ("item", "title", "abstract", "category", "subcategory")
FEATURES = Features(
    {name: Value("large_string") for name in _TEXTS} | {"entities": List(Value("string")), "where": Value("string")}
)
UNKNOWN_CLICKS = "clicks on unknown items"
UNKNOWN_CANDIDATES = "unknown candidates without a click"
UNKNOWN_CLICKED = "unknown candidates, clicked"
"""What is left out because the catalogue lacks it: of histories, and of what was shown."""
OTHER_CONTENTS = "the identifier of another item"
"""The beginning of the problem of an item whose identifier another title has."""


@dataclass
class Counts:
    """Rows left out while reading, by reason, and rows in other encodings than UTF-8, by encoding."""

    skipped: dict[str, int] = field(default_factory=dict)
    encodings: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str, number: int) -> None:
        """Count what was left out for a reason."""
        if number:
            self.skipped[reason] = self.skipped.get(reason, 0) + number


class Item(NamedTuple):
    """A row of a table of news; `values` are those of `FEATURES` besides `where`."""

    values: dict[str, Any]
    where: str
    problem: str = ""


def facts_of(path: Path) -> list[Any]:
    """Identity of a file's contents (path, size, time of change), as JSON."""
    found = path.stat()
    return [str(path.resolve()), found.st_size, found.st_mtime_ns]


def read_catalogue(files: Sequence[Path], data: RecommendationData, known: Dataset | None, counts: Counts) -> Dataset:
    """Return the items of tables of news, after those that are `known`.

    Items with the same identifier and title are one; what the first lacks is taken from the others.

    Raises:
        UserError: A table cannot be read, lacks a column, or has bad rows, such as items with the identifier of another
            one, and `skip_bad_rows` is not set.
    """
    names = " and ".join(printable(file.name) for file in dict.fromkeys(files))
    tables = [_table(file, data) for file in files]
    facts = [[facts_of(file) for file in files], [table.facts for table in tables], _fingerprint(known)]
    items = (item for table in tables for item in table.items())
    return _cached(lambda: merged(items, known), facts, names, data, counts)


def log_catalogue(rows: Sequence[Dataset], data: RecommendationData, known: Dataset | None, counts: Counts) -> Dataset:
    """Return the items of click logs, which are called by their texts where they have no identifier.

    Raises:
        UserError: Items have the identifier of another one, and `skip_bad_rows` is not set.
    """

    def items() -> Iterator[Item]:
        columns = [*_TEXTS, "entities", "where"]
        for split in rows:
            for row in split.select_columns(columns):
                where = row.pop("where")
                yield Item({**row, "item": row["item"] or row["title"]}, where)

    facts = ["log", [fingerprint(split) for split in rows], _fingerprint(known)]
    return _cached(lambda: merged(items(), known), facts, "the click log", data, counts)


def merged(items: Iterable[Item], known: Dataset | None) -> list[Item]:
    """Return each item once, those that are known first, and those with a problem."""
    found: dict[str, Item] = {}
    bad: list[Item] = []
    if known is not None:
        for row in known:
            found[row["item"]] = Item({name: row[name] for name in (*_TEXTS, "entities")}, row["where"])
    for item in items:
        name = item.values.get("item")
        if item.problem or name is None:
            bad.append(item)
        elif name not in found:
            found[name] = item._replace(values={key: value or _EMPTY[key] for key, value in item.values.items()})
        elif (before := found[name].values)["title"] != item.values["title"]:
            bad.append(item._replace(problem=f"{OTHER_CONTENTS} ({name!r} has another title at {found[name].where})"))
        else:
            for key, value in item.values.items():
                if value and not before[key]:
                    before[key] = value
    return [*found.values(), *bad]


_EMPTY: dict[str, Any] = {**dict.fromkeys(_TEXTS, ""), "entities": []}


class _Table(NamedTuple):
    """A table of news: its items, and what they depend on besides the file, as JSON."""

    items: Any
    facts: Any


def _table(path: Path, data: RecommendationData) -> _Table:
    if not is_headed(path, data, news_names(data)):
        return _Table(lambda: _mind_items(path, data.encoding), ["mind", data.encoding])
    alone = replace(data, path="", train=str(path), validation="", test="")
    schema = table_schema(news_columns(data), data, path)
    source = find(alone, schema, training=True)["train"]

    def items() -> Iterator[Item]:
        for row in cached(source, "train", schema.columns):
            yield Item({name: row[name] for name in _EMPTY}, row["where"], row["problem"])

    return _Table(items, schema.facts)


def _mind_items(path: Path, encoding: str) -> Iterator[Item]:
    entities = Entities("entities", "entities_column")
    for fields in read_unquoted(path, NEWS, encoding):
        columns = [fields.columns[name].to_pylist() for name in NEWS]
        for cells, where, problem in zip(
            zip(*columns, strict=True), fields.where.to_pylist(), fields.problem.to_pylist(), strict=True
        ):
            row = dict(zip(NEWS, cells, strict=True))
            found: list[str] = []
            try:
                for name in ("title_entities", "abstract_entities"):
                    # Most are empty lists.
                    if row[name] not in ("", "[]"):
                        found += entities.parse(row[name], path.parent)
            except BadCell as error:
                problem = problem or str(error)
            for name in ("item", "title"):
                problem = problem or ("" if row[name].strip() else f"no {name}")
            values = {name: row[name] for name in _TEXTS} | {"entities": list(dict.fromkeys(found))}
            yield Item(values, where, problem)


def _cached(make: Any, facts: list[Any], name: str, data: RecommendationData, counts: Counts) -> Dataset:
    features = Features({**FEATURES, "problem": Value("string")})

    def tables() -> Iterator[pa.Table]:
        rows = make()
        columns: dict[str, Any] = {
            key: [row.values.get(key) or _EMPTY[key] for row in rows] for key in (*_TEXTS, "entities")
        }
        columns |= {"where": [row.where for row in rows], "problem": [row.problem for row in rows]}
        yield pa.table(columns, schema=features.arrow_schema)

    rows = cached_tables(tables, features, ["catalogue", *facts], PACKAGE)
    schema = schema_of(news_columns(data), data)
    source = Source(name, facts, lambda schema: iter(()), schema)
    return without_bad_rows(rows, source, schema, data.skip_bad_rows, counts.skipped)


def _fingerprint(known: Dataset | None) -> str:
    return json.dumps(None) if known is None else fingerprint(known)
