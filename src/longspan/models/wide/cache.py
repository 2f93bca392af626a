"""A continuous cache: what followed when the model was in a similar state before. `cached`."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.models.parts.ngrams import NOTHING
from longspan.ops.execution import exporting

#: Positions whose similarities to all that they may look up are in memory together.
_BLOCK = 256


class CacheQuery(NamedTuple):
    """Some positions in a row, and what they may look up: a model's outputs with the tokens that came next.

    Attributes:
        queries: `(b, n, d)` the outputs at these positions, of length 1.
        where: `(n,)` their numbers among the keys.
        keys: `(b, m, d)` all outputs of the row, of length 1.
        ids: `(b, m)` the tokens that were read there; `NOTHING` at padding.
        documents: `(b, m)` the numbers of packed documents; None without.
    """

    queries: Float[Tensor, "b n d"]
    where: Int[Tensor, " n"]
    keys: Float[Tensor, "b m d"]
    ids: Int[Tensor, "b m"]
    documents: Int[Tensor, "b m"] | None = None


class CacheScores(NamedTuple):
    """Predictions of a cache at each position.

    Attributes:
        probabilities: `(b, n, s)` of the target with each of s sharpnesses, or `(b, n, s, v)` of all tokens; 0 where
            there is nothing to look up.
        similarity: `(b, n)` of the most similar output, from -1 to 1; 0 for an empty cache.
        number: `(b, n)` how many outputs there are.
    """

    probabilities: Float[Tensor, "b n s *v"]
    similarity: Float[Tensor, "b n"]
    number: Int[Tensor, "b n"]


def cached(
    places: CacheQuery,
    size: int,
    sharpnesses: Sequence[float],
    targets: Int[Tensor, "b n"] | None = None,
    vocab_size: int = 0,
) -> CacheScores:
    """Look up what followed the last `size` positions of the same document.

    Equations, with outputs h of length 1 and j over the positions i - size .. i - 1 of the document of i:

        p(w) = Σ_j exp(s h_i·h_j) [x_{j+1} = w] / Σ_j exp(s h_i·h_j)

    Source: Grave et al. 2017, "Improving Neural Language Models with a Continuous Cache",
    https://arxiv.org/abs/1612.04426. There h is not of length 1.

    Args:
        places: The positions.
        size: How far back they look.
        sharpnesses: The factors s of the similarities; 0 counts how often each token occurred.
        targets: `(b, n)` the token whose probability is wanted at each position; any where it does not matter.
        vocab_size: Without targets, the number of tokens, as the probabilities of all are wanted.
    """
    parts = [
        _block(
            part,
            size,
            sharpnesses,
            None if targets is None else targets[:, start : start + part.queries.shape[1]],
            vocab_size,
        )
        for start, part in _blocks(places, size)
    ]
    return CacheScores(*(torch.cat(each, 1) for each in zip(*parts, strict=True)))


def _blocks(places: CacheQuery, size: int) -> Iterator[tuple[int, CacheQuery]]:
    """Yield parts of the positions with what these may look up, and the number of the first."""
    # Not a slice without the first one: programs would not serve rows of two tokens.
    last = places.ids.shape[1] - 1
    number = torch.arange(places.ids.shape[1], device=places.ids.device)
    following = places.ids[:, (number + 1).clamp_max(last)].masked_fill(number == last, NOTHING)
    if exporting():
        # Blocks would be a loop whose length depends on a size.
        yield 0, places._replace(ids=torch.where(places.ids == NOTHING, NOTHING, following))
        return
    for start in range(0, places.queries.shape[1], _BLOCK):
        where = places.where[start : start + _BLOCK]
        first, last = max(0, int(where.min()) - size), int(where.max()) + 1
        documents = None if places.documents is None else places.documents[:, first:last]
        usable = torch.where(places.ids[:, first:last] == NOTHING, NOTHING, following[:, first:last])
        yield (
            start,
            CacheQuery(
                places.queries[:, start : start + _BLOCK], where - first, places.keys[:, first:last], usable, documents
            ),
        )


def _block(
    places: CacheQuery, size: int, sharpnesses: Sequence[float], targets: Tensor | None, vocab_size: int
) -> CacheScores:
    """Do what `cached` does for a few positions; `ids` of these places are the tokens that followed."""
    back = places.where[:, None] - torch.arange(places.keys.shape[1], device=places.keys.device)
    allowed = ((back > 0) & (back <= size)) & (places.ids != NOTHING)[:, None]
    if places.documents is not None:
        # The next token is of the same document if the key is: only the one after it may not be.
        allowed = allowed & (places.documents[:, places.where, None] == places.documents[:, None])
    similar = (places.queries @ places.keys.mT).float().masked_fill(~allowed, -torch.inf)
    number = allowed.sum(2)
    best = torch.where(number > 0, similar.amax(2), 0.0)
    found = []
    for sharpness in sharpnesses:
        # At most e^0, whatever the sharpness is; 0 times infinity is not a number.
        shares = torch.where(allowed, (sharpness * (similar - best.unsqueeze(2)).clamp_min(-10.0)).exp(), 0.0)
        shares = shares / shares.sum(2, keepdim=True).clamp_min(torch.finfo(shares.dtype).tiny)
        if targets is not None:
            same = places.ids[:, None] == targets.unsqueeze(2)
            found.append((shares * same).sum(2))
        else:
            wide = shares.new_zeros(*shares.shape[:2], vocab_size)
            found.append(wide.scatter_add(2, places.ids.clamp_min(0)[:, None].expand_as(shares), shares))
    return CacheScores(torch.stack(found, 2), best, number)
