"""Loading data from any source, checked and split: `load`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset, DatasetDict

from longspan.data.caching import read_splits
from longspan.data.cells import shown
from longspan.data.columns import Column, Flags, Label, Labels, WordLabels
from longspan.data.finding import SPLITS, find
from longspan.data.notes import note_encodings, note_left_out
from longspan.data.schema import schema_of
from longspan.data.splitting import split_off
from longspan.errors import UserError


@dataclass(frozen=True)
class Splits:
    """Checked rows.

    Attributes:
        splits: Those of "train", "validation" and "test" that exist, each with the declared columns and `where`;
            those of a task may be more than data sets.
        skipped: Number of rows left out, by reason.
        encodings: Number of rows in other encodings than UTF-8, by encoding, where `data.encoding` is "auto".
    """

    splits: DatasetDict
    skipped: dict[str, int]
    encodings: dict[str, int] = field(default_factory=dict)


def load(config: Any, columns: Sequence[Column], *, training: bool = True, stratify: str | None = None) -> Splits:
    """Read rows and split them.

    A validation or test split that the source lacks is drawn from the training rows according to `split_seed`: class
    by class with `stratify`; otherwise entire rows at random (evenly among those with each label, where a row has
    several) or, from a single document, its end.

    Args:
        config: The settings: an object with the attributes of `longspan.data.config.DataConfig` and the `setting` of
            each of `columns`.
        columns: The columns to read.
        training: Whether to require a training split and, for a `Label`, at least two classes.
        stratify: The name of a `Label` column; every split gets the same proportion of each of its classes.

    Raises:
        UserError: Something is wrong with the data: see `longspan.data.rows.read_rows`; there are bad rows and
            `skip_bad_rows` is not set; there are fewer than two classes; validation or test has a label that training
            lacks; or there are too few rows to split.
    """
    if stratify is not None and not any(isinstance(column, Label) and column.name == stratify for column in columns):
        raise ValueError(f"stratify must be the name of a Label column, got {stratify!r}")
    schema = schema_of(columns, config)
    sources = find(config, schema, training)
    splits, skipped, encodings = read_splits(sources, schema, config.skip_bad_rows)
    note_left_out(sum((Counter(source.others) for source in sources.values()), Counter()))
    note_encodings(encodings, sum(map(len, splits.values())))
    if "train" in splits:
        _check_labels(splits, columns, training)
        wanted = {"validation": config.validation_fraction, "test": config.test_fraction}
        fractions = {split: fraction for split, fraction in wanted.items() if fraction and split not in splits}
        if fractions:
            splits |= split_off(splits["train"], fractions, config.split_seed, columns, stratify)
    return Splits(DatasetDict({split: splits[split] for split in SPLITS if split in splits}), skipped, encodings)


def _check_labels(splits: dict[str, Dataset], columns: Sequence[Column], training: bool) -> None:
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
