"""A model's predictions of masked tokens: `masked_losses` and `likeliest`."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from datasets.utils import tqdm
from torch import Tensor
from transformers import PreTrainedModel

from longspan.models.losses import CHUNK, IGNORED


@torch.no_grad()
def masked_losses(
    model: PreTrainedModel,
    rows: Sequence[dict[str, Tensor]],
    batch_size: int,
    *,
    progress: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the loss in nats of each token to be predicted, `(n,)` float32, the likeliest token, and the right one.

    Args:
        model: A `LongspanForMaskedLM`, put into evaluation mode for the call.
        rows: What `longspan.tasks.masked_words.rows.fixed_rows` returns; the last may be shorter.
        batch_size: Rows read at a time.
        progress: Whether to show a bar on standard error.
    """
    losses, (found, right) = [np.zeros(0, dtype=np.float32)], ([np.zeros(0, dtype=np.int64)] for _ in range(2))
    was_training = model.training
    model.eval()
    try:
        # Below the bar of a training run, this one disappears when it is full.
        for batch in tqdm(_batches(rows, batch_size), desc="Scoring", unit="batch", leave=None, disable=not progress):
            for scores, wanted in _scores(
                model, {name: torch.stack([row[name] for row in batch]) for name in batch[0]}
            ):
                losses.append(torch.nn.functional.cross_entropy(scores, wanted, reduction="none").cpu().numpy())
                found.append(scores.argmax(-1).cpu().numpy())
                right.append(wanted.cpu().numpy())
    finally:
        model.train(was_training)
    return np.concatenate(losses), np.concatenate(found), np.concatenate(right)


@torch.no_grad()
def likeliest(model: PreTrainedModel, ids: np.ndarray, mask_id: int, count: int) -> list[list[tuple[int, float]]]:
    """Return the `count` likeliest tokens for each mask in a document, each with its probability, the likeliest first.

    Args:
        model: A `LongspanForMaskedLM` in evaluation mode.
        ids: `(t,)` the tokens of the document.
        mask_id: The mask.
        count: How many.
    """
    inputs = torch.from_numpy(ids.astype(np.int64))
    labels = torch.where(inputs == mask_id, inputs, IGNORED)
    found: list[list[tuple[int, float]]] = []
    for scores, _ in _scores(model, {"input_ids": inputs[None], "labels": labels[None]}):
        top = scores.softmax(-1).topk(min(count, scores.shape[-1]))
        found += [
            list(zip(tokens, shares, strict=True))
            for tokens, shares in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
    return found


def _batches(rows: Sequence[dict[str, Tensor]], batch_size: int) -> list[Sequence[dict[str, Tensor]]]:
    """Group rows of equal length."""
    full = [row for row in rows if len(row["input_ids"]) == len(rows[0]["input_ids"])]
    batches = [full[first : first + batch_size] for first in range(0, len(full), batch_size)]
    return [*batches, *([row] for row in rows[len(full) :])]


def _scores(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits of some of the labelled positions, (m, v) float32, and their labels, (m,)."""
    given = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    labels = given.pop("labels")
    # Not all positions at once: their scores would be many times as large as the model.
    hidden = model.base_model(**given).last_hidden_state[labels != IGNORED]
    wanted = labels[labels != IGNORED]
    most = max(1, CHUNK // model.config.vocab_size)
    for part, targets in zip(hidden.split(most), wanted.split(most), strict=True):
        if len(part):
            yield model.scores(part).float(), targets
