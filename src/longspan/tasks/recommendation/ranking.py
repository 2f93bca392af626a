"""Scores of candidates, from vectors of items that are computed once: `ItemVectors`."""

import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from datasets.utils import tqdm
from torch import Tensor

from longspan.errors import UserError
from longspan.models import LongspanForRecommendation
from longspan.models.wide.ranker import Titles
from longspan.report import size
from longspan.tasks.recommendation.items import Items
from longspan.tasks.recommendation.samples import Impressions, collate
from longspan.tasks.recommendation.scores import RecommendationScores, recommendation_scores
from longspan.training import processes
from longspan.training.lengths import in_batches, in_evaluation, scoring_batches

#: Tokens of titles that are read together.
_TOKENS = 65536
_ITEMS = 1024
#: Items that are ranked together.
_RANKED_TOGETHER = 65536


class ItemVectors:
    """A model's outputs for each item of a catalogue, `(n, ...)` float32, computed once, in a file that is mapped.

    So the memory of a process does not grow with the catalogue. It is a context: at its end the file is gone. Models
    are in evaluation mode while it computes.

    Args:
        model: The model.
        items: The catalogue.
        progress: Whether to show a progress bar on standard error.

    Raises:
        UserError: There is no room for the file where temporary files are.
    """

    def __init__(self, model: LongspanForRecommendation, items: Items, *, progress: bool = False) -> None:
        self.model, self.items, self.progress = model, items, progress
        self._file: Any = None

    def __enter__(self) -> Self:
        # Several processes on one machine would have to agree on a file; each computes its own.
        self._file = tempfile.TemporaryFile()
        self._vectors: np.ndarray = np.empty(0, np.float32)
        sizes = np.maximum(1, self.items.title.sizes)
        try:
            batches = scoring_batches(sizes.tolist(), _ITEMS, _TOKENS)
            with in_evaluation(self.model), torch.no_grad():
                for batch in tqdm(batches, desc="Reading items", unit="batch", leave=None, disable=not self.progress):
                    self._write(np.asarray(batch))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        del self._vectors
        self._file.close()

    def _write(self, rows: np.ndarray) -> None:
        inputs = {name: tensor.to(self.model.device) for name, tensor in self.items.inputs(rows).items()}
        found = self.model.encode_news(**inputs).float().cpu().numpy()
        if not self._vectors.size:
            # The longest titles come first, so that there is room for all words of a model that keeps them.
            shape = (len(self.items), *found.shape[1:])
            needed, free = 4 * math.prod(shape), shutil.disk_usage(tempfile.gettempdir()).free
            if needed > free:
                # Beyond the end of the disk, writing to a map ends the process.
                raise UserError(
                    f"expected {size(needed)} of room in {tempfile.gettempdir()!r} for the vectors of "
                    f"{len(self.items):,} items, got {size(free)}; make room, or set TMPDIR to a folder elsewhere."
                )
            self._vectors = np.memmap(self._file, np.float32, "w+", shape=shape)
        if found.ndim > 2:
            self._vectors[rows, : found.shape[1]] = found
        else:
            self._vectors[rows] = found

    def __getitem__(self, rows: np.ndarray) -> Tensor:
        """Vectors of some items, on the model's device and in its type."""
        return torch.from_numpy(self._vectors[rows]).to(self.model.device, self.model.dtype)


@torch.no_grad()
def impression_outputs(
    model: LongspanForRecommendation,
    impressions: Impressions,
    vectors: ItemVectors,
    *,
    name: str = "logits",
    batch_size: int,
    batch_clicks: int,
    progress: bool = False,
    after_batch: Callable[[], None] | None = None,
) -> np.ndarray:
    """Return a model's outputs for all candidates of impressions, one impression after the other, `(n,)` float32.

    Several processes share the work, and get all.

    Args:
        model: The model, switched to evaluation mode for the call.
        impressions: Impressions to score.
        vectors: Vectors of the catalogue.
        name: Name of the outputs; "parts" for the scores of counts and network of a model that has both, `(n, 2)`.
        batch_size: Maximum number of impressions in a batch.
        batch_clicks: Maximum number of clicks and candidates in it, padding included; 0 is no limit.
        progress: Whether to show a progress bar on standard error.
        after_batch: Called after each batch.

    Raises:
        UserError: Another process stopped.
    """
    starts = impressions.candidates.offsets
    result = np.zeros((int(starts[-1]), 2) if name == "parts" else int(starts[-1]), dtype=np.float32)

    def fill(batch: Sequence[int]) -> None:
        shown = [impressions[row] for row in batch]
        inputs, numbers = collate(shown, None)
        if model.wide is not None:
            times = model.wide.ticks(impressions.times[np.asarray(batch)])
            inputs |= vectors.items.counted(numbers) | {"times": times}
        inputs = {key: tensor.to(model.device) for key, tensor in inputs.items() if key != "labels"}
        outputs = model(**inputs, news_vectors=vectors[numbers])[name].float().cpu().transpose(1, -1).numpy()
        for row, found in zip(batch, outputs, strict=True):
            result[starts[row] : starts[row + 1]] = found[: starts[row + 1] - starts[row]]

    batches = scoring_batches(impressions.sizes.tolist(), batch_size, batch_clicks)
    in_batches(model, batches, fill, progress=progress, after_batch=after_batch)
    processes.sum_into(result)
    return result


@torch.no_grad()
def best_items(
    model: LongspanForRecommendation, impressions: Impressions, vectors: ItemVectors, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the items of the whole catalogue that a user is likeliest to click, without those clicked before.

    Args:
        model: The model, in evaluation mode.
        impressions: Users with what they clicked.
        vectors: Those of the catalogue.
        count: Number of items for each user.

    Returns:
        Their numbers, the likeliest first, and their logits, `(users, count)` both; -inf where there are no more items.
    """
    total = len(vectors.items)
    inputs, numbers = collate([impressions[row] for row in range(len(impressions))], None)
    read = {name: inputs[name].to(model.device) for name in ("history", "history_mask", "user_ids")}
    users = model.encode_users(vectors[numbers], **read)[0].float().cpu()
    counts = _counts(model, impressions, vectors.items, inputs, numbers)
    clicked = [impressions.history.values[start:end] for start, end in pairwise(impressions.history.offsets)]
    found = torch.full((len(users), count), -torch.inf)
    chosen = torch.zeros(len(users), count, dtype=torch.long)
    for first in range(0, total, _RANKED_TOGETHER):
        part = np.arange(first, min(first + _RANKED_TOGETHER, total))
        scores = users @ vectors[part].float().cpu().T
        scores = scores if counts is None else counts(part, scores)
        for row, items in enumerate(clicked):
            inside = items[(items >= first) & (items <= part[-1])] - first
            scores[row, inside] = -torch.inf
        found, places = torch.cat((found, scores), 1).topk(count, 1)
        chosen = torch.cat((chosen, torch.from_numpy(part).expand(len(users), -1)), 1).gather(1, places)
    return chosen.numpy(), found.numpy()


def _counts(
    model: LongspanForRecommendation,
    impressions: Impressions,
    items: Items,
    inputs: dict[str, Tensor],
    numbers: np.ndarray,
) -> Callable[[np.ndarray, Tensor], Tensor] | None:
    """Function that adds the counts' scores of items to the network's, `(users, items)`; None without counts."""
    wide = model.wide
    if wide is None:
        return None
    times = wide.ticks(impressions.times).to(model.device)

    def titles(rows: np.ndarray) -> tuple[Titles, Tensor]:
        read = {name: tensor.to(model.device) for name, tensor in items.counted(rows).items()}
        return wide.titles(read["input_ids"], read["attention_mask"]), read["item_ids"]

    history, mask = (inputs[name].to(model.device) for name in ("history", "history_mask"))
    profiles = wide.profiles(titles(numbers)[0], history, mask.bool())

    def add(part: np.ndarray, network: Tensor) -> Tensor:
        counted = wide.of_all(profiles, *titles(part), times)
        return wide.combined(counted, network.to(counted.device)).cpu()

    return add


def measured(impressions: Impressions, scores: np.ndarray, popularity: np.ndarray) -> RecommendationScores:
    """Metrics of the scores of all candidates of impressions, one impression after the other.

    Args:
        impressions: Impressions, all of them with their clicks.
        scores: Higher where a click is likelier, `(n,)`.
        popularity: How often each item of the catalogue was clicked in training.
    """
    return recommendation_scores(
        scores,
        impressions.clicked,
        impressions.candidates.offsets,
        users=impressions.names,
        items=impressions.candidates.values,
        popularity=popularity,
    )
