"""Loading data from any source, checked and split: `load`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, concatenate_datasets

from longspan.data.columns.kinds import Column, Flags, Label, Labels, Text, WordLabels
from longspan.data.columns.values import shown
from longspan.data.sources.announcements import note_encodings, note_left_out
from longspan.data.sources.caching import SmallSample, read_splits
from longspan.data.sources.duplicates import count_duplicates, digest, digests, documents, note_duplicates
from longspan.data.sources.formats.schema import Schema, schema_of
from longspan.data.sources.locating import SPLITS, find
from longspan.data.sources.shards import Shard, Streamed, find_shards, note_sample, sampled_sources
from longspan.data.sources.splitting import beginning, cut, split_off, splits_one
from longspan.errors import UserError
from longspan.machine.printing import note

#: Bytes of validation or test data of their own that are read whole, whatever the share of the others.
WHOLE_BYTES = 1_000_000


@dataclass(frozen=True)
class Splits:
    """Checked rows.

    Attributes:
        splits: Those of "train", "validation" and "test" that exist, each with the declared columns and `where`;
            those of a task may be more than data sets.
        skipped: Number of rows left out, by reason.
        encodings: Number of rows in other encodings than UTF-8, by encoding, where `data.encoding` is "auto".
        duplicates: Number of rows by split that repeat a document of the same split ("copies") or of another one
            ("in_train", "in_validation"): see `longspan.data.sources.duplicates.count_duplicates`. Empty without any.
        stream: All training rows, where "train" is a sample of them.
    """

    splits: DatasetDict
    skipped: dict[str, int]
    encodings: dict[str, int] = field(default_factory=dict)
    duplicates: dict[str, dict[str, int]] = field(default_factory=dict)
    stream: Streamed | None = None

    def notices(self) -> dict[str, Any]:
        """Notices of reading for the results, under the names of the attributes, as JSON."""
        return {"skipped": self.skipped, "encodings": self.encodings, "duplicates": self.duplicates}


def load(config: Any, columns: Sequence[Column], *, training: bool = True, stratify: str | None = None) -> Splits:
    """Read rows and split them.

    A validation or test split that the source lacks is drawn from the training rows according to `split_seed`: class by
    class with `stratify`. Otherwise entire rows are drawn at random (evenly among those with each label, where a row
    has several). A single document is split at its end. Rows with the same document go to the same split; where splits
    are given, nothing is moved. In training, standard error says how many there are.

    Args:
        config: The settings: an object with the attributes of `longspan.data.config.DataConfig` and the `setting` of
            each of `columns`.
        columns: The columns to read.
        training: Whether to require a training split and, for a `Label`, at least two classes.
        stratify: The name of a `Label` column; every split gets the same proportion of each of its classes.

    Raises:
        UserError: Bad data, as in `longspan.data.sources.paths.read_paths`; bad rows without `skip_bad_rows`;
        fewer than two classes; a label of validation or test that training lacks; or too few rows to split.
    """
    if stratify is not None and not any(isinstance(column, Label) and column.name == stratify for column in columns):
        raise ValueError(f"stratify must be the name of a Label column, got {stratify!r}")
    schema = schema_of(columns, config)
    shards: dict[str, list[Shard]] = find_shards(config, schema) if getattr(config, "streaming", False) else {}
    sources = sampled_sources(shards, config, schema) if shards else find(config, schema, training)
    share = config.sample or 1.0
    if share < 1:
        sources = {
            split: one if split != "train" and one.size <= WHOLE_BYTES else one.sampled(share, config.split_seed)
            for split, one in sources.items()
        }
    splits, skipped, encodings = read_splits(sources, schema, config.skip_bad_rows)
    if share < 1 and "train" in splits and sources["train"].single and splits_one(splits["train"], columns):
        splits["train"] = beginning(splits["train"], share, columns[0])
    remarks = [remark for source in sources.values() for remark in source.remarks]
    note_left_out(sum((Counter(source.others) for source in sources.values()), Counter()), remarks)
    note_encodings(encodings, sum(map(len, splits.values())))
    fractions: dict[str, float] = {}
    cut_up = False
    if "train" in splits:
        with _enough(share):
            check_labels(splits, columns, training)
        wanted = {"validation": config.validation_fraction, "test": config.test_fraction}
        fractions = {split: fraction for split, fraction in wanted.items() if fraction and split not in splits}
        cut_up = bool(fractions) and splits_one(splits["train"], columns)
        if cut_up and shards:
            raise UserError(
                "expected several documents in the sample of data.streaming, got one, whose end cannot be held out; "
                "name data.validation, raise data.streaming_megabytes, or leave data.streaming out."
            )
        if cut_up:
            splits |= cut(splits["train"], fractions, columns)
            fractions = {}
    ordered = {split: splits[split] for split in SPLITS if split in splits}
    # A split that is alone, such as other data to score, has nothing to be kept apart from.
    alone = cut_up or (len(ordered) == 1 and not fractions)
    found = {} if alone else documents(ordered, columns)
    if fractions:
        rows, of = ordered["train"], found["train"]
        with _enough(share):
            parts = split_off(rows, of, fractions, config.split_seed, columns, stratify)
        ordered |= {split: rows.select(numbers) for split, numbers in parts.items()}
        found |= {split: of[numbers] for split, numbers in parts.items()}
    if training and config.corrections:
        ordered["train"] = _corrected(config, columns, ordered)
        found = documents(ordered, columns) if found else found
    duplicates = count_duplicates({split: found[split] for split in SPLITS if split in found})
    if training:
        # Where several rows are about each document, it need not be said.
        told = [] if any(isinstance(column, Text) and column.together for column in columns) else list(fractions)
        note_duplicates(duplicates, {split: len(rows) for split, rows in ordered.items()}, told)
    ordered = {split: ordered[split] for split in SPLITS if split in ordered}
    stream = _stream(shards["train"], schema, config, ordered) if shards else None
    if stream and training:
        note_sample(stream, stream.sampled + sum(len(ordered[split]) for split in fractions))
    return Splits(DatasetDict(ordered), skipped, encodings, duplicates, stream)


def _stream(shards: Sequence[Shard], schema: Schema, config: Any, splits: Mapping[str, Dataset]) -> Streamed:
    """Training rows of shards, without documents that are held out."""
    columns, held_out = schema.columns, [rows for split, rows in splits.items() if split != "train"]
    known = frozenset().union(*(digests(rows, columns) for rows in held_out))
    sampled, total = len(splits["train"]), sum(shard.rows for shard in shards)
    drawn = sum(map(len, held_out)) if not (config.validation or config.test) else 0
    rows = max(sampled, total - drawn) if all(shard.rows for shard in shards) else 0
    return Streamed(shards, schema, config.skip_bad_rows, known, partial(digest, columns=columns), sampled, rows)


def _corrected(config: Any, columns: Sequence[Column], splits: Mapping[str, Dataset]) -> Dataset:
    """Training rows with those of `data.corrections`, in place of rows with the same document."""
    usual = {"encoding": "utf-8", "delimiter": "auto", "quoting": "auto", "header": True}
    alone = replace(config, path="", train=config.corrections, validation="", test="", **usual)
    schema = schema_of(columns, alone, files=False)
    rows = read_splits(find(alone, schema, True), schema, config.skip_bad_rows)[0]["train"]
    check_labels({"train": splits["train"], "corrections": rows}, columns, False)
    numbers = documents({"corrections": rows, **splits}, columns)
    # The last row about a document.
    last = {number: place for place, number in enumerate(numbers["corrections"].tolist())}
    others = [numbers[split] for split in splits if split != "train"]
    elsewhere = last.keys() & set(np.concatenate([np.zeros(0, np.int64), *others]).tolist())
    if elsewhere:
        many = f"{len(elsewhere):,} of {len(last):,}"
        note(f"{many} documents in data.corrections are validation or test data, and stay so")
    staying = np.flatnonzero(~np.isin(numbers["train"], [*last]))
    added = rows.select([place for number, place in last.items() if number not in elsewhere])
    return concatenate_datasets([splits["train"].select(staying), added])


def source_bytes(config: Any, columns: Sequence[Column]) -> int:
    """Number of bytes of the data that the settings name.

    Raises:
        UserError: There are no data, no training data, or a column is missing.
    """
    return sum(one.size for one in find(config, schema_of(columns, config), training=True).values())


@contextmanager
def _enough(share: float) -> Iterator[None]:
    """Say of an error whether it is about a sample."""
    try:
        yield
    except UserError as error:
        if share == 1:
            raise
        raise SmallSample(f"in a sample of {share:g} of the rows (data.sample), {error}") from None


def check_labels(splits: Mapping[str, Dataset], columns: Sequence[Column], training: bool) -> None:
    """Raise UserError for labels that the training split lacks, and for a single class if `training`."""
    for column in columns:
        if not isinstance(column, Label | Labels | Flags | WordLabels):
            continue
        if isinstance(column, WordLabels) and column.unseen:
            continue
        known = _labels(splits["train"], column)
        if training and isinstance(column, Label) and len(known) < 2:
            only = f"only {shown(min(known))} as a label" if known else "no labels"
            raise UserError(
                f"expected at least two classes in the training data, got {only}; add examples of another class, or "
                f"check data.{column.setting}."
            )
        for split, dataset in splits.items():
            if unseen := sorted(_labels(dataset, column) - known):
                first = next(
                    row["where"]
                    for row in dataset.select_columns([column.name, "where"])
                    if unseen[0] in _as_list(row[column.name])
                )
                raise UserError(
                    f"expected only labels of the training data in the {split} data, got {shown(unseen[0])} (first: "
                    f"{first}); "
                    "add training examples with it, or remove it."
                )


def _labels(dataset: Dataset, column: Column) -> set[str]:
    values = dataset.unique(column.name) if isinstance(column, Label) else dataset[column.name][:]
    return {label for value in values if value is not None for label in _as_list(value)}


def _as_list(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []
