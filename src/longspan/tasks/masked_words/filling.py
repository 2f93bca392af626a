"""Filling in the masks of a text: `ids_with_masks` and `fill`."""

from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longspan.data.text.masks import around_masks
from longspan.data.text.tokenizer_training import MASK
from longspan.tasks.masked_words.likelihood import likeliest

BEST = 5
"""How many tokens are given for each mask."""

Filling = dict[str, Any]
"""Where a mask is in its text, `start` and `end` in characters, and `tokens`, each a `token` and its `probability`."""


def ids_with_masks(tokenizer: PreTrainedTokenizerBase, text: str) -> np.ndarray:
    """Return the tokens of a text, `(t,)`, in which each "<mask>" is the mask; see `around_masks`."""
    parts = around_masks(tokenizer, text)
    masked = [np.concatenate([part, [tokenizer.mask_token_id]]) for part in parts[:-1]]
    return np.concatenate([*masked, parts[-1]]).astype(np.int64)


def fill(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, ids: np.ndarray
) -> tuple[str, list[Filling]]:
    """Return a text with the likeliest token for each "<mask>" in it, and the likeliest ones for each.

    Args:
        model: A `LongspanForMaskedLM` in evaluation mode.
        tokenizer: Its tokenizer.
        text: The text.
        ids: Its tokens, from `ids_with_masks`.
    """
    filled, *parts = text.split(MASK)
    found = likeliest(model, ids, tokenizer.mask_token_id, BEST) if parts else []
    place, fillings = len(filled), []
    for best, part in zip(found, parts, strict=True):
        words = [{"token": str(tokenizer.decode([token])).strip(), "probability": share} for token, share in best]
        fillings.append({"start": place, "end": place + len(MASK), "tokens": words})
        filled += f"{words[0]['token']}{part}"
        place += len(MASK) + len(part)
    return filled, fillings
