"""Rankings for users: of what they are shown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset

from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.machine.printing import unbroken
from longspan.results import Prediction
from longspan.tasks.base.task import Run
from longspan.tasks.recommendation.impressions import FEATURES
from longspan.tasks.recommendation.ranking import ItemVectors, best_items, impression_outputs
from longspan.tasks.recommendation.samples import Impressions

#: Impressions that are ranked together.
TOGETHER = 4096
#: Users for whom the whole catalogue is ranked at once, and how much of the ranking is reported.
_USERS_TOGETHER, _BEST = 256, 10


@dataclass(frozen=True)
class RankedPrediction(Prediction):
    """Ranking of the candidates of an impression, or of the whole catalogue where it has none.

    Attributes:
        impression: Its identifier.
        user: Its user.
        ranking: The known candidates, or the best ten items that were not clicked before, the likeliest click first,
            each with `item`, `title` and `score`, the logit.
        ranks: The rank of each candidate, from 1, in the order shown. Unknown ones come last.
        unknown: Candidates that the catalogue lacks, if there are any.
        unknown_clicks: Number of clicks of the history on such items, if any.
    """

    impression: str | None = None
    user: str | None = None
    ranking: list[dict[str, Any]] | None = None
    ranks: list[int] | None = None
    unknown: list[str] | None = None
    unknown_clicks: int | None = None

    def to_mind(self) -> str:
        """Return the line of MIND's prediction.txt.

        Raises:
            UserError: There is no identifier, or nothing that was shown.
        """
        if self.error is None and (self.impression is None or self.ranks is None):
            lacking = "identifier" if self.impression is None else "candidates"
            raise UserError(
                f"expected impressions with an identifier and candidates for --format mind, got {self.where} without "
                f"{lacking}; add them, or leave out --format."
            )
        return prediction_line(self.impression or "", self.ranks or [])


def ranked(
    run: Run,
    rows: Sequence[Row],
    catalogue: Dataset,
    vectors: ItemVectors,
    users: dict[str, int],
    *,
    batch_size: int,
    batch_clicks: int,
) -> Iterator[RankedPrediction]:
    """Yield the ranking of each row's candidates, in order.

    Args:
        run: The trained model.
        rows: Impressions, as `FEATURES` have them.
        catalogue: The items that their numbers are of.
        vectors: The vectors of these items.
        users: Numbers of known users.
        batch_size: See `impression_outputs`.
        batch_clicks: As above.
    """
    chosen = Dataset.from_list([{name: row.values[name] for name in FEATURES} for row in rows], features=FEATURES)
    found = Impressions(chosen, users)
    sizes = found.candidates.sizes
    if not sizes.all() and run.model.personal:
        raise UserError(
            f"expected candidates for each user, as {run.model.config.head.recommender} computes item vectors per "
            "user, got users without; add a column of candidates."
        )
    best = dict(zip(np.flatnonzero(sizes == 0).tolist(), _best(run, found, vectors), strict=True))
    logits = impression_outputs(run.model, found, vectors, batch_size=batch_size, batch_clicks=batch_clicks)
    named = catalogue.select_columns(["item", "title"])
    for number, (row, told) in enumerate(zip(rows, chosen, strict=True)):
        start, end = found.candidates.offsets[number : number + 2]
        numbers, scores = best.get(number, (found.candidates.values[start:end], logits[start:end]))
        ranks = ranks_of(scores)
        order = np.argsort(ranks)
        items = named[numbers[order]]
        ranking = [
            {"item": item, "title": title, "score": round(float(score), 4)}
            for item, title, score in zip(items["item"], items["title"], scores[order], strict=True)
        ]
        given = None if number in best else with_unknown(ranks, told["unknown_places"])
        lacking = told["unknown"] or None, told["unknown_history"] or None
        yield RankedPrediction(row.where, None, told["impression"] or None, told["user"], ranking, given, *lacking)


def _best(run: Run, impressions: Impressions, vectors: ItemVectors) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the best items for those who were shown nothing, and their logits."""
    rows = np.flatnonzero(impressions.candidates.sizes == 0)
    for first in range(0, len(rows), _USERS_TOGETHER):
        some = impressions.part(rows[first : first + _USERS_TOGETHER])
        for items, logits in zip(*best_items(run.model, some, vectors, _BEST), strict=True):
            there = np.isfinite(logits)
            yield items[there], logits[there]


def ranks_of(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the rank of each candidate, from 1; of equal scores, that of the earlier candidate is higher."""
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(1, len(order) + 1)
    return ranks


def with_unknown(ranks: np.ndarray, places: Sequence[int]) -> list[int]:
    """Return the ranks of all candidates in the order shown, where those at `places` are unknown and so come last."""
    found = np.empty(len(ranks) + len(places), dtype=np.int64)
    unknown = np.zeros(len(found), dtype=bool)
    unknown[list(places)] = True
    found[~unknown], found[unknown] = ranks, np.arange(len(ranks) + 1, len(found) + 1)
    result: list[int] = found.tolist()
    return result


def prediction_line(impression: str, ranks: Sequence[int]) -> str:
    """Return the line of an impression: its identifier, and the rank of each candidate in the order shown, from 1."""
    return f"{unbroken(impression)} [{','.join(map(str, ranks))}]"
