"""What was shown to users and clicked, and the catalogue of it: what models and baselines learn from."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from datasets import Dataset, DatasetDict

from longspan.tasks.recommendation.options import RecommendationData

Kind = Literal["mind", "impressions", "log"]
"""Where impressions come from: MIND's files, a table with a row for each, or a click log."""


@dataclass(frozen=True)
class Recorded:
    """Impressions, and the catalogue whose rows they speak of by number, from 0.

    Attributes:
        catalogue: The items of all splits, each once: `item` (its identifier; its text where it has none), `title`,
            `abstract`, `category`, `subcategory` (empty where there is none), `entities` (identifiers, those of the
            title first) and `where`.
        splits: "train" and, where there are any, "validation" and "test": `impression` (its identifier), `user`,
            `time` (seconds since 1970, or the number given; None where there is none), `history` (numbers of the items
            clicked before, oldest first, at most `data.history`), `candidates` (numbers, in the order shown), `clicked`
            (1 or 0 for each candidate; an empty list where it is not known) and `where`.
        skipped: Number of rows left out, by reason.
        encodings: Number of rows in other encodings than UTF-8, by encoding, where `data.encoding` is "auto".
        kind: Where the impressions come from.
    """

    catalogue: Dataset
    splits: DatasetDict
    skipped: dict[str, int]
    kind: Kind
    encodings: dict[str, int] = field(default_factory=dict)

    def users(self) -> list[str]:
        """Return the users of the training split, in order of their first impression."""
        raise NotImplementedError

    def popularity(self) -> np.ndarray:
        """Return how often each item of the catalogue was clicked in the training split's impressions, `(n,)` int64."""
        raise NotImplementedError


@dataclass(frozen=True)
class Ragged:
    """A column of lists as two arrays: row `i` is `values[offsets[i] : offsets[i + 1]]`.

    Attributes:
        values: All items, `(n,)`.
        offsets: Where the rows begin and the last one ends, `(rows + 1,)` int64.
    """

    values: np.ndarray
    offsets: np.ndarray


def ragged(rows: Dataset, column: str) -> Ragged:
    """Return a column of lists of numbers without a copy of each row."""
    raise NotImplementedError


def read(data: RecommendationData, *, training: bool = True, catalogue: Dataset | None = None) -> Recorded:
    """Read and split what was recorded.

    A validation split that the source lacks is drawn from the training impressions at random (`split_seed`), a test
    split too. Every training impression has a clicked candidate; those of other splits may lack clicks, or, for
    prediction, labels.

    Args:
        data: The settings.
        training: Whether to require a training split.
        catalogue: Items that are known already, which come first and keep their numbers: those of a trained model.

    Raises:
        UserError: Something is wrong with the data, or there are bad rows and `skip_bad_rows` is not set: an impression
            has no candidates or, in training, no clicks; an item is not in the catalogue; the rows of a user are not in
            the order of time; identifiers recur with other contents; or see `longspan.data.loading.load`.
    """
    raise NotImplementedError
