"""Click logs as impressions: rows that belong together, each with what its user had clicked on before."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from longspan.data.sources.caching import cached_tables
from longspan.data.sources.locating import SPLITS
from longspan.errors import UserError
from longspan.tasks.recommendation.catalogue import PACKAGE, UNKNOWN_CANDIDATES, UNKNOWN_CLICKED, Counts
from longspan.tasks.recommendation.copies import codes, draw, numbered
from longspan.tasks.recommendation.impressions import FEATURES, rows_in
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.ragged import Ragged, as_lists, last, offsets_of

#: How many clicks are looked at together.
_AT_ONCE = 1 << 22
#: Clicks looked at besides those that are kept, as candidates among them do not count.
_SPARE = 16
_HISTORIES = 3
"""Increase this when the same log gives other histories, so that outdated caches are not used."""


def impressions_of(
    logs: Mapping[str, Dataset],
    data: RecommendationData,
    catalogue: Dataset,
    counts: Counts,
    drawn: dict[str, float],
) -> dict[str, Dataset]:
    """Return the impressions of click logs, with the columns of `longspan.tasks.recommendation.impressions.FEATURES`.

    Rows of a split with the same user and impression are one impression. In logs without impressions, rows with the
    same user and time are one; otherwise each row is one. Its history are the earlier clicks of its user, in the
    training split and in its own, on items that are not among its candidates. Without times the order is unknown, and
    the history are all clicks of the user in the training split on other items. The order of rows is not used, as rows
    are often sorted by clicks: the length of a history would then reveal labels. Rows with items that the catalogue
    lacks are left out and counted. Where splits are drawn, impressions that repeat one another go to the same.

    Args:
        logs: The good rows of each split.
        data: The settings.
        catalogue: The items.
        counts: Where rows that are left out are counted.
        drawn: The share of each split that is drawn from training.

    Raises:
        UserError: The catalogue lacks all items; or the rows of a user are not in the order of time, or some lack a
            time, and `skip_bad_rows` is not set.
    """
    log = _read(logs, data, catalogue, counts)
    group_split = _drawn(log, drawn, data.split_seed)
    facts = ["log", [(split, rows._fingerprint) for split, rows in logs.items()], catalogue._fingerprint]
    facts += [drawn, data.split_seed, data.history, data.skip_bad_rows, _HISTORIES]
    return {
        split: cached_tables(
            lambda number=number: _tables(log, group_split, number, data.history),  # type: ignore[misc]
            FEATURES,
            [*facts, split],
            PACKAGE,
        )
        for number, split in enumerate(SPLITS)
        if split in logs or split in drawn
    }


@dataclass(frozen=True)
class _Log:
    """The rows of all splits, that of training first; each an array with a value for each row.

    Attributes:
        user: A number for each user.
        item: Catalogue numbers.
        clicked: 1, 0, or -1 where it is not known.
        order: What is earlier has a lower number: times as ranks, or else the number of the row.
        timed: Whether there are times.
        split: The place of its split in `SPLITS`.
        group: The impression that it belongs to, numbered in the order of their first rows.
        table: The texts `user`, `impression` and `where`, and `time`.
    """

    user: np.ndarray
    item: np.ndarray
    clicked: np.ndarray
    order: np.ndarray
    timed: bool
    split: np.ndarray
    group: np.ndarray
    table: pa.Table

    @property
    def first(self) -> np.ndarray:
        """The first row of each impression."""
        first: np.ndarray = np.unique(self.group, return_index=True)[1]
        return first


def _read(logs: Mapping[str, Dataset], data: RecommendationData, catalogue: Dataset, counts: Counts) -> _Log:
    names = ["user", "item", "clicked", "time", "impression", "where"] + ([] if data.news else ["title"])
    splits = [split for split in SPLITS if split in logs]
    table = pa.concat_tables([logs[split].select_columns(names).with_format("arrow")[:] for split in splits])
    table = table.combine_chunks()
    split = np.repeat([SPLITS.index(name) for name in splits], [len(logs[name]) for name in splits])
    called = table["item"] if data.news else pc.coalesce(table["item"], table["title"].cast(pa.string()))
    items = catalogue.with_format("arrow")[:]["item"].combine_chunks().cast(pa.string())
    item = _numpy(pc.index_in(called, items).fill_null(-1))
    user = codes(table["user"])
    time = _numpy(table["time"].cast(pa.float64()).fill_null(np.nan))
    timed = bool((~np.isnan(time)).any())

    bad = np.zeros(len(table), dtype=bool)

    def leave_out(rows: np.ndarray, reason: str, expected: str, got: str, how: str) -> None:
        if not rows.any():
            return
        if not data.skip_bad_rows:
            first = table["where"][int(np.flatnonzero(rows)[0])]
            raise UserError(
                f"expected {expected}, got {rows_in(rows)} {got} (first: {first}); {how}, or set "
                "data.skip_bad_rows=true to drop and count them."
            )
        counts.add(reason, int(rows.sum()))
        bad[rows] = True

    clicked = _numpy(table["clicked"].cast(pa.int8()).fill_null(-1))
    unknown = item < 0
    if unknown.all():
        raise UserError(
            f"expected items of the table of news in the click log, got none of them (first: {called[0].as_py()!r} at "
            f"{table['where'][0]}); set data.item_column to their identifiers, or data.news to another table."
        )
    counts.add(UNKNOWN_CLICKED, int((unknown & (clicked == 1)).sum()))
    counts.add(UNKNOWN_CANDIDATES, int((unknown & (clicked != 1)).sum()))
    bad |= unknown
    if timed:
        in_all = "a time in all rows of the click log or in none"
        leave_out(np.isnan(time) & ~bad, "no time", in_all, "without", "add them")
        late = np.zeros(len(table), dtype=bool)
        late[~bad] = _out_of_order(user[~bad], split[~bad], time[~bad])
        in_order = f"the rows of each user in the order of {data.time_column!r}"
        leave_out(late, "rows out of order", in_order, "earlier than one above", "sort the click log by time")
    good = ~bad
    if not good.any():
        raise UserError("expected rows in the click log, got only bad ones; fix them or use other data.")
    table, user, item, split, time = table.filter(pa.array(good)), user[good], item[good], split[good], time[good]
    order = np.unique(time, return_inverse=True)[1] if timed else np.arange(len(user))
    group = _groups(table, user, split, order if timed else None)
    return _Log(user, item, clicked[good], order, timed, split, group, table)


def _groups(table: pa.Table, user: np.ndarray, split: np.ndarray, time: np.ndarray | None) -> np.ndarray:
    """Return which impression each row belongs to, numbered in the order of their first rows."""
    rows = np.arange(len(user))
    if (named := table["impression"].is_valid()).to_numpy().any():
        # A row without is one for itself.
        alone = ~named.to_numpy()
        shown = np.where(alone, rows, codes(table["impression"].fill_null(""))) * 2 + alone
    else:
        shown = rows if time is None else time
    pairs = _joined(_joined(split, user), shown)
    first, found = np.unique(pairs, return_index=True, return_inverse=True)[1:]
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    group: np.ndarray = place[found]
    return group


def _out_of_order(user: np.ndarray, split: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Return which rows are earlier than one of the same user and split above them."""
    rank = np.unique(time, return_inverse=True)[1]
    who = _joined(split, user)
    order = np.argsort(who, kind="stable")
    key = who[order] * (int(rank.max(initial=0)) + 1) + rank[order]
    late = np.zeros(len(user), dtype=bool)
    late[order] = np.maximum.accumulate(key) > key
    return late


def _drawn(log: _Log, fractions: dict[str, float], seed: int) -> np.ndarray:
    """Return the split of each impression, some of those for training being drawn for others at random.

    Raises:
        UserError: There are too few.
    """
    first = log.first
    splits = log.split[first].copy()
    if not fractions:
        return splits
    train = np.flatnonzero(splits == 0)
    rows = np.argsort(log.group, kind="stable")
    items = Ragged(log.item[rows], offsets_of(np.bincount(log.group))).take(train)
    time = log.order[first[train]] if log.timed else np.zeros(len(train))
    for split, numbers in draw(numbered([log.user[first[train]], time, items]), fractions, seed).items():
        splits[train[numbers]] = SPLITS.index(split)
    return splits


def _tables(log: _Log, splits: np.ndarray, number: int, history: int) -> Iterator[pa.Table]:
    """Yield the impressions of a split, some at a time."""
    own = splits[log.group]
    ranks = int(log.order.max(initial=0)) + 1
    first = log.first
    # Clicks in the order of users and then of time.
    clicks = np.flatnonzero((log.clicked == 1) & ((own == 0) | ((own == number) & log.timed)))
    clicks = clicks[np.lexsort((clicks, log.order[clicks], log.user[clicks]))]
    places = log.user[clicks] * ranks + log.order[clicks]
    mine = np.flatnonzero(splits == number)
    earliest = np.full(len(splits), ranks)
    np.minimum.at(earliest, log.group, log.order)
    user = log.user[first[mine]]
    starts = np.searchsorted(places, user * ranks, side="left")
    before = earliest[mine] if log.timed else ranks
    ends = np.searchsorted(places, user * ranks + before, side="left")
    rows = np.flatnonzero(own == number)
    rows = rows[np.argsort(log.group[rows], kind="stable")]
    sizes = np.bincount(log.group[rows], minlength=len(splits))[mine]
    begins = offsets_of(sizes)
    work = np.cumsum(np.minimum(ends - starts, history + _SPARE if history else ends - starts) + sizes)
    start = 0
    while start < len(mine):
        cut = max(start + 1, int(np.searchsorted(work, work[start] + _AT_ONCE)))
        some = slice(start, cut)
        shown = rows[begins[start] : begins[cut]]
        of = np.repeat(np.arange(cut - start), sizes[some])
        past, past_sizes = _histories(
            log.item[clicks], starts[some], ends[some], log.item[shown], of, history, int(log.item.max()) + 1
        )
        labels = log.clicked[shown]
        told = np.bincount(of[labels >= 0], minlength=cut - start) == sizes[some]
        texts = log.table.take(pa.array(first[mine[some]]))
        numbers = pa.array(np.arange(start + 1, cut + 1)).cast(pa.string())
        none = np.zeros(cut - start, np.int64)
        columns: dict[str, Any] = {
            "impression": pc.coalesce(texts["impression"], pa.chunked_array([numbers])),
            "user": texts["user"],
            "time": texts["time"].cast(pa.float64()),
            "history": as_lists(past, past_sizes, pa.int32()),
            "candidates": as_lists(log.item[shown], sizes[some], pa.int32()),
            "clicked": as_lists(labels[told[of]], np.where(told, sizes[some], 0), pa.int8()),
            "unknown": as_lists(np.empty(0, dtype=object), none, pa.string()),
            "unknown_places": as_lists(none[:0], none, pa.int32()),
            "unknown_clicked": none,
            "unknown_history": none,
            "where": texts["where"],
        }
        yield pa.table(columns)
        start = cut


def _histories(
    items: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    candidates: np.ndarray,
    of: np.ndarray,
    most: int,
    catalogue: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return histories, one after the other, and how long each is.

    Args:
        items: The items clicked, user by user.
        starts: Where the clicks of each impression's user begin there.
        ends: Where those before the impression end.
        candidates: The items of the impressions, which are left out.
        of: Which impression each candidate is of.
        most: How many clicks to keep of each, the last ones; 0 is all.
        catalogue: How many items there are.
    """
    begins = np.maximum(starts, ends - most - _SPARE) if most else starts

    def without_candidates(begins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sizes = ends - begins
        rows = np.repeat(np.arange(len(sizes)), sizes)
        found = items[np.repeat(begins - offsets_of(sizes)[:-1], sizes) + np.arange(len(rows))]
        kept = ~np.isin(rows * catalogue + found, of * catalogue + candidates)
        return last(found[kept], rows[kept], len(sizes), most)

    values, sizes = without_candidates(begins)
    if most and ((sizes < most) & (begins > starts)).any():
        # So many candidates among the last clicks that earlier ones count.
        values, sizes = without_candidates(starts)
    return values, sizes


def _joined(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return a number for each pair of numbers, from 0, in their order."""
    pairs: np.ndarray = np.unique(one.astype(np.int64) * (int(other.max(initial=0)) + 1) + other, return_inverse=True)[
        1
    ]
    return pairs


def _numpy(column: Any) -> np.ndarray:
    found: np.ndarray = column.to_numpy()
    return found
