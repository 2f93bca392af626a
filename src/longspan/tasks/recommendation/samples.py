"""Training examples of recommendation: clicks, each with some of the items shown with it and not clicked, sampled again
in each epoch."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from longspan.data.batches.drawn import DrawnExamples, Index
from longspan.errors import UserError
from longspan.models.parts.losses import IGNORED
from longspan.tasks.recommendation.items import Items, padded, ragged_of
from longspan.tasks.recommendation.ragged import Ragged, offsets_of, ragged
from longspan.tasks.recommendation.scores import grouped_by


class Shown(NamedTuple):
    """Impression shown to a user.

    Attributes:
        user: The number of the user, 0 for one who is not known.
        history: Numbers of the items clicked before, oldest first.
        candidates: Those shown.
        labels: 1 where one was clicked, 0 where not.
    """

    user: int
    history: np.ndarray
    candidates: np.ndarray
    labels: np.ndarray


class Impressions:
    """Impressions as flat arrays.

    Args:
        rows: A split of `longspan.tasks.recommendation.recorded.Recorded`.
        users: Numbers of known users.

    Attributes:
        history: By impression, the numbers of the items clicked before.
        candidates: Those shown.
        clicked: Whether each candidate was clicked, `(n,)`; -100 where that is not known.
        users: The number of each impression's user, 0 for one who is not known.
        names: Their names.
        times: When they were shown, in seconds; NaN where that is not known.
    """

    def __init__(self, rows: Dataset, users: Mapping[str, int] | None = None) -> None:
        self._rows, self._known = rows, users
        self.history, self.candidates = ragged(rows, "history"), ragged(rows, "candidates")
        clicked = ragged(rows, "clicked")
        known = np.repeat(clicked.sizes > 0, self.candidates.sizes)
        self.clicked = np.full(len(self.candidates.values), IGNORED, np.int64)
        self.clicked[known] = clicked.values
        columns = rows.select_columns(["time", "user"]).with_format("arrow")[:]
        names = columns["user"].to_pylist()
        self.names = np.asarray(names, dtype=object)
        self.users = np.array([(users or {}).get(name, 0) for name in names], np.int64)
        self.times = columns["time"].cast("float64").fill_null(np.nan).to_numpy()

    def __len__(self) -> int:
        return len(self.users)

    def part(self, rows: np.ndarray) -> "Impressions":
        """Return some of them."""
        return Impressions(self._rows.select(rows), self._known)

    def __getitem__(self, row: int) -> Shown:
        (first, last), (start, end) = (lists.offsets[row : row + 2] for lists in (self.history, self.candidates))
        return Shown(
            int(self.users[row]),
            self.history.values[first:last],
            self.candidates.values[start:end],
            self.clicked[start:end],
        )

    @property
    def sizes(self) -> np.ndarray:
        """Number of clicks and candidates that each has together."""
        return self.history.sizes + self.candidates.sizes


def labelled(rows: Dataset) -> Dataset:
    """Return the impressions of which it is known what was clicked.

    Raises:
        UserError: There are no clicks.
    """
    known = np.flatnonzero(ragged(rows, "clicked").sizes > 0)
    if not len(known):
        raise UserError("expected impressions with labels to score, got none; choose data that say what was clicked.")
    return rows if len(known) == len(rows) else rows.select(known)


class Samples(DrawnExamples[Shown]):
    """Clicks with `negatives` items that were not clicked, drawn without repetition from the same impression.

    Where impressions have one candidate each, as in a log without times, they come from all that the user was shown in
    training. With `each` click there is a sample, for losses that tell it from what was not clicked; clicks without
    such items are left out. Otherwise there is one for each impression, clicked or not.

    Args:
        impressions: Those of training.
        negatives: Number of items that were not clicked for each click, at most.
        each: Whether each click is a sample.
        seed: Seed of what is drawn.

    Attributes:
        rows: The impression of each sample.
        left_out: Number of clicks without an item that was not clicked.

    Raises:
        UserError: There are no samples.
    """

    def __init__(self, impressions: Impressions, *, negatives: int, each: bool, seed: int) -> None:
        super().__init__(seed)
        self.impressions, self.negatives, self.each = impressions, negatives, each
        clicked, rows = impressions.clicked == 1, impressions.candidates.rows
        self._group = np.arange(len(impressions))
        if grouped_by(impressions.candidates.offsets) == "user":
            self._group = np.unique(impressions.names, return_inverse=True)[1]
        others = self._group[rows[~clicked]]
        order = np.argsort(others, kind="stable")
        sizes = np.bincount(others, minlength=int(self._group.max(initial=0)) + 1)
        self._others = Ragged(impressions.candidates.values[~clicked][order], offsets_of(sizes))
        self._click = np.flatnonzero(clicked & (sizes[self._group[rows]] > 0)) if each else np.empty(0, np.int64)
        self.rows = rows[self._click] if each else np.arange(len(impressions))
        self.left_out = int(clicked.sum()) - len(self._click) if each else 0
        if not len(self.rows):
            raise UserError(
                "expected impressions with both clicked and unclicked items, got none; choose data with both, or set "
                'model.recommendation_loss="binary".'
            )

    def __len__(self) -> int:
        return len(self.rows)

    def draw(self, index: Index, random: np.random.Generator) -> Shown:
        number = index[1]
        row = int(self.rows[number])
        shown = self.impressions[row]
        if self.each:
            click = self.impressions.candidates.values[self._click[number] : self._click[number] + 1]
            group = self._group[row]
            others = self._others.values[self._others.offsets[group] : self._others.offsets[group + 1]]
        else:
            click, others = (shown.candidates[shown.labels == label] for label in (1, 0))
        most = self.negatives * max(1, len(click))
        if len(others) > most:
            others = random.choice(others, most, replace=False)
        labels = np.repeat(np.array([1, 0]), [len(click), len(others)])
        return Shown(shown.user, shown.history, np.concatenate([click, others]), labels)

    @property
    def sizes(self) -> np.ndarray:
        """Number of clicks and candidates that each sample has together, at most."""
        return self.impressions.history.sizes[self.rows] + 1 + self.negatives


def collate(shown: Sequence[Shown], items: Items | None) -> tuple[dict[str, Tensor], np.ndarray]:
    """Return a batch for `LongspanForRecommendation`, and the numbers of its items in the catalogue.

    Args:
        shown: At least one impression.
        items: The model's inputs from the items; None where it is given their vectors.
    """
    rows = np.arange(len(shown))
    history, clicks = padded(ragged_of(each.history for each in shown), rows, 0)
    candidates, there = padded(ragged_of(each.candidates for each in shown), rows, 0)
    labels = padded(ragged_of(each.labels for each in shown), rows, IGNORED)[0]
    numbers, places = np.unique(np.concatenate([history[clicks], candidates[there]]), return_inverse=True)
    if not len(numbers):
        # Padding is the number of some item, too.
        numbers = np.zeros(1, np.int64)
    history[clicks], candidates[there] = places[: clicks.sum()], places[clicks.sum() :]
    arrays = {
        "history": history,
        "history_mask": clicks,
        "candidates": candidates,
        "candidate_mask": there,
        "labels": labels,
        "user_ids": np.array([each.user for each in shown]),
    }
    batch = {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}
    return batch | ({} if items is None else items.inputs(numbers)), numbers


class Collator:
    """Collates a process's share of a batch.

    A share without samples becomes one whose labels are ignored, as all processes take part in every step.
    """

    def __init__(self, items: Items) -> None:
        self.items = items

    def __call__(self, shown: Sequence[Shown]) -> dict[str, Tensor]:
        if shown:
            return collate(shown, self.items)[0]
        nothing = np.empty(0, np.int64)
        batch, _ = collate([Shown(0, nothing, np.zeros(1, np.int64), np.full(1, IGNORED))], self.items)
        return batch | {name: torch.zeros_like(batch[name]) for name in ("attention_mask", "candidate_mask")}
