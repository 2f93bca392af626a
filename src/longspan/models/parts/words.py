"""Words among tokens: where they begin, what their characters say, and tokens gathered word by word."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.models.parts.ngrams import HashedEmbedding

#: Bytes of the longest beginnings and endings.
AFFIX = 5
_PRIME = (1 << 31) - 1
_FACTOR, _SPREAD = 1_103_515_245, 1_597_334_677
#: Bytes of a token that are known; `longspan.data.text.words.letters` gives that number.
LETTERS = 24
#: Salt that separates kinds of n-grams of features from those of words, of which there are fewer.
_SALT_OF_FEATURES = 1000
_FEATURES_IN_A_ROW = 3


def first_of_words(
    ids: Int[Tensor, "b t"], begins: Bool[Tensor, " v"], mask: Bool[Tensor, "b t"] | None
) -> Bool[Tensor, "b t"]:
    """First tokens of words: those that begin one, and each row's first real token."""
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    return real & (begins[ids] | (real.cumsum(1) == 1))


class WordCharacters(nn.Module):
    """Spelling of a word, for each of its tokens: hashed beginnings, endings, and the word as a whole.

    v(w) = Σ_{n ≤ 5} (E[h(first n of w)] + E[h(last n of w)]) + E[h(w)] + E[h(lower(w))] + E[h(shape(w))]

    With `neighbours`, E[h(lower(w'), place)] for that number of words w' on either side. The next words also have their
    last three characters, their shapes, and their pairs with the word. A word's bytes are those of all its tokens,
    however it was cut into them; beginnings and endings are in lower case. The shape is which kinds of characters there
    are and whether the first is upper case. In training, the two vectors of the word itself are dropped with a
    probability, so that rare words are known by their parts. So is each vector that depends on a neighbour. Vectors
    start at zero, and those of equal hash are shared.

    Words may have a further feature, such as their part of speech. With `feature_neighbours`, the features of one, two
    and three consecutive words are hashed, too, for all such sequences within that number of words on either side.

    Source: the features are those of Ratnaparkhi 1996, "A Maximum Entropy Model for Part-Of-Speech Tagging",
    https://aclanthology.org/W96-0213

    Args:
        tokens: size of the vocabulary.
        dim: width of the vectors.
        buckets: number of vectors.
        neighbours: number of words on either side that count.
        feature_neighbours: number of words on either side whose features count; 0 for none.
        dropout: probability of leaving out what depends on the word as a whole, or on a neighbour.

    Attributes:
        begins: (tokens,) bool, which tokens begin a word; all do until it is set.
        spelling: (tokens, LETTERS) uint8, the bytes of each token, 0 after the last.
    """

    begins: Tensor
    spelling: Tensor

    def __init__(
        self,
        tokens: int,
        dim: int,
        *,
        buckets: int,
        neighbours: int = 0,
        feature_neighbours: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.feature_neighbours = feature_neighbours
        self.table = HashedEmbedding(buckets, dim)
        self.dropout = dropout
        self.register_buffer("begins", torch.empty(tokens, dtype=torch.bool))
        self.register_buffer("spelling", torch.empty(tokens, LETTERS, dtype=torch.uint8))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Forget the vocabulary."""
        nn.init.constant_(self.begins, True)
        nn.init.zeros_(self.spelling)

    def resize(self, tokens: int) -> None:
        """Change the number of tokens; new ones are words without characters."""
        more = max(0, tokens - len(self.begins))
        self.begins = nn.functional.pad(self.begins[:tokens], (0, more), value=True)
        self.spelling = nn.functional.pad(self.spelling[:tokens], (0, 0, 0, more))

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None = None,
        feature_ids: Int[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Return v of the word of each token, 0 at padding.

        Args:
            ids: the tokens.
            mask: which of them are real.
            feature_ids: the further feature of each token's word.
        """
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        first = first_of_words(ids, self.begins, mask)
        # Row after row, the number of each real token's word.
        numbers = (first.flatten().cumsum(0) - 1)[real.flatten()]
        by_row = first.sum(1)
        buckets = self._buckets(ids[real], numbers, by_row)
        if self.training and self.dropout:
            own = 3 + 2 * AFFIX
            dropped = torch.rand(len(buckets), 1 + buckets.shape[1] - own, device=ids.device) < self.dropout
            parts = (buckets[:, :2].masked_fill(dropped[:, :1], 0), buckets[:, 2:own])
            buckets = torch.cat((*parts, buckets[:, own:].masked_fill(dropped[:, 1:], 0)), 1)
        if self.feature_neighbours and feature_ids is not None:
            buckets = torch.cat((buckets, self._of_features(feature_ids[first], by_row)), 1)
        found = self.table.summed(buckets)
        y = found.new_zeros(*ids.shape, found.shape[1])
        y[real] = found[numbers]
        return y

    def _buckets(
        self, ids: Int[Tensor, " m"], numbers: Int[Tensor, " m"], by_row: Int[Tensor, " b"]
    ) -> Int[Tensor, "w f"]:
        """Return the buckets of the features of each word, 0 for those that it does not have.

        Args:
            ids: the tokens.
            numbers: the word of each.
            by_row: number of words of each row.

        Returns:
            Those of the word itself, in lower case, its shape, its beginnings and endings, and its neighbours.
        """
        words = int(by_row.sum())
        spelled = self.spelling[ids].long()
        there = spelled > 0
        characters, word = spelled[there], numbers.unsqueeze(1).expand_as(spelled)[there]
        lower = _lower(characters)
        sizes = torch.zeros(words, dtype=torch.long, device=ids.device).index_add_(0, word, torch.ones_like(word))
        ends = sizes.cumsum(0)
        starts = ends - sizes
        place = torch.arange(len(word), device=ids.device) - starts[word]
        keys = [_hashes(values, word, place, words) for values in (characters, lower)]
        keys += [self._shapes(characters, word, place, words)]
        known = [sizes > 0] * len(keys)
        for first, step in ((starts, 1), (ends - 1, -1)):
            key = torch.zeros_like(sizes)
            for size in range(1, AFFIX + 1):
                inside = sizes >= size
                at = torch.where(inside, first + step * (size - 1), 0)
                key = (key * _FACTOR + (lower[at] if len(lower) else at) + 1) % _PRIME
                keys.append(key)
                known.append(inside)
        for offset in [side * step for step in range(1, self.neighbours + 1) for side in (-1, 1)]:
            near, there = _neighbours(by_row, words, offset)
            whole, shape, ending = keys[1][near], keys[2][near], keys[3 + AFFIX + 2][near]
            found_here = [(whole, there)]
            if abs(offset) == 1:
                pair = (keys[1] * _FACTOR + whole + 1) % _PRIME
                found_here += [(shape, there), (ending, there & known[3 + AFFIX + 2][near]), (pair, there)]
            for key, has in found_here:
                keys.append(key)
                known.append(has)
        found = self._table_rows(keys, 0)
        return torch.stack([bucket * there for bucket, there in zip(found, known, strict=True)], 1)

    def _of_features(self, features: Int[Tensor, " w"], by_row: Int[Tensor, " b"]) -> Int[Tensor, "w f"]:
        """Return the buckets of the features of one, two and three words in a row around each word."""
        reach, words = self.feature_neighbours, len(features)
        around = {offset: _neighbours(by_row, words, offset) for offset in range(-reach, reach + 1)}
        # 0 is what is beyond the row.
        values = {offset: (features[near] + 1) * there for offset, (near, there) in around.items()}
        keys = []
        for size in range(1, _FEATURES_IN_A_ROW + 1):
            for start in range(-reach, reach + 2 - size):
                key = torch.zeros_like(features)
                for offset in range(start, start + size):
                    key = (key * _FACTOR + values[offset] + 1) % _PRIME
                keys.append(key)
        return torch.stack(self._table_rows(keys, _SALT_OF_FEATURES), 1)

    def _table_rows(self, keys: Sequence[Tensor], salt: int) -> list[Tensor]:
        """Return the bucket of each key; a salt for each kind keeps them apart."""
        places = self.table.num_embeddings - 1
        return [(key * _SPREAD + number) % _PRIME % places + 1 for number, key in enumerate(keys, salt)]

    def _shapes(self, characters: Tensor, word: Tensor, place: Tensor, words: int) -> Tensor:
        """Return a number for which kinds of characters each word has."""
        upper = (characters >= 65) & (characters <= 90)
        kinds = (
            upper & (place == 0),
            upper & (place > 0),
            (characters >= 97) & (characters <= 122),
            (characters >= 48) & (characters <= 57),
            characters >= 128,
            (characters == 45) | (characters == 46) | (characters == 39),
        )
        shape = torch.zeros(words, dtype=torch.long, device=word.device)
        for number, kind in enumerate(kinds):
            has = torch.zeros_like(shape).index_add_(0, word, kind.long()) > 0
            shape = shape + (has.long() << number)
        return shape


def _neighbours(by_row: Int[Tensor, " b"], words: int, offset: int) -> tuple[Tensor, Tensor]:
    """Return the word so far from each of `words` words, and whether there is one in its row."""
    row = torch.repeat_interleave(torch.arange(len(by_row), device=by_row.device), by_row)
    number = torch.arange(words, device=by_row.device) + offset
    near = number.clamp(0, max(0, words - 1))
    return near, (number == near) & (row[near] == row)


def _hashes(values: Tensor, word: Tensor, place: Tensor, words: int) -> Tensor:
    """Return a polynomial of the characters of each word, modulo the prime."""
    powers = [1]
    for _ in range(int(place.max()) if len(place) else 0):
        powers.append(powers[-1] * _FACTOR % _PRIME)
    terms = (values + 1) * torch.tensor(powers, device=values.device)[place] % _PRIME
    return torch.zeros(words, dtype=torch.long, device=values.device).index_add_(0, word, terms) % _PRIME


def _lower(characters: Tensor) -> Tensor:
    return characters + 32 * ((characters >= 65) & (characters <= 90))


class Gathered(NamedTuple):
    """Where words are in rows of their own.

    Attributes:
        first: (b, t) bool, the first token of each word.
        row: (w,) the row that each word goes to, one for each sentence.
        place: (w,) its place there.
        lengths: (r,) how many words each row has.
    """

    first: Tensor
    row: Tensor
    place: Tensor
    lengths: Tensor

    def rows(self, values: Tensor) -> Tensor:
        """Return values (b, t, ...) of words in rows (r, n, ...), 0 beyond their lengths."""
        longest = int(self.lengths.max()) if len(self.lengths) else 0
        result = values.new_zeros(len(self.lengths), longest, *values.shape[2:])
        return result.index_put((self.row, self.place), values[self.first])

    def back(self, values: Tensor, rows: Tensor) -> Tensor:
        """Return `values` (b, t, ...) with those of words replaced by those in `rows` (r, n, ...)."""
        return values.masked_scatter(
            self.first.view(*self.first.shape, *[1] * (values.ndim - 2)), rows[self.row, self.place].to(values.dtype)
        )


def gathered(first: Bool[Tensor, "b t"], sentence_ids: Int[Tensor, "b t"] | None = None) -> Gathered:
    """Return the words of each sentence in a row: consecutive tokens with the same number."""
    width = first.shape[1]
    row = torch.arange(first.shape[0], device=first.device).unsqueeze(1).expand(-1, width)[first]
    changed = nn.functional.pad(row[1:] != row[:-1], (1, 0), value=True)
    if sentence_ids is not None:
        sentence = sentence_ids[first]
        changed = changed | nn.functional.pad(sentence[1:] != sentence[:-1], (1, 0), value=True)
    number = changed.cumsum(0) - 1
    starts = changed.nonzero().squeeze(1)
    place = torch.arange(len(number), device=first.device) - starts[number]
    lengths = torch.diff(nn.functional.pad(starts, (0, 1), value=len(number)))
    return Gathered(first, number, place, lengths)
