"""Scores of a language model, from the losses of its tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longspan.errors import UserError
from longspan.results.scores import Scores, score
from longspan.tasks.base.corpora import perplexity


@dataclass(frozen=True)
class LanguageScores(Scores):
    """Scores of a language model on documents.

    Attributes:
        loss: Mean nats per target.
        perplexity: e to the power of that.
        bits_per_byte: All losses over the bytes of the documents in UTF-8; their ends have losses, but no bytes.
        bits_per_character: Likewise over their characters.
    """

    loss: float = score("loss (nats per token)", higher_is_better=False)
    perplexity: float = score("perplexity", higher_is_better=False)
    bits_per_byte: float = score("bits per byte", higher_is_better=False)
    bits_per_character: float = score("bits per character", higher_is_better=False)


def language_scores(losses: Sequence[np.ndarray], characters: int, size: int) -> LanguageScores:
    """Score a language model by its losses.

    Args:
        losses: Nats of each target of each document, its end included, as `likelihood.token_losses` returns them.
        characters: Characters of the documents.
        size: Their size in UTF-8 in bytes.

    Raises:
        UserError: There is nothing to score, or losses are not finite, as after a training run that diverged.
    """
    targets = sum(map(len, losses))
    if not targets or not characters or not size:
        raise UserError("expected at least one document with text to score, got none; choose other data.")
    broken = sum(int((~np.isfinite(row)).sum()) for row in losses)
    if broken:
        raise UserError(
            f"expected finite losses, got some that are not finite for {broken:,} of {targets:,} tokens, as after a "
            "training run that diverged; lower training.learning_rate."
        )
    nats = sum(float(row.sum(dtype=np.float64)) for row in losses)
    loss, bits = nats / targets, nats / math.log(2)
    return LanguageScores(
        loss=loss,
        perplexity=perplexity(loss),
        bits_per_byte=bits / size,
        bits_per_character=bits / characters,
    )


def loss_by_position(losses: Sequence[np.ndarray]) -> list[dict[str, float]]:
    """Return the mean loss at positions 1, 2 to 3, 4 to 7, ... of documents, up to the end of the longest.

    Args:
        losses: Nats of each target of each document.

    Returns:
        Rows with `from` and `to`, both included, the number of `tokens` there, and their mean `loss`.
    """
    longest = max(map(len, losses), default=0)
    starts = 2 ** np.arange(longest.bit_length()) - 1
    counts, sums = np.zeros(len(starts), dtype=np.int64), np.zeros(len(starts))
    for row in losses:
        inside = starts[starts < len(row)]
        sums[: len(inside)] += np.add.reduceat(row, inside, dtype=np.float64)
        counts[: len(inside)] += np.diff(inside, append=len(row))
    return [
        {"from": start + 1, "to": min(2 * start + 1, longest), "tokens": count, "loss": total / count}
        for start, count, total in zip(starts.tolist(), counts.tolist(), sums.tolist(), strict=True)
    ]
