"""Hand-made features of words, as taggers had before they learned features: `longspan.ops.words.word_features`.

A word has itself, its lower case, its first and last 1 to 4 characters, and its shape. It also has the three words on
either side, the endings and shapes of the next ones, and pairs and threes of words, endings and shapes. These features
are those of Ratnaparkhi 1996, "A Maximum Entropy Model for Part-Of-Speech Tagging",
https://aclanthology.org/W96-0213, and their conjunctions. Consecutive capitalised words, a run, are often a name: each
has the first and the last word of its run, and the words before and after it. Words of short sentences, such as titles
and items of lists, have the sentence's length, its first and its last word. Nothing depends on the language.

Words may have a further feature, such as their part of speech: then that of the words around counts, too, as do two and
three in a row (Sha and Pereira 2003, "Shallow Parsing with Conditional Random Fields",
https://aclanthology.org/N03-1028).
"""

import functools
import unicodedata
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from longspan.ops.words import DIGIT, KNOWN, LETTER, LOWER, UPPER


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    every = [chr(code) for code in range(KNOWN)]
    lower = [ord(c.lower()) if len(c.lower()) == 1 else ord(c) for c in every]
    kinds = [_kind(c) for c in every]
    return np.array(lower, np.int32), np.array(kinds, np.uint8)


def _kind(character: str) -> int:
    cased = UPPER if character.isupper() else LOWER if character.islower() else 0
    # Vowel signs of Indian and other scripts are marks (M).
    letter = LETTER if character.isalpha() or unicodedata.category(character)[0] == "M" else 0
    return cased or (DIGIT if character.isdigit() else letter)


def lower_cases() -> Int[Tensor, " k"]:
    """Return the lower case of each character below `KNOWN`, int32."""
    return torch.from_numpy(_tables()[0].copy())


def kinds_of_characters() -> Int[Tensor, " k"]:
    """Return the kind of each character below `KNOWN`, uint8: upper case, lower case, digit, other
    letter, or 0 for others."""
    return torch.from_numpy(_tables()[1].copy())


def characters_of(words: Sequence[str]) -> tuple[Int[Tensor, " m"], Int[Tensor, " w"]]:
    """Return the code points of words, one after the other, and how many each has."""
    codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), dtype="<u4")
    return torch.from_numpy(codes.astype(np.int64)), torch.tensor([len(word) for word in words], dtype=torch.long)
