"""Hashed features of words from their characters, by functions for arrays of NumPy as well as tensors of PyTorch.

`xp` is what differs: `Numpy` here, `longspan.models.parts.words.Torch` there. Hashes are integers, the same in both.
PyTorch is not imported: exported programs read words with this module.

There are two sets of features. `word_features` are those of a linear-chain CRF (`longspan.models.wide.word_features`),
in 64 bits. `spelling_rows` and `feature_rows` are rows of a table (`longspan.models.parts.words.WordCharacters`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

#: Bytes of a token that are known; `longspan.data.text.words.letters` gives that number.
LETTERS = 24
#: Characters below have a lower case and a kind: Latin, Greek, Cyrillic and what else has capital letters.
KNOWN = 0x2000
#: The hash of a feature that a word does not have.
NOTHING = 0
#: Kinds of characters; letters of scripts without capitals are of one kind, others are each of their own.
UPPER, LOWER, DIGIT, LETTER, _OTHERS = 1, 2, 3, 4, 5
#: Code points from `KNOWN` on that are letters of scripts without capitals: Chinese, Japanese, Korean and Yi.
_LETTERS = ((0x3041, 0xA4D0), (0xAC00, 0xD7A4), (0xF900, 0xFB00), (0x20000, 0x323B0))
#: Characters of the longest beginnings and endings, and of a neighbour's ending.
_AFFIX, _ENDING = 4, 3
#: Number of characters of a word that count; longer ones are addresses.
_LONGEST = 100
#: Words on either side, and those whose further features count.
_REACH, _NEAR = 3, 2
#: Words of the longest sentence whose length counts.
_SHORT = 12
#: Arithmetic is modulo 2^64. The factors are those of Knuth's MMIX generator, and of splitmix64.
_FACTOR, _MIX, _SALT = 6364136223846793005, -4658895280553007687, -7046029254386353131
#: Value beyond a sentence.
_BEYOND = 1


class Numpy:
    """Functions of NumPy under the names that this module uses."""

    @staticmethod
    def where(condition: Any, one: Any, other: Any) -> np.ndarray:
        """Values of `one` where the condition is true, and of `other` elsewhere."""
        return np.where(condition, one, other)

    @staticmethod
    def concat(parts: Sequence[np.ndarray]) -> np.ndarray:
        """Parts one after the other."""
        return np.concatenate(parts)

    @staticmethod
    def stack(columns: Sequence[np.ndarray]) -> np.ndarray:
        """Columns side by side."""
        return np.stack(columns, 1)

    @staticmethod
    def long(values: np.ndarray) -> np.ndarray:
        """Values as integers of 64 bits."""
        return values.astype(np.int64)

    @staticmethod
    def array(values: Sequence[int], like: np.ndarray) -> np.ndarray:
        """Integers of 64 bits where `like` is."""
        return np.array(values, np.int64)

    @staticmethod
    def arange(count: int, like: np.ndarray) -> np.ndarray:
        """Numbers from 0 where `like` is."""
        return np.arange(count)

    @staticmethod
    def owners(sizes: np.ndarray) -> np.ndarray:
        """Number of the owner of each item, where owner i has `sizes[i]` items."""
        return np.repeat(np.arange(len(sizes)), sizes)

    @staticmethod
    def sums(owner: np.ndarray, values: np.ndarray, owners: int) -> np.ndarray:
        """Sum of the values of each owner."""
        found = np.zeros(owners, np.int64)
        np.add.at(found, owner, values)
        return found


def code_points(spelled: Any, word: Any, words: int, xp: Any) -> tuple[Any, Any]:
    """Code points of words whose bytes in UTF-8 are given, one after the other, and how many each word has.

    Args:
        spelled: `(n,)` the bytes of all words.
        word: `(n,)` the word of each.
        words: Number of words.
        xp: `Numpy` or its like.
    """
    values = xp.long(spelled)
    begins = (values & 0xC0) != 0x80
    codes = xp.where(values < 0x80, values, xp.where(values < 0xE0, values & 0x1F, values & 0x0F))
    codes = xp.where(values < 0xF0, codes, values & 0x07)
    goes_on = begins
    for step in (1, 2, 3):
        following = xp.concat((values[step:], 0 * values[:step]))
        same = xp.concat((word[step:], 0 * word[:step] - 1)) == word
        goes_on = goes_on & same & ((following & 0xC0) == 0x80)
        codes = xp.where(goes_on, (codes << 6) | (following & 0x3F), codes)
    return codes[begins], xp.sums(word, xp.long(begins), words)


def word_features(codes: Any, sizes: Any, by_row: Any, features: Any, lower: Any, kinds: Any, xp: Any) -> Any:
    """Hashes of the features of each word, `(w, f)`, `NOTHING` for those that it does not have.

    Args:
        codes: `(m,)` the code points of all words.
        sizes: `(w,)` their number for each word.
        by_row: `(r,)` number of words of each sentence.
        features: `(w,)` the further feature of each word, above 0; 0 where it is not known. None for none.
        lower: `(KNOWN,)` the lower case of each of the first characters.
        kinds: `(KNOWN,)` the kind of each.
        xp: `Numpy` or its like.
    """
    words = len(sizes)
    word = xp.owners(sizes)
    ends = sizes.cumsum(0)
    starts = ends - sizes
    place = xp.arange(len(word), codes) - starts[word]
    known = codes < KNOWN
    small = xp.where(known, codes, 0)
    lowered = xp.where(known, xp.long(lower[small]), codes)
    kind = xp.long(kinds[small]) * known
    for least, beyond in _LETTERS:
        kind = xp.where((codes >= least) & (codes < beyond), LETTER, kind)
    kind = xp.where(kind > 0, kind, codes + _OTHERS)
    form, whole = (_spelled(values, word, place, words, xp) for values in (codes, lowered))
    # Of equal kinds in a row, one counts.
    changed = (kind != xp.concat((kind[:1], kind[:-1]))) | (place == 0)
    number = xp.long(changed).cumsum(0)
    nothing = xp.array([0], codes)
    first = xp.concat((number, nothing))[xp.where(sizes > 0, starts, len(word))]
    shape = _spelled(kind[changed], word[changed], (number - first[word])[changed], words, xp)
    everywhere = sizes >= 0
    found = [(0 * sizes, everywhere), (form, everywhere), (whole, everywhere), (shape, everywhere)]
    ending = 0 * sizes
    for origin, step in ((starts, 1), (ends - 1, -1)):
        key = 0 * sizes
        for size in range(1, _AFFIX + 1):
            inside = sizes >= size
            at = xp.where(inside, origin + step * (size - 1), 0)
            key = key * _FACTOR + (lowered[at] if len(lowered) else at) + 1
            found.append((key, inside))
            if step < 0 and size <= _ENDING:
                ending = xp.where(inside, key, ending)
    row = xp.owners(by_row)
    around = {offset: neighbours(row, offset, xp) for offset in range(-_REACH, _REACH + 1)}
    wholes, shapes, endings = (
        {offset: xp.where(there, key[near], _BEYOND) for offset, (near, there) in around.items()}
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
    upper = xp.concat((kind, nothing))[xp.where(sizes > 0, starts, len(word))] == UPPER
    found += [(key, upper) for key in _of_runs(upper, row, whole, xp)]
    found += _of_sentences(by_row, row, whole, shape, xp)
    if features is not None:
        values = {offset: xp.where(there, features[near] + 1, 0) for offset, (near, there) in around.items()}
        for size in (1, 2, 3):
            for start in range(-_NEAR, _NEAR + 2 - size):
                key = 0 * sizes
                for offset in range(start, start + size):
                    key = _pair(key, values[offset])
                found.append((key, features > 0))
    return xp.stack([xp.where(has, _mixed(key, number), NOTHING) for number, (key, has) in enumerate(found)])


def _of_runs(upper: Any, row: Any, whole: Any, xp: Any) -> list[Any]:
    """Features of runs of capitalised words: first and last word, words before and after, size and place."""
    words = xp.arange(len(row), row)
    before, after = (words - 1).clip(min=0), (words + 1).clip(max=max(0, len(row) - 1))
    begins = ~(upper & upper[before] & (row[before] == row) & (words > 0))
    stops = begins[after] | (after == words)
    run = xp.long(begins).cumsum(0) - 1
    first, last = (xp.sums(run, xp.where(ends, words, 0), len(row))[run] for ends in (begins, stops))
    before, after = first - 1, last + 1
    known = (before >= 0) & (row[before] == row)
    left = xp.where(known, whole[before], _BEYOND)
    inside = after.clip(max=max(0, len(row) - 1))
    right = xp.where((after == inside) & (row[inside] == row), whole[inside], _BEYOND)
    size = _pair((last - first).clip(max=5), (words - first).clip(max=3))
    return [whole[first], whole[last], left, right, _pair(left, right), size]


def _of_sentences(by_row: Any, row: Any, whole: Any, shape: Any, xp: Any) -> list[tuple[Any, Any]]:
    """Features of short sentences: first and last word, length, and length with shapes and with places."""
    ends = by_row.cumsum(0)
    size = by_row[row]
    first = (ends - by_row)[row]
    place = xp.arange(len(row), row) - first
    keys = [whole[first], whole[ends[row] - 1], size, _pair(size, shape), _pair(size, place)]
    return [(key, size <= _SHORT) for key in keys]


def _mixed(key: Any, kind: int) -> Any:
    """Keys with their bits mixed, so that those of different kinds differ."""
    key = (key + _signed((kind + 1) * _SALT)) * _MIX
    key = (key ^ (key >> 31)) * _FACTOR
    return key ^ (key >> 29)


def _signed(number: int) -> int:
    """The number of 64 bits with a sign that is the same modulo 2^64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _pair(key: Any, other: Any) -> Any:
    return (key ^ (key >> 31)) * _FACTOR + other + 1


def _spelled(values: Any, word: Any, place: Any, words: int, xp: Any) -> Any:
    """A polynomial of the characters of each word."""
    powers = [1]
    for _ in range(_LONGEST - 1):
        powers.append(powers[-1] * _FACTOR % (1 << 64))
    signed = xp.array([_signed(power) for power in powers], values)
    terms = (values + 1) * signed[place.clip(max=_LONGEST - 1)] * (place < _LONGEST)
    return xp.sums(word, terms, words)


def neighbours(row: Any, offset: int, xp: Any) -> tuple[Any, Any]:
    """The word so far from each word, and whether there is one in its row."""
    number = xp.arange(len(row), row) + offset
    near = number.clip(0, max(0, len(row) - 1))
    return near, (number == near) & (row[near] == row)


#: Bytes of the longest beginnings and endings.
AFFIX = 5
_PRIME = (1 << 31) - 1
_STEP, _SPREAD = 1_103_515_245, 1_597_334_677
#: Salt that separates kinds of n-grams of features from those of words, of which there are fewer.
_SALT_OF_FEATURES = 1000
_FEATURES_IN_A_ROW = 3


def spelling_rows(spelled: Any, numbers: Any, by_row: Any, reach: int, rows: int, xp: Any) -> Any:
    """Rows of the features of each word in a table with this number of `rows`, `(w, f)`; 0 for those that it lacks.

    They are those of the word itself, in lower case, its shape, its beginnings and endings, and its neighbours.

    Args:
        spelled: `(m, LETTERS)` the bytes of each token, 0 after the last.
        numbers: `(m,)` the word of each token.
        by_row: `(b,)` number of words of each row.
        reach: Number of words on either side that count.
        rows: Rows of the table, the first of which is no feature's.
        xp: `Numpy` or its like.
    """
    row = xp.owners(by_row)
    words = len(row)
    there = spelled > 0
    characters, word = xp.long(spelled[there]), numbers[xp.owners(there.sum(1))]
    lower = characters + 32 * ((characters >= 65) & (characters <= 90))
    sizes = xp.sums(word, 0 * word + 1, words)
    ends = sizes.cumsum(0)
    starts = ends - sizes
    place = xp.arange(len(word), word) - starts[word]
    keys = [_polynomials(values, word, place, words, xp) for values in (characters, lower)]
    keys += [_shapes(characters, word, place, words, xp)]
    known = [sizes > 0] * len(keys)
    for first, step in ((starts, 1), (ends - 1, -1)):
        key = 0 * sizes
        for size in range(1, AFFIX + 1):
            inside = sizes >= size
            at = xp.where(inside, first + step * (size - 1), 0)
            key = (key * _STEP + (lower[at] if len(lower) else at) + 1) % _PRIME
            keys.append(key)
            known.append(inside)
    for offset in [side * step for step in range(1, reach + 1) for side in (-1, 1)]:
        near, has = neighbours(row, offset, xp)
        whole, shape, ending = keys[1][near], keys[2][near], keys[3 + AFFIX + 2][near]
        found = [(whole, has)]
        if abs(offset) == 1:
            pair = (keys[1] * _STEP + whole + 1) % _PRIME
            found += [(shape, has), (ending, has & known[3 + AFFIX + 2][near]), (pair, has)]
        for key, has_key in found:
            keys.append(key)
            known.append(has_key)
    return xp.stack([place * has for place, has in zip(_table_rows(keys, 0, rows), known, strict=True)])


def feature_rows(features: Any, by_row: Any, reach: int, rows: int, xp: Any) -> Any:
    """Rows of the further features of one, two and three words in a row around each word; see `spelling_rows`."""
    around = {offset: neighbours(xp.owners(by_row), offset, xp) for offset in range(-reach, reach + 1)}
    # 0 is what is beyond the row.
    values = {offset: (features[near] + 1) * there for offset, (near, there) in around.items()}
    keys = []
    for size in range(1, _FEATURES_IN_A_ROW + 1):
        for start in range(-reach, reach + 2 - size):
            key = 0 * features
            for offset in range(start, start + size):
                key = (key * _STEP + values[offset] + 1) % _PRIME
            keys.append(key)
    return xp.stack(_table_rows(keys, _SALT_OF_FEATURES, rows))


def _table_rows(keys: Sequence[Any], salt: int, rows: int) -> list[Any]:
    """The row of each key; a salt for each kind keeps them apart."""
    return [(key * _SPREAD + number) % _PRIME % (rows - 1) + 1 for number, key in enumerate(keys, salt)]


def _shapes(characters: Any, word: Any, place: Any, words: int, xp: Any) -> Any:
    """A number for which kinds of characters each word has."""
    upper = (characters >= 65) & (characters <= 90)
    kinds = (
        upper & (place == 0),
        upper & (place > 0),
        (characters >= 97) & (characters <= 122),
        (characters >= 48) & (characters <= 57),
        characters >= 128,
        (characters == 45) | (characters == 46) | (characters == 39),
    )
    return sum(xp.long(xp.sums(word, xp.long(kind), words) > 0) << number for number, kind in enumerate(kinds))


def _polynomials(values: Any, word: Any, place: Any, words: int, xp: Any) -> Any:
    """A polynomial of the characters of each word, modulo the prime."""
    powers = [1]
    for _ in range(int(place.max()) if len(place) else 0):
        powers.append(powers[-1] * _STEP % _PRIME)
    terms = (values + 1) * xp.array(powers, values)[place] % _PRIME
    return xp.sums(word, terms, words) % _PRIME
