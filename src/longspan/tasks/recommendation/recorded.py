"""Recorded impressions, clicks and their catalogue: the data of models and baselines."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Features, List, Value

from longspan.data.config import DataConfig
from longspan.data.fingerprints import fingerprint
from longspan.data.sources.announcements import note_encodings
from longspan.data.sources.caching import cached_tables, read_splits
from longspan.data.sources.duplicates import count_duplicates, note_duplicates
from longspan.data.sources.files.opening import packed_suffix
from longspan.data.sources.formats.schema import Schema, schema_of
from longspan.data.sources.formats.tables import PLAIN
from longspan.data.sources.locating import SPLITS, Source, find
from longspan.data.sources.splitting import Units, deal
from longspan.errors import UserError
from longspan.machine.printing import note, printable
from longspan.tasks.recommendation.catalogue import (
    PACKAGE,
    UNKNOWN_CANDIDATES,
    UNKNOWN_CLICKED,
    Counts,
    log_catalogue,
    read_catalogue,
)
from longspan.tasks.recommendation.columns import log_columns
from longspan.tasks.recommendation.impressions import FEATURES, read_impressions, rows_in
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.ragged import Ragged, as_lists, last, offsets_of, ragged
from longspan.tasks.recommendation.source_files import HUB, FoundFiles, Kind, find_recorded, plain, table_schema

__all__ = ["Kind", "Ragged", "Recorded", "ragged", "read_recorded"]


@dataclass(frozen=True)
class Recorded:
    """Impressions, and the catalogue whose rows they speak of by number, from 0.

    Attributes:
        catalogue: The items of all splits, each once. Columns are `item` (its identifier, or else its text), `title`,
            `abstract`, `category`, `subcategory` (empty if missing), `entities` (identifiers, those of the title first)
            and `where`.
        splits: "train" and, if any, "validation" and "test". Columns are `impression` (its identifier), `user`, `time`
            (seconds since 1970, or the number given; None if missing), `history`, `candidates`, `clicked` and `where`.
            The `history` has the numbers of the items clicked before, oldest first, at most `data.history`.
            `candidates` are numbers in the order shown; `clicked` is 1 or 0 for each, an empty list if unknown.
            Items that the catalogue lacks are in further columns. `unknown` has the candidates, `unknown_places` their
            places among all that were shown, from 0. `unknown_clicked` counts the clicked ones of them,
            `unknown_history` the clicks on such items. In click logs, rows with such items are only counted in
            `skipped`.
        skipped: Number of rows left out, by reason.
        encodings: Number of rows in other encodings than UTF-8, by encoding, where `data.encoding` is "auto".
        kind: Where the impressions come from.
        duplicates: Number of impressions by split that repeat one of the same split ("copies") or of another one
            ("in_train", "in_validation"): see `longspan.data.sources.duplicates.count_duplicates`. Empty without any.
        past: The last clicks of each user of the training split of a click log, with the columns of `PAST`; else None.
    """

    catalogue: Dataset
    splits: DatasetDict
    skipped: dict[str, int]
    kind: Kind
    encodings: dict[str, int] = field(default_factory=dict)
    duplicates: dict[str, dict[str, int]] = field(default_factory=dict)
    past: Dataset | None = None

    def scored(self) -> dict[str, Dataset]:
        """Return the splits; without the test split, with a notice, if it does not say what was clicked."""
        splits = dict(self.splits)
        if "test" in splits and not ragged(splits["test"], "clicked").sizes.any():
            # As MIND's: only the leaderboard knows.
            note("the test split does not say what was clicked, so it is not scored")
            del splits["test"]
        return splits

    def known(self) -> Dataset:
        """Return the items of the catalogue that the training split shows or has in histories."""
        seen = [ragged(self.splits["train"], name).values for name in ("history", "candidates")]
        return self.catalogue.select(np.unique(np.concatenate(seen)))

    def users(self) -> list[str]:
        """Return the users of the training split, in order of their first impression."""
        found: list[str] = pc.unique(self.splits["train"].with_format("arrow")[:]["user"]).to_pylist()
        return found

    def popularity(self) -> np.ndarray:
        """Clicks of each item of the catalogue in the training split's impressions, `(n,)` int64."""
        items, clicked = (ragged(self.splits["train"], name) for name in ("candidates", "clicked"))
        told = np.repeat(clicked.sizes > 0, items.sizes)
        return np.bincount(items.values[told][clicked.values == 1], minlength=len(self.catalogue))


def read_recorded(
    data: RecommendationData,
    *,
    training: bool = True,
    candidates: bool = True,
    catalogue: Dataset | None = None,
    past: Dataset | None = None,
) -> Recorded:
    """Read and split what was recorded.

    A validation split that the source lacks is drawn from the training impressions at random (`split_seed`), a test
    split too. Impressions that repeat one another go to the same. Where splits are given, nothing is moved. In
    training, standard error says how many there are. Every training impression has a clicked candidate, except in
    click logs, where some have a single one; those of other splits may lack clicks, or, for prediction, labels.

    Args:
        data: The settings.
        training: Whether to require a training split.
        candidates: Whether each impression must have candidates.
        catalogue: Items that are known already, which come first and keep their numbers: those of a trained model. With
            them, there need be no table of news.
        past: Clicks on which a click log follows: `Recorded.past` of the data that a model was trained with.

    Raises:
        UserError: Bad data, as in `longspan.data.sources.loading.load`, or bad rows without `skip_bad_rows`. An
            impression is bad without a known candidate or, in training, without clicks. So are identifiers that recur
            with other contents.
    """
    found = find_recorded(data, training, news=catalogue is None)
    counts = Counts()
    kind = next(iter(found.splits.values())).kind
    kept: Dataset | None = None
    # What training needs also decides which impressions others are drawn from.
    labels = training or data.validation_fraction + data.test_fraction > 0
    if kind == "log":
        items, splits, drawn, kept = _read_log(found, data, catalogue, counts, past, training=training, labels=labels)
    else:
        items = read_catalogue(found.news, data, catalogue, counts)
        news = " and ".join(dict.fromkeys(printable(file.name) for file in found.news)) or "the model's catalogue"
        splits = {
            split: read_impressions(
                location, data, items, counts, news=news, clicks=labels and split == "train", candidates=candidates
            )
            for split, location in found.splits.items()
        }
        drawn = shares(data, splits)
        splits = _drawn(splits, drawn, data.split_seed)
    note_encodings(counts.encodings, sum(map(len, splits.values())))
    ordered = DatasetDict({split: splits[split] for split in SPLITS if split in splits})
    duplicates = {} if len(ordered) == 1 else count_duplicates(documents(ordered, histories=kind != "log"))
    if training:
        sizes = {split: len(rows) for split, rows in ordered.items()}
        note_duplicates(duplicates, sizes, drawn, "impressions", "the same user, time and candidates")
    return Recorded(items, ordered, counts.skipped, kind, dict(counts.encodings), duplicates, kept)


def _read_log(
    found: FoundFiles,
    data: RecommendationData,
    known: Dataset | None,
    counts: Counts,
    past: Dataset | None,
    *,
    training: bool,
    labels: bool,
) -> tuple[Dataset, dict[str, Dataset], dict[str, float], Dataset | None]:
    """Return the catalogue, the impressions of each split, the shares of those that were drawn, and the last clicks."""
    sources: dict[str, tuple[Source, Schema]] = {}
    for split, location in found.splits.items():
        if str(location.path).startswith(HUB):
            schema = schema_of(log_columns(data, labels=labels), data)
            sources |= {name: (source, schema) for name, source in find(data, schema, training).items()}
            continue
        own = replace(data, path="", train=str(location.path), validation="", test="")
        own = plain(own) if packed_suffix(Path(location.path)) == PLAIN else own
        schema = table_schema(log_columns(own, labels=labels), own, location.path, names=location.names)
        sources[split] = find(own, schema, training=True)["train"], schema
    logs: dict[str, Dataset] = {}
    for split, (source, schema) in sources.items():
        rows, skipped, encodings = read_splits({split: source}, schema, data.skip_bad_rows)
        logs |= rows
        counts.encodings.update(encodings)
        for reason, count in skipped.items():
            counts.skipped[reason] = counts.skipped.get(reason, 0) + count
    logs = {split: logs[split] for split in SPLITS if split in logs}
    earlier = None if past is None else past_of(logs, past)
    if found.news:
        catalogue = read_catalogue(found.news, data, known, counts)
    else:
        # What the log says of an item holds, not what was said of it in training.
        more = [] if earlier is None else [_of_other_items(earlier, logs.values())]
        catalogue = log_catalogue([*logs.values(), *more], data, known, counts)
    if earlier is not None:
        called = set(catalogue["item"][:])
        earlier = earlier.select([row for row, item in enumerate(earlier["item"][:]) if item in called])
        # Histories are of the training split and the own one.
        renamed = {"test" if split == "train" else split: rows for split, rows in logs.items()}
        found_splits, _ = impressions_of({"train": earlier, **renamed}, data, catalogue, counts, {})
        splits = {split: found_splits["test" if split == "train" else split] for split in logs}
        return catalogue, splits, {}, None
    drawn = shares(data, logs)
    splits, kept = impressions_of(logs, data, catalogue, counts, drawn)
    return catalogue, splits, drawn, kept


#: Columns of the last clicks of users, those of the rows of a click log.
PAST = Features(
    {name: Value("string") for name in ("user", "item", "title", "abstract", "category", "subcategory")}
    | {"entities": List(Value("string")), "time": Value("float64")}
)


def past_of(logs: Mapping[str, Dataset], past: Dataset) -> Dataset:
    """Clicks before a click log as rows of one, and a note that counts the users of the log without any."""
    users = {user for rows in logs.values() for user in rows.unique("user")}
    known = users & set(past.unique("user"))
    if users - known:
        note(
            f"{len(users - known):,} of {len(users):,} users have no clicks in the training data: their histories "
            "begin with this click log"
        )
    times = [time for rows in logs.values() for time in rows["time"][:] if time is not None]
    table = past.with_format("arrow")[:]
    table = table.filter(pc.is_in(table["user"], pa.array(sorted(known), table["user"].type)))
    # Those without a time were before all that have one.
    before = pa.scalar(min(times) - 1) if times else None
    time = pa.nulls(len(table), pa.float64()) if before is None else pc.coalesce(table["time"], before)
    table = table.set_column(table.schema.get_field_index("time"), "time", time)
    like = next(iter(logs.values()))
    columns: dict[str, Any] = {name: table[name] for name in table.column_names if name in like.column_names}
    columns |= {
        "clicked": pa.array(np.ones(len(table), np.int8)),
        "impression": pa.nulls(len(table), pa.string()),
        "where": pa.array(["the training data"] * len(table), pa.string()),
    }
    features = Features({name: like.features[name] for name in columns})
    return Dataset(pa.table(columns).cast(features.arrow_schema))


def _of_other_items(past: Dataset, logs: Iterable[Dataset]) -> Dataset:
    """Rows of items that click logs lack."""
    named = {item or title for rows in logs for item, title in zip(rows["item"][:], rows["title"][:], strict=True)}
    return past.select([row for row, item in enumerate(past["item"][:]) if item not in named])


def _last_clicks(log: "_Log", splits: np.ndarray, catalogue: Dataset, history: int) -> Dataset:
    """The last clicks of each user of the training split, as many as histories can need."""
    clicks = np.flatnonzero((log.clicked == 1) & (splits[log.group] == 0))
    clicks = clicks[np.lexsort((clicks, log.order[clicks], log.user[clicks]))]
    user = np.unique(log.user[clicks], return_inverse=True)[1]
    clicks, _ = last(clicks, user, int(user.max(initial=-1)) + 1, history + _SPARE if history else 0)
    names = [name for name in PAST if name not in ("user", "time")]
    items = catalogue.with_format("arrow")[:].select(names).take(pa.array(log.item[clicks]))
    texts = log.table.select(["user", "time"]).take(pa.array(clicks))
    columns = {name: (texts if name in ("user", "time") else items)[name] for name in PAST}
    return Dataset(pa.table(columns).cast(PAST.arrow_schema))


def _drawn(splits: dict[str, Dataset], fractions: dict[str, float], seed: int) -> dict[str, Dataset]:
    """Return the splits with those that are drawn from the training split.

    Raises:
        UserError: There are too few impressions.
    """
    if not fractions:
        return splits
    train = splits["train"]
    parts = draw(documents({"train": train}, histories=True)["train"], fractions, seed)
    return splits | {split: train.select(numbers) for split, numbers in parts.items()}


#: Number of clicks looked at together.
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
) -> tuple[dict[str, Dataset], Dataset]:
    """Return the impressions of click logs, with the columns of `longspan.tasks.recommendation.impressions.FEATURES`,
    and the last clicks of each user of the training split.

    Rows of a split with the same user and impression are one impression. In logs without impressions, rows with the
    same user and time are one; otherwise each row is one. Its history are the earlier clicks of its user, in the
    training split and in its own, on items that are not among its candidates. Without times the order is unknown, and
    the history are all clicks of the user in the training split on other items. The order of rows is not used, as rows
    are often sorted by clicks: the length of a history would then reveal labels. With times, rows are read in their
    order, and a note counts those that stand elsewhere. Rows with items that the catalogue
    lacks are left out and counted. Where splits are drawn, impressions that repeat one another go to the same.

    Args:
        logs: The good rows of each split.
        data: The settings.
        catalogue: The items.
        counts: Where rows that are left out are counted.
        drawn: The share of each split that is drawn from training.

    Raises:
        UserError: The catalogue lacks all items; or some rows lack a time, and `skip_bad_rows` is not set.
    """
    log = _read_logs(logs, data, catalogue, counts)
    group_split = _drawn_groups(log, drawn, data.split_seed)
    facts: list[Any] = ["log", [(split, fingerprint(rows)) for split, rows in logs.items()], fingerprint(catalogue)]
    facts += [drawn, data.split_seed, data.history, data.skip_bad_rows, _HISTORIES]
    found = {
        split: cached_tables(
            lambda number=number: _tables(log, group_split, number, data.history),  # type: ignore[misc]
            FEATURES,
            [*facts, split],
            PACKAGE,
        )
        for number, split in enumerate(SPLITS)
        if split in logs or split in drawn
    }
    return found, _last_clicks(log, group_split, catalogue, data.history)


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


def _read_logs(logs: Mapping[str, Dataset], data: RecommendationData, catalogue: Dataset, counts: Counts) -> _Log:
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
        if late := int(_out_of_order(user[~bad], split[~bad], time[~bad]).sum()):
            verb = "is" if late == 1 else "are"
            note(
                f"{late:,} of {len(table):,} rows of the click log {verb} earlier than one of the same user above: "
                f"rows are read in the order of {data.time_column!r}"
            )
    good = ~bad
    if not good.any():
        raise UserError("expected rows in the click log, got only bad ones; fix them or use other data.")
    table, user, item, split, time = table.filter(pa.array(good)), user[good], item[good], split[good], time[good]
    order = np.unique(time, return_inverse=True)[1] if timed else np.arange(len(user))
    group = _groups(table, user, split, order if timed else None)
    return _Log(user, item, clicked[good], order, timed, split, group, table)


def _groups(table: pa.Table, user: np.ndarray, split: np.ndarray, time: np.ndarray | None) -> np.ndarray:
    """Impression that each row belongs to, numbered in the order of their first rows."""
    rows = np.arange(len(user))
    if (named := table["impression"].is_valid()).to_numpy().any():
        # A row without is one for itself.
        alone = ~named.to_numpy()
        shown = np.where(alone, rows, codes(table["impression"].fill_null(""))) * 2 + alone
    else:
        shown = rows if time is None else time
    return _by_first_row(_joined(_joined(split, user), shown))


def _out_of_order(user: np.ndarray, split: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Rows that are earlier than one of the same user and split above them."""
    rank = np.unique(time, return_inverse=True)[1]
    who = _joined(split, user)
    order = np.argsort(who, kind="stable")
    key = who[order] * (int(rank.max(initial=0)) + 1) + rank[order]
    late = np.zeros(len(user), dtype=bool)
    late[order] = np.maximum.accumulate(key) > key
    return late


def _drawn_groups(log: _Log, fractions: dict[str, float], seed: int) -> np.ndarray:
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
        most: Number of clicks to keep of each, the last ones; 0 is all.
        catalogue: Number of items.
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


def shares(data: DataConfig, given: Collection[str]) -> dict[str, float]:
    """Return the share of each split that is drawn from the training split, as it is not among those given."""
    wanted = {"validation": data.validation_fraction, "test": data.test_fraction}
    return {split: share for split, share in wanted.items() if share and split not in given and "train" in given}


def documents(splits: Mapping[str, Dataset], *, histories: bool) -> dict[str, np.ndarray]:
    """Return a number for each impression of each split, `(n,)` int64: copies of one another have the same.

    Copies have the same user, time and candidates, whatever was clicked.

    Args:
        splits: Impressions with the columns of `longspan.tasks.recommendation.impressions.FEATURES`.
        histories: Whether they also have the same history. Those of click logs depend on the split.
    """
    tables = {split: rows.select_columns(["user", "time"]).with_format("arrow")[:] for split, rows in splits.items()}
    both = pa.concat_tables(tables.values())
    lists = ["candidates", *(["history"] if histories else [])]
    columns: list[np.ndarray | Ragged] = [codes(both["user"]), both["time"].cast(pa.float64()).to_numpy()]
    columns += [Ragged.joined([ragged(rows, name) for rows in splits.values()]) for name in lists]
    ends = np.cumsum([len(rows) for rows in splits.values()])
    return dict(zip(splits, np.split(numbered(columns), ends[:-1]), strict=True))


def numbered(columns: Sequence[np.ndarray | Ragged]) -> np.ndarray:
    """Return a number for each row, `(n,)` int64, from 0 in the order of first rows: equal rows have the same one.

    Args:
        columns: Keys of equal rows: numbers `(n,)`, where NaN equals NaN, and lists of integers.
    """
    found: np.ndarray | np.uint64 = np.uint64(0)
    for column in columns:
        if isinstance(column, Ragged):
            places = np.arange(len(column.values)) - column.offsets[:-1][column.rows]
            items = _mixed(_mixed(places) + column.values.astype(np.uint64))
            # Sums of consecutive items, modulo 2^64.
            sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(items)])
            part = np.diff(sums[column.offsets]) + column.sizes.astype(np.uint64)
        else:
            part = np.unique(column, return_inverse=True)[1]
        found = _mixed(found + part.astype(np.uint64))
    # Hashes of 64 bits: two of 10^7 different rows are taken for copies with a probability of about 10^-6.
    return _by_first_row(found)


def _by_first_row(keys: Any) -> np.ndarray:
    """Numbers of keys, `(n,)` int64, from 0 in the order of first rows."""
    first, same = np.unique(keys, return_index=True, return_inverse=True)[1:]
    numbers: np.ndarray = np.argsort(np.argsort(first))[same]
    return numbers


def draw(documents: np.ndarray, fractions: dict[str, float], seed: int) -> dict[str, list[int]]:
    """Draw impressions for other splits at random; the rest is for training. Copies go to the same split.

    Args:
        documents: The number of each impression, `(n,)`, as `numbered` gives it.
        fractions: The share of each split.
        seed: Seed for choosing them.

    Returns:
        The impressions of each split, in order.

    Raises:
        UserError: There are too few.
    """
    units = Units(documents)
    if len(units) <= len(fractions):
        raise UserError(
            f"expected an impression for each of the splits {', '.join(('train', *fractions))}, got {units.counted()}; "
            f"add some, or set {' and '.join(f'data.{split}' for split in fractions)}."
        )
    return units.rows(deal(list(range(len(units))), fractions, np.random.default_rng(seed), units.sizes))


def codes(texts: pa.ChunkedArray) -> np.ndarray:
    """Return a number for each text, `(n,)` int64, the same for the same; -1 for none."""
    found = texts.combine_chunks().dictionary_encode()
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    numbers: np.ndarray = found.indices.fill_null(-1).to_numpy().astype(np.int64)
    return numbers


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return well mixed bits of 64-bit numbers (splitmix64, https://prng.di.unimi.it/splitmix64.c)."""
    with np.errstate(over="ignore"):
        mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
