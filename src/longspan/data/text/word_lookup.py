"""Byte-level BPE by looking up words: most words of a text have been encoded before.

Byte-level BPE splits a text into words, with the space before them, and merges bytes within each word alone. So the
tokens of a word are the same wherever it stands. The Rust library splits each text by a regular expression for Unicode
and records the source of each byte. This takes nearly all of its time.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

_MOST_WORDS = 500_000
"""Number of words to remember before starting again."""

# GPT-2's pattern (Radford et al. 2019) for texts in ASCII, whose white space is \t to \r and the space.
_ASCII_WORDS = re.compile(
    r"'(?:[stmd]|re|ve|ll)| ?[A-Za-z]+| ?[0-9]+| ?[^\t-\r A-Za-z0-9]+|[\t-\r ]+(?![^\t-\r ])|[\t-\r ]+"
)
# White space in Unicode. Where it begins a word begins in GPT-2's pattern, too.
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_PARTS = re.compile(rf"[{_SPACE}]*[^{_SPACE}]+|[{_SPACE}]+")


_NFC, _LOWER = normalizers.NFC(), normalizers.Lowercase()
#: What normalises each word of a text as it does the whole text, as it is saved.
_OF_WORDS = {each.__getstate__() for each in (_NFC, _LOWER, normalizers.Sequence([_NFC, _LOWER]))}


class WordLookup:
    """Encodes texts as a backend would, remembering what words became."""

    def __init__(self) -> None:
        self._ids: dict[str, list[int]] = {}

    def __call__(
        self, texts: Sequence[str], lowercase: bool, encode: Callable[[Sequence[str]], Iterable[list[int]]]
    ) -> list[np.ndarray]:
        """Return the token ids of each text, int32.

        Args:
            texts: the texts.
            lowercase: whether the backend encodes them in lower case.
            encode: returns the ids of each of several words.
        """
        if len(self._ids) > _MOST_WORDS:
            self._ids.clear()
        split = [_words(text, lowercase) for text in texts]
        new = sorted(set().union(*split) - self._ids.keys())
        self._ids.update(zip(new, encode(new), strict=True))
        find = self._ids.__getitem__
        return [np.fromiter(chain.from_iterable(map(find, words)), np.int32) for words in split]


def _words(text: str, lowercase: bool) -> list[str]:
    if text.isascii():
        # First, as contractions are recognised in lower case alone.
        return _ASCII_WORDS.findall(text.lower() if lowercase else text)
    return _PARTS.findall(text)


def encodes_words_alone(backend: Tokenizer) -> bool:
    """Say whether a backend splits texts by GPT-2's pattern and encodes each word alone."""
    splitter, model, special = backend.pre_tokenizer, backend.model, backend.get_added_tokens_decoder().values()
    return (
        isinstance(splitter, pre_tokenizers.ByteLevel)
        and splitter.use_regex
        and not splitter.add_prefix_space
        and isinstance(model, models.BPE)
        and not model.dropout
        and (backend.normalizer is None or backend.normalizer.__getstate__() in _OF_WORDS)
        # Spelled out in a text, special tokens are ordinary words.
        and backend.encode_special_tokens
        and all(token.special for token in special)
    )
