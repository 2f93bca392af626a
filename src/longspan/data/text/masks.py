"""Texts with masks to be filled in: `around_masks`."""

import numpy as np
from transformers import PreTrainedTokenizerBase

from longspan.data.text.tokenization import token_ids
from longspan.data.text.tokenizer_training import MASK


def around_masks(tokenizer: PreTrainedTokenizerBase, text: str) -> list[np.ndarray]:
    """Return the tokens before the first "<mask>" of a text, between each two, and after the last.

    Where words are one token with the space before them, a space before a mask belongs to what is to be filled in.
    """
    *before, last = text.split(MASK)
    spaced = _keeps_spaces(tokenizer)
    return token_ids(tokenizer, [*(part.removesuffix(" ") if spaced else part for part in before), last])


def _keeps_spaces(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Say whether a word and the space before it are one token."""
    (ids,) = token_ids(tokenizer, [" a"])
    return len(ids) == 1 and str(tokenizer.decode(ids.tolist())).startswith(" ")
