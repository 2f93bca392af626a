"""Impressions, from MIND's behaviors.tsv or tables with such columns, as numbers of the catalogue."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value

from longspan.data.fingerprints import fingerprint
from longspan.data.sources.caching import cached, cached_tables, without_bad_rows
from longspan.data.sources.files.addresses import named
from longspan.data.sources.files.decoding import detected_encoding
from longspan.data.sources.files.encodings import AUTO
from longspan.data.sources.files.opening import encoding_of
from longspan.data.sources.formats.schema import Schema, schema_of
from longspan.data.sources.formats.tab_separated import read_unquoted
from longspan.data.sources.locating import Source, find
from longspan.errors import UserError
from longspan.tasks.recommendation.catalogue import (
    PACKAGE,
    UNKNOWN_CANDIDATES,
    UNKNOWN_CLICKED,
    UNKNOWN_CLICKS,
    Counts,
    facts_of,
)
from longspan.tasks.recommendation.columns import MIND_TIME, Time, impression_columns, seconds
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.ragged import as_lists, last, offsets_of, ragged
from longspan.tasks.recommendation.source_files import BEHAVIORS, Location, table_schema

FEATURES = Features(
    {
        "impression": Value("string"),
        "user": Value("string"),
        "time": Value("float64"),
        "history": List(Value("int32")),
        "candidates": List(Value("int32")),
        "clicked": List(Value("int8")),
        "unknown": List(Value("string")),
        "unknown_places": List(Value("int32")),
        "unknown_clicked": Value("int32"),
        "unknown_history": Value("int32"),
        "where": Value("string"),
    }
)
# Besides: what is wrong with a row, and how many known candidates were clicked, -1 where that is not known.
_CHECKED = Features(
    {
        **FEATURES,
        "problem": Value("string"),
        "clicks": Value("int32"),
    }
)


class Shown(NamedTuple):
    """Some impressions as they are in a file; each an Arrow array with a value for each.

    Attributes:
        impression: Identifiers, empty or null if missing.
        user: Likewise.
        time: Seconds since 1970, or the numbers given; null if missing.
        history: Lists of identifiers of items.
        candidates: The same, with what was clicked.
        where: Places.
        problem: The problem, empty if there is none.
    """

    impression: pa.Array
    user: pa.Array
    time: pa.Array
    history: pa.ListArray
    candidates: pa.ListArray
    where: pa.Array
    problem: pa.Array


def read_impressions(
    location: Location,
    data: RecommendationData,
    catalogue: Dataset,
    counts: Counts,
    *,
    news: str,
    clicks: bool,
    candidates: bool = True,
) -> Dataset:
    """Return the impressions of one split, with the columns of `FEATURES`.

    Args:
        location: The file.
        data: The settings.
        catalogue: The items.
        counts: Where rows that are left out are counted.
        news: Name of the tables of news in messages.
        clicks: Whether every impression must have a clicked candidate.
        candidates: Whether it must have any.

    Raises:
        UserError: It cannot be read, or has bad rows and `skip_bad_rows` is not set.
    """
    path = Path(location.path)
    facts: list[Any]
    shown: Callable[[], Iterator[Shown]]
    if location.kind == "mind":
        schema, facts = schema_of(impression_columns(data), data), ["mind", data.encoding, facts_of(path)]
        shown = partial(_mind_rows, path, data.encoding)
    else:
        columns = impression_columns(data, candidates=candidates)
        schema = table_schema(columns, data, path, names=location.names, predicting=not candidates)
        alone = replace(data, path="", train=str(path), validation="", test="")
        source = find(alone, schema, training=True)["train"]
        facts = [source.facts]
        shown = partial(_table_rows, source, schema)
    items = catalogue.with_format("arrow")[:]["item"].combine_chunks().cast(pa.string())
    rows = cached_tables(
        lambda: (numbered(some, items, data.history, candidates=candidates) for some in shown()),
        _CHECKED,
        ["impressions", facts, fingerprint(catalogue), data.history, candidates],
        PACKAGE,
    )
    if data.encoding == AUTO and path.suffix != ".parquet" and (found := detected_encoding(encoding_of(path, AUTO))):
        counts.encodings[found] += len(rows)
    source = Source(named(path), facts, lambda schema: iter(()), schema)
    return _checked(rows, source, schema, data, counts, news, clicks)


def _mind_rows(path: Path, encoding: str) -> Iterator[Shown]:
    for fields in read_unquoted(path, BEHAVIORS, encoding):
        time, wrong = _times(fields.columns["time"])
        problem = pc.if_else(pc.and_(pc.equal(fields.problem, ""), wrong), f"no time (expected {Time.kind})",
                             fields.problem)  # fmt: skip
        lists = {name: pc.utf8_split_whitespace(fields.columns[name]) for name in ("history", "candidates")}
        yield Shown(fields.columns["impression"], fields.columns["user"], time, **lists, where=fields.where,
                    problem=problem)  # fmt: skip


def _times(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return times in seconds, null if missing, and where they have no known form."""
    found = pc.strptime(texts, format=MIND_TIME, unit="s", error_is_null=True).cast(pa.int64()).cast(pa.float64())
    rest = pc.and_(pc.is_null(found), pc.not_equal(pc.utf8_trim_whitespace(texts), ""))
    if rest.true_count:
        numbers = [seconds(text) if other else None for text, other in zip(texts.to_pylist(), rest.to_pylist(),
                                                                            strict=True)]  # fmt: skip
        found = pc.coalesce(found, pa.array(numbers, pa.float64()))
    return found, pc.and_(rest, pc.is_null(found))


def _table_rows(source: Source, schema: Schema) -> Iterator[Shown]:
    for table in cached(source, "train", schema.columns).with_format("arrow").iter(batch_size=10_000):
        columns = [table[name].combine_chunks() for name in Shown._fields]
        yield Shown(*columns)


def numbered(shown: Shown, items: pa.Array, history: int, *, candidates: bool = True) -> pa.Table:
    """Return impressions as numbers of `items`, with the last clicks of each history (0: all).

    What `items` lack is left out of histories and candidates, and counted. Without `candidates`, impressions that have
    none are fine.
    """
    rows = len(shown.where)
    problem = _Problems(shown.problem)
    clicked_ids, clicked_rows = _flat(shown.history)
    past = pc.index_in(clicked_ids, items)
    known = past.is_valid().to_numpy(zero_copy_only=False)
    kept, history_sizes = last(_numbers(past)[known], clicked_rows[known], rows, history)

    ids, of = _flat(shown.candidates)
    found = _candidates(ids, items)
    there = found.numbers >= 0
    sizes = np.bincount(of[there], minlength=rows)
    # Beside items without labels, an unknown "x-1" is an item, not a label.
    plain = (sizes > 0) & (np.bincount(of[there & (found.labels >= 0)], minlength=rows) == 0)
    found.labels[~there & plain[of]] = -1
    labelled = np.bincount(of[found.labels >= 0], minlength=rows)
    total = np.bincount(of, minlength=rows)
    if candidates:
        problem.where(total == 0, "no candidates")
    for place in np.flatnonzero(found.odd)[::-1]:
        problem.at(int(of[place]), f"a label other than -0 and -1 ({ids[place].as_py()!r})")
    problem.where((labelled > 0) & (labelled < total), "candidates with and without -0 or -1")
    problem.where(_empty(shown.user), "no user")

    told = (labelled == total) & (total > 0)
    labels = found.labels[there & told[of]]
    clicked = found.labels == 1
    unknown = np.flatnonzero(~there)
    names = ids.take(pa.array(unknown)).to_pylist()
    names = [name if found.labels[place] < 0 else name[:-2] for place, name in zip(unknown, names, strict=True)]
    begins = offsets_of(total)[:-1]
    columns = {
        "impression": pc.cast(shown.impression, pa.string()).fill_null(""),
        "user": shown.user,
        "time": shown.time,
        "history": as_lists(kept, history_sizes, pa.int32()),
        "candidates": as_lists(found.numbers[there], sizes, pa.int32()),
        "clicked": as_lists(labels, np.where(told, sizes, 0), pa.int8()),
        "unknown": as_lists(np.array(names, dtype=object), total - sizes, pa.string()),
        "unknown_places": as_lists(unknown - begins[of[unknown]], total - sizes, pa.int32()),
        "unknown_clicked": np.bincount(of[~there & clicked], minlength=rows),
        "unknown_history": np.bincount(clicked_rows[~known], minlength=rows),
        "where": shown.where,
        "problem": problem.texts(),
        "clicks": np.where(told, np.bincount(of[there & clicked], minlength=rows), -1),
    }
    return pa.table(columns)


class _Candidates(NamedTuple):
    """Candidates as three arrays.

    `numbers` are those of the items, -1 if unknown. `labels` are 1, 0, or -1 without a label. `odd` is True where a
    label is invalid.
    """

    numbers: np.ndarray
    labels: np.ndarray
    odd: np.ndarray


def _candidates(ids: pa.Array, items: pa.Array) -> _Candidates:
    one, zero = pc.ends_with(ids, "-1"), pc.ends_with(ids, "-0")
    numbers = _numbers(pc.index_in(pc.utf8_slice_codeunits(ids, 0, -2), items))
    marked = pc.or_(one, zero).to_numpy(zero_copy_only=False)
    labels = np.where(marked, one.to_numpy(zero_copy_only=False).astype(np.int8), np.int8(-1))
    rest = np.flatnonzero(~marked | (numbers < 0))
    odd = np.zeros(len(ids), dtype=bool)
    if len(rest):
        # Without a label, or an identifier that ends like one.
        some = ids.take(pa.array(rest))
        whole = _numbers(pc.index_in(some, items))
        labels[rest] = np.where(marked[rest] & (whole < 0), labels[rest], -1)
        numbers[rest] = whole
        # "N4-2" has an odd label if there is an item "N4"; otherwise it is an unknown item.
        stem = pc.replace_substring_regex(some, r"-\d+$", "")
        numbered = _numbers(pc.index_in(stem, items)) >= 0
        odd[rest] = (whole < 0) & ~marked[rest] & numbered & pc.not_equal(stem, some).to_numpy(zero_copy_only=False)
    return _Candidates(numbers, labels, odd)


def _flat(lists: pa.ListArray) -> tuple[pa.Array, np.ndarray]:
    """Values of lists, without empty texts, and the list that each is in."""
    values, rows = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    real = pc.not_equal(values, "")
    return values.filter(real), rows[real.to_numpy(zero_copy_only=False)]


def _numbers(found: pa.Array) -> np.ndarray:
    numbers: np.ndarray = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    return numbers


def _empty(texts: pa.Array) -> np.ndarray:
    empty: np.ndarray = pc.equal(pc.utf8_trim_whitespace(pc.cast(texts, pa.string()).fill_null("")), "").to_numpy(
        zero_copy_only=False
    )
    return empty


class _Problems:
    """First problem of each of some rows."""

    def __init__(self, texts: pa.Array) -> None:
        self._given = texts
        self._found: dict[int, str] = {}

    def where(self, wrong: np.ndarray, problem: str) -> None:
        for row in np.flatnonzero(wrong):
            self._found.setdefault(int(row), problem)

    def at(self, row: int, problem: str) -> None:
        self._found[row] = problem

    def texts(self) -> pa.Array:
        if not self._found:
            return self._given
        return pa.array([text or self._found.get(row, "") for row, text in enumerate(self._given.to_pylist())])


def _checked(
    rows: Dataset,
    source: Source,
    schema: Schema,
    data: RecommendationData,
    counts: Counts,
    news: str,
    clicks: bool,
) -> Dataset:
    """Return good rows.

    Raises:
        UserError: There are others, and `skip_bad_rows` is not set.
    """
    rows = without_bad_rows(rows, source, schema, data.skip_bad_rows, counts.skipped)
    lacking = (ragged(rows, "unknown").sizes > 0) & (ragged(rows, "candidates").sizes == 0)
    if lacking.any() and not data.skip_bad_rows:
        first = rows[int(np.flatnonzero(lacking)[0])]
        raise UserError(
            f"expected a candidate of each impression of {source.name} in {news}, got {rows_in(lacking)} without "
            f"(first: {first['unknown'][0]!r} at {first['where']}); add the items, or set data.skip_bad_rows=true to "
            "drop and count such rows."
        )
    rows = _without(rows, lacking, "no known candidate", counts)
    rows = _distinct(rows, source, data, counts)
    number, unknown = _column(rows, "unknown_clicked"), ragged(rows, "unknown").sizes
    counts.add(UNKNOWN_CLICKS, int(_column(rows, "unknown_history").sum()))
    counts.add(UNKNOWN_CANDIDATES, int((unknown - number).sum()))
    counts.add(UNKNOWN_CLICKED, int(number.sum()))
    if clicks:
        # Nobody can learn from a click on an item that cannot be read.
        lost = (number > 0) & (_column(rows, "clicks") <= 0)
        if len(rows) and lost.all():
            raise UserError(
                f"expected clicked candidates of {source.name} in {news}, got none of them (first: "
                f"{rows[0]['unknown'][0]!r} at {rows[0]['where']}); add the items, or set data.news to their table."
            )
        rows = _without(rows, lost, "no known clicked candidate", counts)
        number = _column(rows, "clicks")
        if (number <= 0).any() and not data.skip_bad_rows:
            first = rows[int(np.flatnonzero(number <= 0)[0])]
            what = "no clicked candidate" if first["clicked"] else "candidates without -0 or -1"
            raise UserError(
                f"expected a clicked candidate in every training impression, got {rows_in(number <= 0)} of "
                f"{source.name} without (first: {what} at {first['where']}); correct them, or set "
                "data.skip_bad_rows=true to drop and count them."
            )
        rows = _without(rows, number <= 0, "no clicks", counts)
    if not len(rows):
        raise UserError(f"expected impressions in {source.name}, got only bad rows; fix them or use other data.")
    return rows.select_columns(list(FEATURES))


def _distinct(rows: Dataset, source: Source, data: RecommendationData, counts: Counts) -> Dataset:
    """Return the rows without those that have the identifier of an earlier one."""
    names = rows.with_format("arrow")[:]["impression"].combine_chunks()
    codes = names.dictionary_encode().indices.to_numpy()
    if not len(codes) or codes.max() + 1 == len(codes) or not (named := pc.not_equal(names, "")).true_count:
        return rows
    again = np.ones(len(codes), dtype=bool)
    again[np.unique(codes, return_index=True)[1]] = False
    again &= named.to_numpy(zero_copy_only=False)
    if again.any() and not data.skip_bad_rows:
        first = rows[int(np.flatnonzero(again)[0])]
        raise UserError(
            f"expected each impression of {source.name} once, got {rows_in(again)} with the identifier of an "
            f"earlier one (first: {first['impression']!r} at {first['where']}); correct them, or set "
            "data.skip_bad_rows=true to drop and count them."
        )
    return _without(rows, again, "impressions given twice", counts)


def rows_in(chosen: np.ndarray) -> str:
    """Number of chosen rows, for messages."""
    number = int(chosen.sum())
    return "1 row" if number == 1 else f"{number:,} rows"


def _without(rows: Dataset, bad: np.ndarray, reason: str, counts: Counts) -> Dataset:
    if not bad.any():
        return rows
    counts.add(reason, int(bad.sum()))
    return rows.select(np.flatnonzero(~bad))


def _column(rows: Dataset, name: str) -> np.ndarray:
    found: np.ndarray = rows.select_columns([name]).with_format("arrow")[:][name].to_numpy()
    return found
