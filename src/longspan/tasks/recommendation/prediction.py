"""Rankings for users: of what they are shown."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import Any

import numpy as np
from datasets import Dataset

from longspan.data.rows import Row
from longspan.results import Prediction
from longspan.tasks.base import Run
from longspan.tasks.recommendation.items import Items
from longspan.tasks.recommendation.mind import prediction_line, ranks_of
from longspan.tasks.recommendation.ranking import ItemVectors, impression_logits
from longspan.tasks.recommendation.samples import Impressions

#: Impressions that are ranked together.
_TOGETHER = 4096


@dataclass(frozen=True)
class RankedPrediction(Prediction):
    """How the candidates of an impression are ranked.

    Attributes:
        impression: Its identifier.
        user: Its user.
        ranking: The candidates, the likeliest click first, each with `item`, `title` and `score`, the logit.
        ranks: The rank of each candidate, from 1, in the order shown.
    """

    impression: str | None = None
    user: str | None = None
    ranking: list[dict[str, Any]] | None = None
    ranks: list[int] | None = None

    def to_mind(self) -> str:
        """Return the line of MIND's prediction.txt."""
        return prediction_line(self.impression or "", self.ranks or [])


def ranked(
    run: Run,
    rows: Iterable[Row],
    encode: Callable[[Dataset], Items],
    users: dict[str, int],
    *,
    batch_size: int,
    batch_clicks: int,
) -> Iterator[RankedPrediction]:
    """Yield the ranking of each row's candidates, in order; the items of a catalogue are read once.

    Args:
        run: The trained model.
        rows: Rows with `examples`, impressions with their catalogue, and the `row` there; or with a problem.
        encode: Turns a catalogue into numbers.
        users: Numbers of known users.
        batch_size: See `impression_logits`.
        batch_clicks: As above.
    """
    for _, group in groupby(rows, key=lambda row: id(row.values.get("examples"))):
        first = next(group)
        if first.problem:
            yield from (RankedPrediction(row.where, row.problem) for row in chain([first], group))
            continue
        examples = first.values["examples"]
        catalogue = examples.recorded.catalogue
        with ItemVectors(run.model, encode(catalogue), progress=True) as vectors:
            for some in _batches(chain([first], group)):
                yield from _ranked(run, some, examples.rows, catalogue, vectors, users, batch_size, batch_clicks)


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while some := list(islice(rows, _TOGETHER)):
        yield some


def _ranked(
    run: Run,
    rows: Sequence[Row],
    impressions: Dataset,
    catalogue: Dataset,
    vectors: ItemVectors,
    users: dict[str, int],
    batch_size: int,
    batch_clicks: int,
) -> Iterator[RankedPrediction]:
    chosen = impressions.select([row.values["row"] for row in rows])
    found = Impressions(chosen, users)
    logits = impression_logits(run.model, found, vectors, batch_size=batch_size, batch_clicks=batch_clicks)
    named = catalogue.select_columns(["item", "title"])
    for number, (row, told) in enumerate(zip(rows, chosen, strict=True)):
        start, end = found.candidates.offsets[number : number + 2]
        own = logits[start:end]
        ranks = ranks_of(own)
        order = np.argsort(ranks)
        items = named[found.candidates.values[start:end][order]]
        ranking = [
            {"item": item, "title": title, "score": round(float(score), 4)}
            for item, title, score in zip(items["item"], items["title"], own[order], strict=True)
        ]
        yield RankedPrediction(row.where, None, told["impression"], told["user"], ranking, ranks.tolist())
