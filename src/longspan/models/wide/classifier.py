"""Linear models over the n-grams of a document, with a weight of each n-gram for each class: `Wide`."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.models.wide.base import ScaledPart

_PRIME = 2**31 - 1
#: Odd factors below the prime, one for each place in an n-gram; the hash is linear in the tokens modulo the prime.
_FACTORS = (1_640_531_527, 1_225_269_487, 2_024_692_717)
LONGEST = len(_FACTORS)
#: Number of folds: log-count ratios for a training document are counted without the documents of its own fold.
FOLDS = 5
#: Lengths of n-grams of characters, and the number of a token's first characters, with spaces around it, that have
#: them.
_CHARACTERS, _SPELLED = range(2, 6), 14
_PARTS = sum(_SPELLED - size + 1 for size in _CHARACTERS)


def ngram_hashes(ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None) -> Int[Tensor, "b t n"]:
    """Return the n-grams of 1 to `LONGEST` tokens that end at each position, hashed to numbers below 2^31 - 1.

    Args:
        ids: Token ids.
        mask: True at real tokens; an n-gram is made of real tokens only, so padding changes nothing.

    Returns:
        The hashes by increasing number of tokens; 2^31 - 1 for n-grams that do not exist.
    """
    length = ids.shape[1]
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    hashed, exists = torch.zeros_like(ids), real
    found = []
    for place, factor in enumerate(_FACTORS):
        # Shifted, the token `place` before each position; the id itself is below the prime.
        before = nn.functional.pad(ids, (place, 0))[:, :length]
        exists = exists & nn.functional.pad(real, (place, 0))[:, :length]
        hashed = (hashed + (before + 1) * factor) % _PRIME
        found.append(torch.where(exists, hashed, _PRIME))
    return torch.stack(found, -1)


def spelled(tokens: Sequence[str]) -> Int[Tensor, "v g"]:
    """Return the n-grams of 2 to 5 characters that tokens have, with a space at either end, hashed as those of tokens.

    Only the first 14 characters count, the space before the token among them.

    Args:
        tokens: The tokens; an empty one has no n-grams.

    Returns:
        int32; 2^31 - 1 for n-grams that do not exist.
    """
    found = torch.full((len(tokens), _PARTS), _PRIME, dtype=torch.int32)
    for row, token in enumerate(tokens):
        text = f" {token} "[:_SPELLED] if token else ""
        parts = {text[start : start + size] for size in _CHARACTERS for start in range(len(text) - size + 1)}
        hashes = sorted(zlib.crc32(part.encode("utf-8", "replace")) % _PRIME for part in parts)
        found[row, : len(hashes)] = torch.tensor(hashes, dtype=torch.int32)
    return found


def ngram_counts(
    ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None, spelling: Int[Tensor, "v k"] | None = None
) -> tuple[Int[Tensor, "b g"], Int[Tensor, "b g"]]:
    """Return the hashes of each row's n-grams in increasing order, and how often the row has each.

    Of equal hashes the first one has the count, and the others have 0, as have n-grams that do not exist.

    Args:
        ids: Token ids.
        mask: True at real tokens.
        spelling: The n-grams of characters of each token, from `spelled`, which then count, too.

    Returns:
        g = LONGEST * t, or (LONGEST + k) * t with a spelling.
    """
    hashes = ngram_hashes(ids, mask)
    if spelling is not None:
        parts = spelling[ids].long()
        parts = parts if mask is None else parts.masked_fill(~mask.unsqueeze(-1), _PRIME)
        hashes = torch.cat((hashes, parts), -1)
    ordered = hashes.flatten(1).sort(1).values
    first = ~nn.functional.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    number = first.long().cumsum(1) - 1
    times = torch.zeros_like(ordered).scatter_add(1, number, torch.ones_like(ordered)).gather(1, number)
    return ordered, times * (first & (ordered < _PRIME))


def fold_of(ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None = None, folds: int = FOLDS) -> Int[Tensor, " b"]:
    """Return the fold of each row, below `folds`: equal documents are in the same one, however they are padded."""
    total = ids.sum(1) if mask is None else (ids * mask).sum(1)
    return total * _FACTORS[0] % _PRIME % folds


class NgramShares(NamedTuple):
    """Shares of n occurrences of n-grams of a document in the logits.

    Attributes:
        begin, end: (n,) the first token of each, and the one after its last.
        hash: (n,) equal for the same tokens; parts of a token have its hash.
        number: (n,) likewise, small and only within the document.
        logits: (n, c) the shares.
    """

    begin: Tensor
    end: Tensor
    hash: Tensor
    number: Tensor
    logits: Tensor

    def of_tokens(self, length: int) -> Float[Tensor, "t c"]:
        """Shares of `length` tokens: n-grams are split evenly among their tokens. The sum is all but the bias."""
        size = self.end - self.begin
        found = self.logits.new_zeros(length, self.logits.shape[1])
        for place in range(LONGEST):
            here = size > place
            found.index_add_(0, self.begin[here] + place, self.logits[here] / size[here].unsqueeze(1))
        return found


class Wide(ScaledPart):
    """Two linear models over the different n-grams of 1 to 3 tokens that a document has, and log-count ratios of them.

    logits = Σ_g (W[g] + a_g U[g]) + b, the sum over those of the document's n-grams that are known. W weighs that an
    n-gram is there at all (Wang and Manning 2012, https://aclanthology.org/P12-2018); a is the document's TF-IDF vector
    of length 1, (1 + ln times) idf. The tables are hash tables with a place for each n-gram's hash modulo their size,
    which belongs to one n-gram only: what else is hashed there is not known, so that unseen n-grams say nothing.
    `combined` adds the logits to those of the deep part, each times its own scale.

    With a `spelling`, n-grams of characters within a token are such n-grams, too, which W weighs: what is said of
    "boring" is said in part of "bored". Tokens that a vocabulary lacks have none.

    `evidence` tells the deep part at each position how much the n-grams that end there speak for each class. Nothing
    here is learned by gradients: tables are fitted before the deep part is trained, scales to the validation split.

    Args:
        buckets: Places in the tables.
        classes: Number of classes.
        tokens: Number of tokens whose characters are to be known; None counts no characters.
    """

    keys: Tensor
    weight: Tensor
    tfidf_weight: Tensor
    idf: Tensor
    ratio: Tensor
    bias: Tensor
    spelling: Tensor | None
    held_out: Tensor | None

    def __init__(self, buckets: int, classes: int, tokens: int | None = None) -> None:
        super().__init__()
        self.buckets = buckets
        self.register_buffer("keys", torch.empty(buckets, dtype=torch.int32))
        table = (buckets, classes)
        for name, shape in (("weight", table), ("tfidf_weight", table), ("idf", (buckets,)), ("ratio", table)):
            self.register_buffer(name, torch.empty(shape))
        self.register_buffer("bias", torch.empty(classes))
        #: `(tokens, g)` the n-grams of characters that each token has, from `spelled`.
        spelling = None if tokens is None else torch.empty(tokens, _PARTS, dtype=torch.int32)
        self.register_buffer("spelling", spelling)
        #: `(FOLDS, buckets, classes)` float16 ratios without the training documents of each fold; only in training.
        self.register_buffer("held_out", None, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.keys, -1)
        if self.spelling is not None:
            nn.init.constant_(self.spelling, _PRIME)

    def hashed(
        self, ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None = None
    ) -> tuple[Int[Tensor, "b g"], Int[Tensor, "b g"]]:
        """Return the `ngram_counts` of each row, those of characters among them if they count."""
        return ngram_counts(ids, mask, self.spelling)

    def resize(self, tokens: int) -> None:
        """Change the number of tokens; new ones have no characters that are known."""
        if self.spelling is not None:
            more = max(0, tokens - len(self.spelling))
            self.spelling = nn.functional.pad(self.spelling[:tokens], (0, 0, 0, more), value=_PRIME)

    def counts(
        self, ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None = None
    ) -> tuple[Int[Tensor, "b g"], Int[Tensor, "b g"]]:
        """Return the places of each row's n-grams, and how often it has those that are known; 0 for the others."""
        hashes, times = self.hashed(ids, mask)
        places = hashes % self.buckets
        return places, times * (self.keys[places] == hashes)

    def forward(self, ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None = None) -> Float[Tensor, "b c"]:
        """Return the logits in float32, whatever the weights are in: sums of hundreds of numbers."""
        places, times = self.counts(ids, mask)
        shares = tfidf(times, self.idf[places].float()).unsqueeze(-1)
        found = nn.functional.embedding(places, self.weight).float() * (times > 0).unsqueeze(-1)
        return (found + nn.functional.embedding(places, self.tfidf_weight).float() * shares).sum(1) + self.bias.float()

    def ngrams(self, ids: Int[Tensor, " t"]) -> NgramShares:
        """Shares of each known n-gram of a document without padding in the logits, wherever it occurs."""
        rows = ids.unsqueeze(0)
        hashes = ngram_hashes(rows, None)
        if self.spelling is not None:
            hashes = torch.cat((hashes, self.spelling[rows].long()), -1)
        different, number, times = hashes[0].unique(return_inverse=True, return_counts=True)
        places = different % self.buckets
        known = self.keys[places] == different
        amounts = tfidf((times * known).unsqueeze(0), self.idf[places].float().unsqueeze(0))[0]
        adds = self.weight[places].float() + self.tfidf_weight[places].float() * amounts.unsqueeze(1)
        # What occurs twice adds no more than once, to which each occurrence gives a half.
        adds = adds / times.unsqueeze(1)
        end, kind = known[number].nonzero().unbind(1)
        longer = torch.where(kind < LONGEST, kind, 0)
        whole = number[end, longer]
        return NgramShares(end - longer, end + 1, different[whole], whole, adds[number[end, kind]])

    def evidence(self, ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None = None) -> Float[Tensor, "b t e"]:
        """Return the log-count ratios of the n-grams that end at each position, e = LONGEST * classes.

        In training, a document is read with the ratios that do not know its fold, so that they are as unsure as those
        of new documents.
        """
        hashes = ngram_hashes(ids, mask)
        places = hashes % self.buckets
        if self.training and self.held_out is not None:
            rows = fold_of(ids, mask)[:, None, None] * self.buckets + places
            found = nn.functional.embedding(rows, self.held_out.flatten(0, 1)).to(self.ratio.dtype)
        else:
            found = nn.functional.embedding(places, self.ratio)
        return found.masked_fill((self.keys[places] != hashes).unsqueeze(-1), 0).flatten(2)


def tfidf(times: Int[Tensor, "b g"], idf: Float[Tensor, "b g"]) -> Float[Tensor, "b g"]:
    """Return the TF-IDF vectors of rows, of length 1: (1 + ln times) idf, and 0 for n-grams that are not there."""
    amounts = torch.where(times > 0, (1 + times.clamp_min(1).log()) * idf, 0)
    return nn.functional.normalize(amounts, dim=1)
