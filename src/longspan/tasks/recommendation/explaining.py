"""Clicks that speak for an item: `ranked_item`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.data.processor import Places
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError, check_choice
from longspan.explanations.question import InputSequence, LayerWeights, Question
from longspan.tasks.base.case import Case, Target
from longspan.tasks.base.task import Run
from longspan.tasks.recommendation.impressions import FEATURES
from longspan.tasks.recommendation.items import Items
from longspan.tasks.recommendation.prediction import RankedPrediction
from longspan.tasks.recommendation.samples import Impressions


@dataclass(frozen=True)
class ClickQuestion(Question):
    """A score of an item for a user, as a function of the clicks, whose vectors come first in `news_vectors`."""

    @property
    def real(self) -> Bool[Tensor, " t"]:
        return self.batch["history_mask"][0].bool().cpu()

    @property
    def lengths(self) -> list[int]:
        return [self.batch["history_mask"].shape[1]]

    @torch.no_grad()
    def weights(self) -> Iterator[LayerWeights]:
        """Yield how much each click weighs in the mean that is the user, where there is such a mean."""
        found = self.model(**self.batch, **self.settings).history_weights
        if found is not None:
            yield "user", "click", found.float().cpu()

    def scaled(self, scales: Float[Tensor, "1 t"]) -> Tensor:
        vectors = self.settings["news_vectors"]
        every = torch.cat((scales[0], scales.new_ones(len(vectors) - scales.shape[1])))
        return self.logits(news_vectors=vectors * every.view(-1, *[1] * (vectors.ndim - 1)))


def ranked_item(run: Run, row: Row, of: str, prediction: RankedPrediction, items: Items, users: dict[str, int]) -> Case:
    """Case of the score of an item for a user.

    Args:
        run: The run.
        row: An impression.
        of: The identifier or the title of one of its candidates; by default the one that is ranked first.
        prediction: The ranking.
        items: The catalogue as numbers.
        users: Numbers of known users.

    Raises:
        UserError: See `Task.case`.
    """
    model, catalogue = run.model, row.values["catalogue"]
    history = np.asarray(row.values["history"], np.int64)
    if prediction.ranking is None or not len(history):
        problem = prediction.error or "one without clicks"
        raise UserError(f"{row.where}: expected a user with clicks to explain by, got {problem}; choose another row.")
    names = [one["item"] for one in prediction.ranking]
    titles = {one["title"]: one["item"] for one in prediction.ranking}
    # Items may lack a title.
    name = titles.get(of, of) if of else names[0]
    check_choice("item", name, names)
    wanted = names.index(name)
    number = {item: place for place, item in enumerate(catalogue["item"][:])}
    candidates = np.array([number[name] for name in names])
    read = np.concatenate([history, candidates])
    settings: dict[str, Any] = {name: each.to(model.device) for name, each in items.inputs(read).items()}
    with torch.no_grad():
        settings = {"news_vectors": model.encode_news(**settings)}
    batch = {
        "history": torch.arange(len(history)),
        "history_mask": torch.ones(len(history), dtype=torch.long),
        "candidates": torch.arange(len(history), len(read)),
    }
    shown = Impressions(Dataset.from_list([{name: row.values[name] for name in FEATURES}], features=FEATURES), users)
    batch = {name: each.unsqueeze(0) for name, each in batch.items()} | {"user_ids": torch.from_numpy(shown.users)}
    if model.wide is not None:
        settings |= {name: each.to(model.device) for name, each in items.counted(read).items()}
        batch["times"] = model.wide.ticks(shown.times)
    batch = {name: each.to(model.device) for name, each in batch.items()}
    asked = Target(
        prediction.ranking[wanted]["title"] or names[wanted],
        "logits",
        lambda logits: logits[:, wanted],
        lambda logits: logits.softmax(1)[:, wanted],
    )
    reads = (InputSequence("history_mask"),)
    question = ClickQuestion(model, batch, asked.value, asked.share, reads, settings=settings, exact=True)
    # People count clicks from 1, the oldest first.
    first = np.arange(1, len(history) + 1)
    clicked = catalogue.select_columns(["title"])[history]["title"]
    places = Places("clicks", np.stack([first, first + 1], 1), names=list(clicked))
    return Case(row.where, asked, question, places, prediction.to_dict())
