"""What was shown to users and clicked, and the catalogue of it: what models and baselines learn from."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict

from longspan.data.sources.announcements import note, note_encodings
from longspan.data.sources.caching import read_splits
from longspan.data.sources.duplicates import count_duplicates, note_duplicates
from longspan.data.sources.files.opening import packed_suffix
from longspan.data.sources.formats.schema import Schema, schema_of
from longspan.data.sources.formats.tables import PLAIN
from longspan.data.sources.locating import SPLITS, Source, find
from longspan.machine.printing import printable
from longspan.tasks.recommendation.catalogue import Counts, log_catalogue, read_catalogue
from longspan.tasks.recommendation.clicks import impressions_of
from longspan.tasks.recommendation.columns import log_columns
from longspan.tasks.recommendation.copies import documents, draw, shares
from longspan.tasks.recommendation.impressions import read_impressions
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.ragged import Ragged, ragged
from longspan.tasks.recommendation.source_files import HUB, Found, Kind, find_recorded, plain, table_schema

__all__ = ["Kind", "Ragged", "Recorded", "ragged", "read"]


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
    """

    catalogue: Dataset
    splits: DatasetDict
    skipped: dict[str, int]
    kind: Kind
    encodings: dict[str, int] = field(default_factory=dict)
    duplicates: dict[str, dict[str, int]] = field(default_factory=dict)

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
        """Return how often each item of the catalogue was clicked in the training split's impressions, `(n,)` int64."""
        items, clicked = (ragged(self.splits["train"], name) for name in ("candidates", "clicked"))
        told = np.repeat(clicked.sizes > 0, items.sizes)
        return np.bincount(items.values[told][clicked.values == 1], minlength=len(self.catalogue))


def read(
    data: RecommendationData, *, training: bool = True, candidates: bool = True, catalogue: Dataset | None = None
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

    Raises:
        UserError: Bad data, as in `longspan.data.sources.loading.load`, or bad rows without `skip_bad_rows`. An
            impression is bad without a known candidate or, in training, without clicks. So are rows of a user that are
            not in the order of time, and identifiers that recur with other contents.
    """
    found = find_recorded(data, training, news=catalogue is None)
    counts = Counts()
    kind = next(iter(found.splits.values())).kind
    # What training needs also decides which impressions others are drawn from.
    labels = training or data.validation_fraction + data.test_fraction > 0
    if kind == "log":
        items, splits, drawn = _read_log(found, data, catalogue, counts, training=training, labels=labels)
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
    return Recorded(items, ordered, counts.skipped, kind, dict(counts.encodings), duplicates)


def _read_log(
    found: Found,
    data: RecommendationData,
    known: Dataset | None,
    counts: Counts,
    *,
    training: bool,
    labels: bool,
) -> tuple[Dataset, dict[str, Dataset], dict[str, float]]:
    """Return the catalogue, the impressions of each split, and the shares of those that were drawn."""
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
    if found.news:
        catalogue = read_catalogue(found.news, data, known, counts)
    else:
        catalogue = log_catalogue(list(logs.values()), data, known, counts)
    drawn = shares(data, logs)
    return catalogue, impressions_of(logs, data, catalogue, counts, drawn), drawn


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
