"""Data from wherever they are, checked and in splits: `load`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset, DatasetDict

from longspan.data.caching import read_splits
from longspan.data.columns import Column, Label, Labels, WordLabels
from longspan.data.finding import SPLITS, find
from longspan.data.schema import schema_of
from longspan.data.splitting import split_off
from longspan.errors import UserError


@dataclass(frozen=True)
class Splits:
    """Checked rows.

    Attributes:
        splits: "train", "validation" and "test" as far as there are any, each with the declared columns and `where`.
        skipped: How many rows were left out, by reason.
    """

    splits: DatasetDict
    skipped: dict[str, int]


def load(config: Any, columns: Sequence[Column], *, training: bool = True, stratify: str | None = None) -> Splits:
    """Read rows and split them.

    A validation or test split that the source lacks is taken from the training rows by `split_seed`: class by class
    with `stratify`; otherwise whole rows at random or, of a single document, its end.

    Args:
        config: The settings: an object with the attributes of `longspan.data.config.DataConfig` and those that
            `columns` name as their `setting`.
        columns: What to read.
        training: Whether to insist on a training split and, for a `Label`, on two classes.
        stratify: The name of a `Label` column, each class of which every split gets in the same proportion.

    Raises:
        UserError: Whatever is wrong with the data: see `longspan.data.rows.read_rows`; bad rows unless `skip_bad_rows`
            is set; fewer than two classes; a label of validation or test that training lacks; too few rows to split.
    """
    if stratify is not None and not any(isinstance(column, Label) and column.name == stratify for column in columns):
        raise ValueError(f"stratify must be the name of a Label column, but is {stratify!r}")
    schema = schema_of(columns, config)
    splits, skipped = read_splits(find(config, schema, training), schema, config.skip_bad_rows)
    if "train" in splits:
        _check_labels(splits, columns, training)
        wanted = {"validation": config.validation_fraction, "test": config.test_fraction}
        fractions = {split: fraction for split, fraction in wanted.items() if fraction and split not in splits}
        if fractions:
            splits |= split_off(splits["train"], fractions, config.split_seed, columns, stratify)
    return Splits(DatasetDict({split: splits[split] for split in SPLITS if split in splits}), skipped)


def _check_labels(splits: dict[str, Dataset], columns: Sequence[Column], training: bool) -> None:
    for column in columns:
        if not isinstance(column, Label | Labels | WordLabels):
            continue
        known = _labels(splits["train"], column)
        if training and isinstance(column, Label) and len(known) < 2:
            only = f"every training label is {min(known)!r}" if known else "no training example has a label"
            raise UserError(
                f"expected at least two classes, but {only}: add examples of another class, or check "
                f"data.{column.setting}."
            )
        for split, dataset in splits.items():
            if unseen := sorted(_labels(dataset, column) - known):
                first = next(
                    row["where"]
                    for row in dataset.select_columns([column.name, "where"])
                    if unseen[0] in _as_list(row[column.name])
                )
                raise UserError(
                    f"the {split} data hold the label {unseen[0]!r} (first: {first}), which no training example has: "
                    f"add training examples of it or take it out of the {split} data."
                )


def _labels(dataset: Dataset, column: Column) -> set[str]:
    values = dataset.unique(column.name) if isinstance(column, Label) else dataset[column.name][:]
    return {label for value in values if value is not None for label in _as_list(value)}


def _as_list(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []
