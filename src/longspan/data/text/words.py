"""Documents as words: where words begin among tokens, tokens of given words, and how raw text is split into words.

Three kinds of tokenizers mark words in their tokens: byte-level BPE and SentencePiece where one begins, WordPiece where
one goes on. In others each token is a word.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Regex, Tokenizer, pre_tokenizers

from longspan.data.text.threads import backend_ids
from longspan.errors import UserError
from longspan.ops.words import LETTERS

if TYPE_CHECKING:
    # Exported programs read words without it.
    from transformers import PreTrainedTokenizerBase

_LETTERS = r"[\p{L}\p{M}\p{N}_]"
#: What may hold the parts of a word together, as patterns of `re`: between letters or digits, and how raw text is split
#: where training has such words whole.
_JOINS = {"-": r"\-", "'": "['’]", ".": r"\.", "/": "/", ":": ":", ",": ",", "@": "@", "&": "&", "+": r"\+"}
_CLITICS = r"[nN]['’][tT](?!\p{L})|['’](?:[sSmMdD]|re|ve|ll|RE|VE|LL)(?!\p{L})"
_BEGINNINGS = ("Ġ", "▁")
_CONTINUES = "##"
CHARACTERS = r"\S"
"""The pattern of text in which each character is a word."""


def word_starts(tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """Tokens that begin a word, `(v,)` bool; special tokens do."""
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = set(tokenizer.all_special_tokens)
    ordinary = [token for token in tokens if token and token not in special]
    if any(token.startswith(_CONTINUES) and len(token) > len(_CONTINUES) for token in ordinary):
        return np.array([not (token or "").startswith(_CONTINUES) or token in special for token in tokens])
    mark = next((mark for mark in _BEGINNINGS if any(token.startswith(mark) for token in ordinary)), None)
    return np.array([mark is None or token in special or (token or "").startswith(mark) for token in tokens])


class WordEncoder:
    """Turns words into tokens, each by itself, and remembers what they became.

    A word that the tokenizer has nothing for, such as a control character, becomes its unknown token.

    Args:
        tokenizer: The tokenizer.
        unknown: Its unknown token; None for none.
    """

    def __init__(self, tokenizer: Tokenizer, unknown: int | None) -> None:
        self._backend = _unsplit(tokenizer)
        # What begins a word in running text is different from what begins a text.
        self._space = "" if _adds_space(self._backend) else " "
        self._unknown = unknown
        self._known: dict[str, list[int]] = {}

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase") -> "WordEncoder":
        """The encoder of a tokenizer of transformers.

        Raises:
            UserError: It is not a fast one.
        """
        if not tokenizer.is_fast:
            raise UserError(
                "expected a fast tokenizer, which knows where its tokens are in a text, got "
                f"{type(tokenizer).__name__}; set data.tokens to another."
            )
        return cls(tokenizer.backend_tokenizer, tokenizer.unk_token_id)

    def __call__(self, words: Iterable[str]) -> list[list[int]]:
        """Return the ids of each word, at least one.

        Raises:
            UserError: The tokenizer has no tokens for a word, not even an unknown one.
        """
        words = list(words)
        new = sorted({*words} - self._known.keys())
        if new:
            for word, ids in zip(new, backend_ids(self._backend, [self._space + word for word in new]), strict=True):
                if not ids and self._unknown is None:
                    raise UserError(
                        f"expected a tokenizer with tokens for every word, got none for {word!r} and no unknown token; "
                        "remove the word, or set data.tokens to another."
                    )
                self._known[word] = ids if ids or self._unknown is None else [self._unknown]
        return [self._known[word] for word in words]


def _unsplit(tokenizer: Tokenizer) -> Tokenizer:
    """Return it without the splitting of raw text into words that comes first where it was learned here."""
    content = json.loads(tokenizer.to_str())
    content["truncation"] = content["padding"] = content["post_processor"] = None
    parts = (content["pre_tokenizer"] or {}).get("pretokenizers", [])
    if parts and _splits_words(parts[0]):
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts[1:]} if parts[1:] else None
    backend = Tokenizer.from_str(json.dumps(content))
    # Spelled out in a document, special tokens are ordinary words.
    backend.encode_special_tokens = True
    return backend


def _splits_words(part: dict[str, object]) -> bool:
    return part["type"] == "Split" and part.get("behavior") == "Removed" and part.get("invert") is True


def _adds_space(backend: Tokenizer) -> bool:
    """Say whether a word by itself has the tokens that it has after a space, or there are no spaces among tokens."""
    alone, after = (backend.encode(text, add_special_tokens=False).tokens for text in ("a", " a"))
    return bool(alone == after or not any(mark in "".join(after) for mark in _BEGINNINGS))


def splitting(words: Iterable[str]) -> str:
    """Return a regular expression that splits raw text into words like these, for `tokenizers`.

    Words are runs of letters and digits, and every other character by itself. What most words like these keep together
    is kept together: letters with hyphens, abbreviations, numbers with commas. Contractions are split off as in the
    Penn Treebank ("do n't", "it 's") if they are among the words. Where all words have a single character, so do those
    of raw text. Runs of one punctuation mark are one word ("...").
    """
    counts = Counter(words)
    if counts and all(len(word) == 1 for word in counts):
        return CHARACTERS
    joined, alone = Counter[str](), Counter[str]()
    for word, count in counts.items():
        for mark, pattern in _JOINS.items():
            if re.search(rf"\w{pattern}\w", word):
                joined[mark] += count
            elif word == mark:
                alone[mark] += count
    # A mark by itself may have had spaces around it, or a full stop end a sentence.
    kept = [mark for mark in _JOINS if joined[mark] and (mark in ".,:'" or joined[mark] >= alone[mark])]
    clitics = any(re.fullmatch(r"n['’]t|['’](?:s|re|ve|ll)", word.lower()) for word in counts)
    return pattern_of(kept, clitics=clitics, abbreviations=any(re.fullmatch(r"(\w\.){2,}", word) for word in counts))


def pattern_of(kept: Sequence[str], *, clitics: bool, abbreviations: bool) -> str:
    """Return the regular expression of words with these marks inside.

    Args:
        kept: Keys of `_JOINS`. Commas and colons join digits only.
        clitics: Whether contractions are words of their own.
        abbreviations: Whether the last full stop of "U.S." belongs to the word.
    """
    between = [_JOINS[mark] for mark in kept if mark not in ",:" and not (mark == "'" and clitics)]
    inner = f"(?:{'|'.join(between)})" if between else None
    letter = rf"(?:(?![nN]['’][tT](?!\p{{L}})){_LETTERS})" if clitics else _LETTERS
    word = rf"{letter}+(?:{inner}{_LETTERS}+)*" if inner else rf"{letter}+"
    digits = [_JOINS[mark] for mark in kept if mark in ",:."]
    parts = [r"https?://\S+|www\.\S+"]
    if "@" in kept:
        parts.append(r"[\w.+\-]+@[\w\-]+(?:\.[\w\-]+)+")
    if abbreviations:
        parts.append(r"(?:\p{L}\.){2,}")
    if digits:
        parts.append(rf"\d+(?:(?:{'|'.join(digits)})\d+)+")
    if clitics:
        parts.append(_CLITICS)
    # A character that repeats is one word: "...", "--".
    parts += [word, rf"{_LETTERS}+", r"([^\s\p{L}\p{M}\p{N}_])\1*"]
    return "|".join(parts)


PLAIN = pattern_of(["'", "."], clitics=True, abbreviations=True)
"""How raw text is split where nothing is known about its words."""


def word_places(text: str, lines: re.Pattern[str], pattern: str) -> list[list[tuple[int, int]]]:
    """Places of the words of each line of a text, which a regular expression of `tokenizers` finds."""
    splitter = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return [
        [(line.start() + start, line.start() + end) for _, (start, end) in splitter.pre_tokenize_str(line[0])]
        for line in lines.finditer(text)
    ]


def letters(tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """Return the bytes that each token adds to its word in UTF-8, `(v, LETTERS)` uint8, 0 after the last.

    Marks of where words begin or continue are not counted, and special tokens have no letters. Longer tokens are cut.
    """
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = set(tokenizer.all_special_tokens)
    bytewise = any((token or "").startswith("Ġ") for token in tokens if token not in special)
    values = {character: byte for byte, character in bytes_to_unicode().items()}
    result = np.zeros((len(tokens), LETTERS), dtype=np.uint8)
    for row, token in enumerate(tokens):
        if not token or token in special:
            continue
        if bytewise and all(character in values for character in token):
            spelled = bytes(values[character] for character in token).strip()
        else:
            spelled = token.removeprefix("▁").removeprefix(_CONTINUES if token != _CONTINUES else "").encode()
        found = np.frombuffer(spelled[:LETTERS], dtype=np.uint8)
        result[row, : len(found)] = found
    return result
