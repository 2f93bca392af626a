"""Data from wherever they are, checked and in splits: `load`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datasets import DatasetDict

from longspan.data.columns import Column


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
        stratify: The name of a `Label` column; every split has each of its classes in the same proportion.

    Raises:
        UserError: Whatever is wrong with the data: see `longspan.data.rows.read_rows`; bad rows unless `skip_bad_rows`
            is set; fewer than two classes; a label of validation or test that training lacks; too few rows to split.
    """
    raise NotImplementedError
