"""Encoding by looking up words: most words of a text have been encoded before.

Byte-level BPE splits a text into words, with the space before them, and merges bytes within each word alone. BERT's
words are runs of characters between white space and punctuation. So the tokens of a word are the same in every text.
The Rust library splits each text by the rules of Unicode and records the source of each byte. This takes nearly all of
its time.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np
from jaxtyping import Int
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

_MOST_WORDS = 500_000
"""Number of words to remember before starting again."""

# GPT-2's pattern (Radford et al. 2019) for texts in ASCII, whose white space is \t to \r and the space.
_ASCII_WORDS = re.compile(
    r"'(?:[stmd]|re|ve|ll)| ?[A-Za-z]+| ?[0-9]+| ?[^\t-\r A-Za-z0-9]+|[\t-\r ]+(?![^\t-\r ])|[\t-\r ]+"
)
# White space in Unicode. Where it begins a word begins in GPT-2's pattern, too.
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_PARTS = re.compile(rf"[{_SPACE}]*[^{_SPACE}]+|[{_SPACE}]+")
# BERT's words (Devlin et al. 2019) in ASCII: each punctuation mark is one. In other texts, marks stay with their word.
_MARKS = r"!-/:-@\[-`{-~"
_BERT_ASCII_WORDS = re.compile(rf"[^\t-\r {_MARKS}]+|[{_MARKS}]")
_BERT_PARTS = re.compile(rf"[^{_SPACE}]+")


_NFC, _LOWER = normalizers.NFC(), normalizers.Lowercase()
#: What normalises each word of a text as it does the whole text, as it is saved.
_OF_WORDS = {each.__getstate__() for each in (_NFC, _LOWER, normalizers.Sequence([_NFC, _LOWER]))}


class WordLookup:
    """Encodes texts as a backend would, remembering what words became. Several threads may use one at once.

    Args:
        ascii_words: Pattern of words in a text in ASCII.
        parts: Pattern of parts that may be encoded alone in other texts.
    """

    def __init__(self, ascii_words: re.Pattern[str], parts: re.Pattern[str]) -> None:
        self._ascii_words = ascii_words
        self._parts = parts
        self._ids: dict[str, list[int]] = {}
        self._placed: dict[str, tuple[list[int], list[int]]] = {}

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
            self._ids = {}
        # Another thread may start again.
        ids = self._ids
        split = [self.words(text, lowercase) for text in texts]
        new = sorted(set().union(*split) - ids.keys())
        if new:
            ids.update(zip(new, encode(new), strict=True))
        find = ids.__getitem__
        return [np.fromiter(chain.from_iterable(map(find, words)), np.int32) for words in split]

    def placed(
        self,
        texts: Sequence[str],
        lowercase: bool,
        encode: Callable[[Sequence[str]], Iterable[tuple[list[int], list[int]]]],
    ) -> list[tuple[Int[np.ndarray, " t"], Int[np.ndarray, "t 2"]]]:
        """Return the token ids of each text, and the characters that each token stands for, both int32.

        Args:
            texts: the texts.
            lowercase: whether the backend encodes them in lower case.
            encode: returns of each of several words the ids, and where each token begins and ends, in turns.
        """
        if len(self._placed) > _MOST_WORDS:
            self._placed = {}
        # Another thread may start again.
        placed, found = self._placed, []
        split = [self._split(text, lowercase) for text in texts]
        words = [pattern.findall(text) for pattern, text in split]
        new = sorted(set().union(*words) - placed.keys())
        if new:
            placed.update(zip(new, encode(new), strict=True))
        for (pattern, text), own in zip(split, words, strict=True):
            each = [placed[word] for word in own]
            sizes = np.fromiter((len(ids) for ids, _ in each), np.int32, len(each))
            begins = np.fromiter((word.start() for word in pattern.finditer(text)), np.int32, len(each))
            ids = np.fromiter(chain.from_iterable(ids for ids, _ in each), np.int32)
            inside = np.fromiter(chain.from_iterable(ends for _, ends in each), np.int32)
            found.append((ids, inside.reshape(-1, 2) + begins.repeat(sizes)[:, np.newaxis]))
        return found

    def words(self, text: str, lowercase: bool) -> list[str]:
        """Return the words of a text, which may be encoded alone."""
        pattern, text = self._split(text, lowercase)
        return pattern.findall(text)

    def _split(self, text: str, lowercase: bool) -> tuple[re.Pattern[str], str]:
        """Pattern of the words of a text, and the text in which they are."""
        if text.isascii():
            # First, as contractions are recognised in lower case alone.
            return self._ascii_words, text.lower() if lowercase else text
        return self._parts, text


def lookup_for(backend: Tokenizer) -> WordLookup | None:
    """Return a lookup for a backend that splits texts as GPT-2 or BERT and encodes each word alone; None for others."""
    splitter, model, special = backend.pre_tokenizer, backend.model, backend.get_added_tokens_decoder().values()
    alone = (
        isinstance(model, models.BPE | models.WordLevel)
        and not getattr(model, "dropout", None)
        and (backend.normalizer is None or backend.normalizer.__getstate__() in _OF_WORDS)
        # Spelled out in a text, special tokens are ordinary words.
        and backend.encode_special_tokens
        and all(token.special for token in special)
    )
    if alone and isinstance(splitter, pre_tokenizers.BertPreTokenizer):
        return WordLookup(_BERT_ASCII_WORDS, _BERT_PARTS)
    if alone and isinstance(splitter, pre_tokenizers.ByteLevel) and isinstance(model, models.BPE):
        return WordLookup(_ASCII_WORDS, _PARTS) if splitter.use_regex and not splitter.add_prefix_space else None
    return None


def keeps_offsets(backend: Tokenizer) -> bool:
    """Return whether the characters of a word's tokens are the same in a text: nothing cuts off the space before it."""
    return backend.post_processor is None or isinstance(
        backend.post_processor, processors.TemplateProcessing | processors.BertProcessing
    )
