"""Words among tokens: where they begin, what their characters say, and tokens gathered word by word."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.models.parts.ngrams import HashedEmbedding
from longspan.ops.words import AFFIX, LETTERS, feature_rows, spelling_rows

__all__ = ["AFFIX", "LETTERS", "Gathered", "Torch", "WordCharacters", "first_of_words", "gathered"]


class Torch:
    """Functions of PyTorch in place of `longspan.ops.words.Numpy`."""

    where = staticmethod(torch.where)
    concat = staticmethod(torch.cat)

    @staticmethod
    def stack(columns: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(columns), 1)

    @staticmethod
    def long(values: Tensor) -> Tensor:
        return values.long()

    @staticmethod
    def array(values: Sequence[int], like: Tensor) -> Tensor:
        return torch.tensor(values, device=like.device)

    @staticmethod
    def arange(count: int, like: Tensor) -> Tensor:
        return torch.arange(count, device=like.device)

    @staticmethod
    def owners(sizes: Tensor) -> Tensor:
        return torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)

    @staticmethod
    def sums(owner: Tensor, values: Tensor, owners: int) -> Tensor:
        return torch.zeros(owners, dtype=torch.long, device=owner.device).index_add_(0, owner, values)


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
        rows, numbers, real = self._rows_of_words(ids, mask, feature_ids)
        found = self.table.summed(rows)
        y = found.new_zeros(*ids.shape, found.shape[1])
        y[real] = found[numbers]
        return y

    def rows(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None = None,
        feature_ids: Int[Tensor, "b t"] | None = None,
    ) -> Int[Tensor, "b t f"]:
        """Rows of the table whose sum is v, for each token; 0 at padding."""
        rows, numbers, real = self._rows_of_words(ids, mask, feature_ids)
        y = rows.new_zeros(*ids.shape, rows.shape[1])
        y[real] = rows[numbers]
        return y

    def _rows_of_words(
        self, ids: Tensor, mask: Tensor | None, feature_ids: Tensor | None
    ) -> tuple[Int[Tensor, "w f"], Int[Tensor, " m"], Bool[Tensor, "b t"]]:
        """Rows of each word, the word of each real token, and which tokens are real."""
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        first = first_of_words(ids, self.begins, mask)
        # Row after row, the number of each real token's word.
        numbers = (first.flatten().cumsum(0) - 1)[real.flatten()]
        by_row, places = first.sum(1), self.table.num_embeddings
        rows = spelling_rows(self.spelling[ids[real]], numbers, by_row, self.neighbours, places, Torch)
        if self.training and self.dropout:
            own = 3 + 2 * AFFIX
            dropped = torch.rand(len(rows), 1 + rows.shape[1] - own, device=ids.device) < self.dropout
            parts = (rows[:, :2].masked_fill(dropped[:, :1], 0), rows[:, 2:own])
            rows = torch.cat((*parts, rows[:, own:].masked_fill(dropped[:, 1:], 0)), 1)
        if self.feature_neighbours and feature_ids is not None:
            more = feature_rows(feature_ids[first], by_row, self.feature_neighbours, places, Torch)
            rows = torch.cat((rows, more), 1)
        return rows, numbers, real


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
    # A batch of padding has no word, so no first one either.
    changed = nn.functional.pad(row[1:] != row[:-1], (1, 0), value=True)[: len(row)]
    if sentence_ids is not None:
        sentence = sentence_ids[first]
        changed = changed | nn.functional.pad(sentence[1:] != sentence[:-1], (1, 0), value=True)[: len(row)]
    number = changed.cumsum(0) - 1
    starts = changed.nonzero().squeeze(1)
    place = torch.arange(len(number), device=first.device) - starts[number]
    lengths = torch.diff(nn.functional.pad(starts, (0, 1), value=len(number)))
    return Gathered(first, number, place, lengths)
