"""Hand-made features of words, as taggers had before they learned features, hashed to 64 bits: `word_features`.

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
from jaxtyping import Bool, Int
from torch import Tensor

#: Characters of the longest beginnings and endings, and of a neighbour's ending.
_AFFIX, _ENDING = 4, 3
#: Number of characters of a word that count; longer ones are addresses.
_LONGEST = 100
#: Words on either side, and those whose further features count.
_REACH, _NEAR = 3, 2
#: Words of the longest sentence whose length counts.
_SHORT = 12
#: Kinds of characters; letters of scripts without capitals are of one kind, others are each of their own.
_UPPER, _LOWER, _DIGIT, _LETTER, _OTHERS = 1, 2, 3, 4, 5
#: Code points from `KNOWN` on that are letters of scripts without capitals: Chinese, Japanese, Korean and Yi.
_LETTERS = ((0x3041, 0xA4D0), (0xAC00, 0xD7A4), (0xF900, 0xFB00), (0x20000, 0x323B0))
#: Arithmetic is modulo 2^64. The factors are those of Knuth's MMIX generator, and of splitmix64.
_FACTOR, _MIX, _SALT = 6364136223846793005, -4658895280553007687, -7046029254386353131
#: Value beyond a sentence.
_BEYOND = 1
NOTHING = 0
"""The hash of a feature that a word does not have."""

KNOWN = 0x2000
"""Characters below have a lower case and a kind here: Latin, Greek, Cyrillic and what else has capital letters."""


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    every = [chr(code) for code in range(KNOWN)]
    lower = [ord(c.lower()) if len(c.lower()) == 1 else ord(c) for c in every]
    kinds = [_kind(c) for c in every]
    return np.array(lower, np.int32), np.array(kinds, np.uint8)


def _kind(character: str) -> int:
    cased = _UPPER if character.isupper() else _LOWER if character.islower() else 0
    # Vowel signs of Indian and other scripts are marks (M).
    letter = _LETTER if character.isalpha() or unicodedata.category(character)[0] == "M" else 0
    return cased or (_DIGIT if character.isdigit() else letter)


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


def decoded(
    spelled: Int[Tensor, " n"], word: Int[Tensor, " n"], words: int
) -> tuple[Int[Tensor, " m"], Int[Tensor, " w"]]:
    """Return the code points of words whose bytes in UTF-8 are given, one after the other, and how many each has.

    Args:
        spelled: the bytes of all words.
        word: the word of each.
        words: their number.
    """
    values = spelled.long()
    begins = (values & 0xC0) != 0x80
    codes = torch.where(values < 0x80, values, torch.where(values < 0xE0, values & 0x1F, values & 0x0F))
    codes = torch.where(values < 0xF0, codes, values & 0x07)
    goes_on = begins
    for step in (1, 2, 3):
        following = torch.nn.functional.pad(values[step:], (0, min(step, len(values))))
        same = torch.nn.functional.pad(word[step:], (0, min(step, len(values))), value=-1) == word
        goes_on = goes_on & same & ((following & 0xC0) == 0x80)
        codes = torch.where(goes_on, (codes << 6) | (following & 0x3F), codes)
    sizes = torch.zeros(words, dtype=torch.long, device=values.device).index_add_(0, word, begins.long())
    return codes[begins], sizes


def word_features(
    codes: Int[Tensor, " m"],
    sizes: Int[Tensor, " w"],
    by_row: Int[Tensor, " r"],
    features: Int[Tensor, " w"] | None,
    lower: Int[Tensor, " k"],
    kinds: Int[Tensor, " k"],
) -> Int[Tensor, "w f"]:
    """Return the hashes of the features of each word, `NOTHING` for those that it does not have.

    Args:
        codes: the code points of all words.
        sizes: their number for each word.
        by_row: number of words of each sentence.
        features: the further feature of each word, above 0; 0 where it is not known.
        lower: from `lower_cases`.
        kinds: from `kinds_of_characters`.
    """
    words = len(sizes)
    word = torch.repeat_interleave(torch.arange(words, device=codes.device), sizes)
    ends = sizes.cumsum(0)
    starts = ends - sizes
    place = torch.arange(len(word), device=codes.device) - starts[word]
    known = codes < KNOWN
    small = torch.where(known, codes, 0)
    lowered = torch.where(known, lower[small].long(), codes)
    kind = kinds[small].long() * known
    for least, beyond in _LETTERS:
        kind = torch.where((codes >= least) & (codes < beyond), _LETTER, kind)
    kind = torch.where(kind > 0, kind, codes + _OTHERS)
    form, whole = (_spelled(values, word, place, words) for values in (codes, lowered))
    # Of equal kinds in a row, one counts.
    changed = torch.nn.functional.pad(kind[1:] != kind[:-1], (1, 0), value=True) | (place == 0)
    number = changed.long().cumsum(0)
    first = torch.cat((number, number.new_zeros(1)))[torch.where(sizes > 0, starts, len(word))]
    shape = _spelled(kind[changed], word[changed], (number - first[word])[changed], words)
    everywhere = torch.ones(words, dtype=torch.bool, device=codes.device)
    found = [(torch.zeros_like(sizes), everywhere), (form, everywhere), (whole, everywhere), (shape, everywhere)]
    ending = torch.zeros_like(sizes)
    for origin, step in ((starts, 1), (ends - 1, -1)):
        key = torch.zeros_like(sizes)
        for size in range(1, _AFFIX + 1):
            inside = sizes >= size
            at = torch.where(inside, origin + step * (size - 1), 0)
            key = key * _FACTOR + (lowered[at] if len(lowered) else at) + 1
            found.append((key, inside))
            if step < 0 and size <= _ENDING:
                ending = torch.where(inside, key, ending)
    row = torch.repeat_interleave(torch.arange(len(by_row), device=by_row.device), by_row)
    around = {offset: _neighbours(row, offset) for offset in range(-_REACH, _REACH + 1)}
    wholes, shapes, endings = (
        {offset: torch.where(there, key[near], _BEYOND) for offset, (near, there) in around.items()}
        for key in (whole, shape, ending)
    )
    for offset in (-1, 1):
        there = around[offset][1]
        found += [(endings[offset], there), (shapes[offset], there)]
    found += [(wholes[offset], everywhere) for offset in around if offset]
    pairs = [(wholes[a], wholes[b]) for a, b in ((-1, 0), (0, 1), (-1, 1), (-2, -1), (1, 2))]
    pairs += [(key[a], key[b]) for key in (endings, shapes) for a, b in ((-1, 0), (0, 1))]
    pairs += [(wholes[-1], shape), (shape, wholes[1]), (_pair(shapes[-1], shape), shapes[1])]
    found += [(_pair(*pair), everywhere) for pair in pairs]
    upper = torch.cat((kind, kind.new_zeros(1)))[torch.where(sizes > 0, starts, len(word))] == _UPPER
    found += [(key, upper) for key in _of_runs(upper, row, whole)]
    found += _of_sentences(by_row, row, whole, shape)
    if features is not None:
        values = {offset: torch.where(there, features[near] + 1, 0) for offset, (near, there) in around.items()}
        for size in (1, 2, 3):
            for start in range(-_NEAR, _NEAR + 2 - size):
                key = torch.zeros_like(sizes)
                for offset in range(start, start + size):
                    key = _pair(key, values[offset])
                found.append((key, features > 0))
    return torch.stack([torch.where(has, _mixed(key, number), NOTHING) for number, (key, has) in enumerate(found)], 1)


def _of_runs(upper: Bool[Tensor, " w"], row: Int[Tensor, " w"], whole: Int[Tensor, " w"]) -> list[Int[Tensor, " w"]]:
    """Return features of runs of capitalised words: first and last word, size and place, words before and after."""
    words = torch.arange(len(row), device=row.device)
    goes_on = upper[1:] & upper[:-1] & (row[1:] == row[:-1])
    begins, stops = (~torch.nn.functional.pad(goes_on, sides, value=False) for sides in ((1, 0), (0, 1)))
    first = torch.where(begins, words, 0).cummax(0).values
    last = torch.where(stops, words, len(words)).flip(0).cummin(0).values.flip(0)
    before, after = first - 1, last + 1
    known = (before >= 0) & (row[before] == row)
    left = torch.where(known, whole[before], _BEYOND)
    inside = after.clamp_max(max(0, len(row) - 1))
    right = torch.where((after == inside) & (row[inside] == row), whole[inside], _BEYOND)
    size = _pair((last - first).clamp_max(5), (words - first).clamp_max(3))
    return [whole[first], whole[last], left, right, _pair(left, right), size]


def _of_sentences(
    by_row: Int[Tensor, " r"], row: Int[Tensor, " w"], whole: Int[Tensor, " w"], shape: Int[Tensor, " w"]
) -> list[tuple[Tensor, Tensor]]:
    """Return features of short sentences: first and last word, length, and length with shapes and with places."""
    ends = by_row.cumsum(0)
    size = by_row[row]
    first = (ends - by_row)[row]
    place = torch.arange(len(row), device=row.device) - first
    keys = [whole[first], whole[ends[row] - 1], size, _pair(size, shape), _pair(size, place)]
    return [(key, size <= _SHORT) for key in keys]


def _mixed(key: Tensor, kind: int) -> Tensor:
    """Return keys with their bits mixed, so that those of different kinds differ."""
    key = (key + _signed((kind + 1) * _SALT)) * _MIX
    key = (key ^ (key >> 31)) * _FACTOR
    return key ^ (key >> 29)


def _signed(number: int) -> int:
    """Return the number of 64 bits with a sign that is the same modulo 2^64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _pair(key: Tensor, other: Tensor) -> Tensor:
    return (key ^ (key >> 31)) * _FACTOR + other + 1


def _spelled(values: Tensor, word: Tensor, place: Tensor, words: int) -> Tensor:
    """Return a polynomial of the characters of each word."""
    powers = [1]
    for _ in range(_LONGEST - 1):
        powers.append(powers[-1] * _FACTOR % (1 << 64))
    signed = torch.tensor([_signed(power) for power in powers], device=values.device)
    terms = (values + 1) * signed[place.clamp_max(_LONGEST - 1)] * (place < _LONGEST)
    return torch.zeros(words, dtype=torch.long, device=values.device).index_add_(0, word, terms)


def _neighbours(row: Int[Tensor, " w"], offset: int) -> tuple[Tensor, Tensor]:
    """Return the word so far from each word, and whether there is one in its sentence."""
    number = torch.arange(len(row), device=row.device) + offset
    near = number.clamp(0, max(0, len(row) - 1))
    return near, (number == near) & (row[near] == row)
