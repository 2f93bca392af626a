"""Tokens with the characters that each of them stands for."""

import functools
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from longspan.data.text.threads import no_rust_threads
from longspan.data.text.tokenization import backend_of, kept_lookup, lowers, special_tokens
from longspan.data.text.truncation import room_for, shares
from longspan.data.text.word_lookup import keeps_offsets
from longspan.errors import UserError
from longspan.machine.limits import cores


def tokens_with_offsets(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the ids of each text without special tokens, int32, and (t, 2) int32: the characters of each token.

    A token stands for `text[start:end]`; those of one character of several bytes all stand for that character.

    Raises:
        UserError: The tokenizer is one of Python's, which keep no offsets.
    """
    if not tokenizer.is_fast:
        raise UserError(
            f"expected a tokenizer that keeps the characters of its tokens, got {tokenizer.name_or_path!r}, which has "
            "no fast form; use another."
        )
    backend = backend_of(tokenizer)
    lookup = kept_lookup(tokenizer, len(texts)) if keeps_offsets(backend) else None
    if lookup is not None:

        def encode(words: Sequence[str]) -> Iterator[tuple[list[int], list[int]]]:
            with no_rust_threads():
                encodings: list[Encoding] = backend.encode_batch(words, add_special_tokens=False)
            return ((one.ids, list(chain.from_iterable(one.offsets))) for one in encodings)

        placed = lookup.placed(texts, lowers(backend), encode)
        return [(ids, over_marks(text, places)) for text, (ids, places) in zip(texts, placed, strict=True)]

    def work(text: str) -> tuple[np.ndarray, np.ndarray]:
        found: Encoding = backend.encode(text, add_special_tokens=False)
        return np.array(found.ids, np.int32), over_marks(text, np.array(found.offsets, np.int32).reshape(-1, 2))

    with no_rust_threads(), ThreadPoolExecutor(cores()) as threads:
        return list(threads.map(work, texts))


def over_marks(text: str, places: np.ndarray) -> np.ndarray:
    """Characters of tokens, each reaching over the marks, vowels and final consonants that compose with its last one.

    Tokenizers compose a letter and its accent (NFC), and align the composed character to the letter alone.

    Args:
        text: The text.
        places: (t, 2) int32 the characters of its tokens.
    """
    if unicodedata.is_normalized("NFC", text) or not len(places):
        return places
    covered = np.zeros(len(text) + 1, np.int64)
    np.add.at(covered, places[:, 0], 1)
    np.add.at(covered, places[:, 1], -1)
    free = covered.cumsum() == 0
    joins = _composing()
    # Where each end goes: over characters that no token has and that compose with those before.
    reach = np.arange(len(text) + 1, dtype=np.int32)
    for place in range(len(text) - 1, -1, -1):
        if free[place] and (text[place] in joins or unicodedata.combining(text[place])):
            reach[place] = reach[place + 1]
    return np.stack([places[:, 0], np.where(places[:, 1] > places[:, 0], reach[places[:, 1]], places[:, 1])], 1)


@functools.cache
def _composing() -> frozenset[str]:
    """Characters that compose with the one before them: the second ones of canonical decompositions, and Jamo."""
    found = {chr(code) for first, last in ((0x1161, 0x1175), (0x11A8, 0x11C2)) for code in range(first, last + 1)}
    for code in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            found.add(chr(int(parts[1], 16)))
    return frozenset(found)


def spans(
    tokenizer: PreTrainedTokenizerBase, text: str, max_length: int, keep: str
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the ids of a text as a model reads it, see `encode`, (t, 2) the characters of each token, and how many
    tokens were left out.

    Special tokens stand for no characters: both numbers are -1.

    Raises:
        UserError: See `spans_together`.
    """
    ids, (characters,), removed = spans_together(tokenizer, [text], max_length, keep)
    return ids, characters, removed


def spans_together(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, keep: str
) -> tuple[np.ndarray, list[np.ndarray], int]:
    """Return the same of one text or two that are read one after the other, with (t, 2) for each.

    Special tokens belong to the text before them.

    Raises:
        UserError: The tokenizer keeps no offsets, or `max_length` leaves no room next to the special tokens.
    """
    special = special_tokens(tokenizer, len(texts))
    read = tokens_with_offsets(tokenizer, texts)
    kept = lengths = [len(ids) for ids, _ in read]
    if max_length:
        kept = shares(lengths, room_for(special, max_length))
    none = np.full((1, 2), -1, np.int32)
    pieces, found = [special[0]], [[none.repeat(len(special[0]), 0)], *([] for _ in texts[1:])]
    for own, (ids, characters), size, after in zip(found, read, kept, special[1:], strict=True):
        part = slice(0, size) if keep == "first" else slice(len(ids) - size, None)
        pieces += [ids[part], after]
        own += [characters[part], none.repeat(len(after), 0)]
    return np.concatenate(pieces), [np.concatenate(own) for own in found], sum(lengths) - sum(kept)
