"""Texts with masks to be filled in: `around_masks` and `characters_of`."""

import numpy as np
from transformers import PreTrainedTokenizerBase

from longspan.data.text.offsets import tokens_with_offsets
from longspan.data.text.tokenization import token_ids
from longspan.data.text.tokenizer_training import MASK


def around_masks(tokenizer: PreTrainedTokenizerBase, text: str) -> list[np.ndarray]:
    """Return the tokens before the first "<mask>" of a text, between each two, and after the last.

    Where words are one token with the space before them, a space before a mask belongs to what is to be filled in.
    """
    return token_ids(tokenizer, _parts(tokenizer, text))


def characters_of(tokenizer: PreTrainedTokenizerBase, text: str) -> np.ndarray:
    """Return (t, 2), the characters of each token of a text with masks, of which each is a token.

    Raises:
        UserError: The tokenizer keeps no offsets.
    """
    begins = np.cumsum([0, *(len(part) + len(MASK) for part in text.split(MASK))])
    found, read = [], tokens_with_offsets(tokenizer, _parts(tokenizer, text))
    for begin, end, (_, own) in zip(begins[:-1], begins[1:], read, strict=True):
        found += [own + begin, np.array([[end - len(MASK), end]])]
    return np.concatenate(found[:-1]).astype(np.int64)


def _parts(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """Return the text around masks, as it is read."""
    *before, last = text.split(MASK)
    spaced = _keeps_spaces(tokenizer)
    return [*(part.removesuffix(" ") if spaced else part for part in before), last]


def _keeps_spaces(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Say whether a word and the space before it are one token."""
    (ids,) = token_ids(tokenizer, [" a"])
    return len(ids) == 1 and str(tokenizer.decode(ids.tolist())).startswith(" ")
